"""What ended a build stands first, what follows from it is folded, and how the build ended."""

import json

from tests.fixtures.commands import run, shows
from tests.fixtures.tables import each
from trtcal.evidence.diagnosis.failure import failure_of
from trtcal.evidence.log.summary import log_document

UNKNOWN = "[E] 2: [mixer.cpp::blend::7] Error Code 2: Internal Error (Assertion a < b failed.)"
ENTRY = "[E] IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (m: no such axis)"
RUN = "[E] IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime (odd stream)"
NODE = '[E] ModelImporter.cpp:1: While parsing node number 8 [Conv -> "y"]:'
FUNCTION = "[E] ModelImporter.cpp:2: ERROR: ModelImporter.cpp:3 In function parseNode:"
TACTIC = "[E] Error Code: 9: Skipping tactic 0x00000000000000ab due to exception no such shape"
KERNEL = "[E] Error[10]: Could not find any implementation for node c1."
ENDED = "[E] Engine could not be created from network"
BUILT = "[I] Engine built in 2.5 sec."

# the lines of a log -> rule or line of its first finding, and how the build ended
CAUSES = {
    "entry": ([ENTRY], 1, "failed"),
    "class": (["[E] [builder.cpp::config::9] Error Code 3: API Usage Error (x)"], 1, "failed"),
    "old entry": (
        ["[E] ../builder/cudnnBuilder2.cpp (9) - Misc Error in buildEngine: -1 (x)"],
        1,
        "failed",
    ),
    "destructor": (
        ["[E] [builder.cpp::~Builder::9] Error Code 3: API Usage Error (x)", BUILT],
        1,
        "built",
    ),
    "internal": ([UNKNOWN], 1, "failed"),
    "before": ([ENDED, UNKNOWN], 2, "failed"),
    "frequent": ([UNKNOWN, *["[E] odd thing"] * 9], 1, "failed"),
    "rule": (["[E] odd thing", KERNEL, ENDED], "no_implementation", "failed"),
    "tactic": ([TACTIC, UNKNOWN, ENDED], 2, "failed"),
    "tactic alone": ([TACTIC, ENDED], "tactic_exception", "failed"),
    "tactic of a built engine": ([TACTIC, BUILT], "tactic_exception", "built"),
    "flags": (
        ["[E] kPREFER_PRECISION_CONSTRAINTS cannot be set if kOBEY_X is set.", UNKNOWN, ENDED],
        2,
        "failed",
    ),
    "place": ([NODE, FUNCTION, "[6] Invalid Node - c8", UNKNOWN, ENDED], 4, "failed"),
    "place alone": ([NODE, FUNCTION, ENDED], "parser_node", "failed"),
    "condition": (
        [NODE, FUNCTION, "[8] Assertion failed: axis < rank"],
        "parser_assertion",
        "failed",
    ),
    "plugin": ([NODE, FUNCTION, '[6] creator && "Plugin not found"'], "plugin_missing", "failed"),
    "scale": (
        [NODE, FUNCTION, '[6] Assertion failed: good && "Scale coefficients must all be positive"'],
        "scale_sign",
        "failed",
    ),
    "symmetric": (
        [
            NODE,
            FUNCTION,
            '[6] Assertion failed: none(shift) && "TRT only supports symmetric quantization"',
        ],
        "zero_point",
        "failed",
    ),
    "no output before": (
        ["[E] Network must have at least one output", "[E] odd thing"],
        2,
        "failed",
    ),
    "plugin of a provider": (
        ["[E] INVALID_ARGUMENT: getPluginCreator could not find plugin Mix version 1"],
        "plugin_unknown",
        "unknown",
    ),
    "provider": (
        [
            "[E] Setting dynamic range is only allowed when there are no Q/DQ layers.",
            "[E] Status Message: TensorRT EP failed to set INT8 dynamic range.",
        ],
        "range_with_qdq",
        "failed",
    ),
    "no images": (
        ["terminate called after throwing an instance of 'odd'", "  what():  _Map_base::at"],
        "key_missing",
        "failed",
    ),
    "no output": ([UNKNOWN, "[E] Network must have at least one output"], 1, "failed"),
    "null": (
        [UNKNOWN, "net: /a/net.cpp:8: void f(): Assertion `m_Engine != nullptr' failed."],
        1,
        "failed",
    ),
    "null alone": (
        ["net: /a/net.cpp:8: void f(): Assertion `engine' failed."],
        "engine_is_null",
        "failed",
    ),
    "assertion": (
        [UNKNOWN, "net: /a/net.cpp:8: void f(): Assertion `d.n == 3' failed."],
        1,
        "failed",
    ),
    "none": (
        ["[E] odd thing", "AttributeError: 'NoneType' object has no attribute 'serialize'"],
        1,
        "failed",
    ),
    "crash": ([UNKNOWN, "Segmentation fault (core dumped)"], 1, "failed"),
    "crash alone": (["[I] parsing", "Segmentation fault (core dumped)"], "signal", "failed"),
    "reason of a crash": (
        ["terminate called after throwing an instance of 'odd'", "  what():  no room"],
        "terminated_by",
        "failed",
    ),
    "server": (
        ["E1 \"failed to load 'mix' version 1: Internal: no plan\"".replace("E1", "[E]")],
        1,
        "failed",
    ),
    "run of an engine": ([BUILT, RUN, "&&&& FAILED TensorRT.trtexec"], 2, "built"),
    "run": ([RUN], 1, "failed"),
    "second attempt": ([UNKNOWN, ENDED, BUILT], 1, "built"),
    "second build": ([BUILT, UNKNOWN, ENDED], 2, "failed"),
    "memory of a tactic": (
        ["[E] 2: [m.cpp::grow::9] Error Code 2: OutOfMemory (no further information)"],
        1,
        "unknown",
    ),
    "listed": ([UNKNOWN, "Layer(K): c1, Tactic: 0x1, x (Int8[1]) -> y (Int8[1])"], 1, "built"),
    "warnings": (
        ["[W] CUDA initialization failure with error: 35", "[E] odd thing"],
        "cuda_driver_old",
        "failed",
    ),
}


@each("name", CAUSES)
def test_the_cause_stands_first(name, tmp_path):
    lines, first, result = CAUSES[name]
    log = tmp_path / "build.log"
    log.write_text("\n".join(lines))
    summary = log_document(log)["summary"]
    finding = summary["findings"][0]
    assert first == finding["first_line" if isinstance(first, int) else "rule"]
    assert summary["result"] == result
    assert "follows" not in finding
    cause = failure_of(log)
    if result == "failed":
        assert cause.evidence[0].place == f"build.log:{finding['first_line']}"


def test_consequences_are_folded_and_causes_have_their_versions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    known = "[E] IBuilder::buildSerializedNetwork: Error Code 2: Internal Error (Assertion "
    known += "item.second != nullptr failed. In checkLinks at checkSanity.cpp:1)"
    lines = [known, ENDED, "[E] Building engine failed", "[E] odd thing"]
    (tmp_path / "build.log").write_text("\n".join(lines))
    status, out, err = run(capsys, "log", "build.log")
    assert status == 1
    shows(
        out,
        "this ended the build: lines 2 to 3",
        "TensorRT 10.3; fixed in 10.7;",
        "NVIDIA/TensorRT#4797",
    )
    assert "consequence" not in out
    assert "Read the message" not in out
    shows(err, "the build failed: build.log: Assertion item.second != nullptr failed")
    _, out, _ = run(capsys, "log", "build.log", "--json")
    cause, other, end = json.loads(out)["summary"]["findings"]
    assert (cause["rule"], cause["fixed"]) == ("check_links", "10.7")
    assert "NVIDIA/TensorRT#4797" in cause["threads"]
    assert (other["first_line"], end["follows"], end["last_line"]) == (4, 1, 3)

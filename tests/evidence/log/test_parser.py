import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evidence.log.lines import parse_lines
from tests.fixtures.examples import examples
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evidence.log.files import portions_of_file
from trtcal.evidence.log.reader import parse_file
from trtcal.evidence.log.recognition import CATEGORIES, INDEX, RULES, SEVERITIES
from trtcal.evidence.log.rules import unwrap
from trtcal.evidence.log.summary import summarize

LETTERS = {"error": "E", "warning": "W", "info": "I", "verbose": "V"}


def events(text):
    return list(parse_lines(text.split("\n")))


def one(text):
    (event,) = events(text)
    return event


def facts(text):
    return [(e.line, e.category, e.subject) for e in events(text)]


@each("rule", RULES)
def test_a_rule_recognises_its_example_and_explains_it(rule):
    level = rule.severity if rule.severity in (rule.levels or SEVERITIES) else None
    for example in rule.example:
        found = INDEX.find(unwrap(example.strip()), level)
        assert found is not None, example
        assert found[0] is rule, example
    assert rule.category in CATEGORIES
    assert rule.severity in SEVERITIES
    assert rule.why or rule.severity != "error"
    for text in filter(None, (rule.meaning, rule.why, rule.fix)):
        assert text.endswith(".")


EXAMPLES = [(rule, example) for rule in RULES for example in rule.example]


@each("rule, example", EXAMPLES)
@each("shape", ["[{}] {}", "[03/04/2031-05:06:07] [{}] [TRT] {}", "{1}"])
def test_no_filter_hides_a_rule(rule, example, shape):
    if rule.levels and rule.severity not in rule.levels:
        pytest.skip("the rule asks for a severity")
    line = shape.format(LETTERS[rule.severity], example)
    if rule.name == "gpu_layer":
        line = "[I] [DlaLayer] {x}\n" + line
    if shape == "{1}" and rule.levels and "" not in rule.levels:
        return
    (event,) = events(line)
    assert event.fields["rule"] == rule.name
    assert event.severity == rule.severity
    assert json.loads(json.dumps(event.to_document()))["category"] == rule.category


SCALES = "Assertion scales.size() == 1 failed."


@each(
    "text, rule",
    [
        (f"[pluginV2Runner.cpp::getInputHostScale::7] Error Code 2: Internal Error ({SCALES})",
         "plugin_scales"),
        (f"IBuilder::build: Error Code 2: Internal Error ({SCALES} In getInputHostScale at "
         "/src/pluginV2Runner.cpp:7)", "plugin_scales"),
        ("../rt/pluginV2Runner.cpp (7) - Assertion Error in getInputHostScale: 0 (scales.size() == 1)",
         "plugin_scales"),
        (f"[poolingRunner.cpp::getInputHostScale::7] Error Code 2: Internal Error ({SCALES})",
         "assertion_internal"),
        (f"[pluginV2Runner.cpp::enqueue::7] Error Code 2: Internal Error ({SCALES})",
         "assertion_internal"),
        (SCALES, "assertion_internal"),
        ("Assertion min_ <= max_ failed.", "range_is_nan"),
        ("../builder/range.cpp (7) - Assertion Error in setRange: 0 (min_ <= max_)", "range_is_nan"),
        ("[a.cpp::b::3] Error Code 2: Internal Error (Assertion c.d failed. )", "assertion_internal"),
    ],
)  # fmt: skip
def test_a_known_failure_is_one_of_its_place(text, rule):
    assert one(f"[E] {text}").fields["rule"] == rule


def test_of_an_assertion_that_nothing_explains_the_subject_is_guessed():
    event = one("[E] Error Code 2: Internal Error (Assertion c failed. no kernel for layer mix_3)")
    assert (event.fields["rule"], event.subject) == ("assertion_internal", "mix_3")


def test_rule_names_are_unique():
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_four_stylised_lines():
    found = events(
        "[TensorRT] WARNING: Detected uncalibrated layer: ln_7\n"
        "[TensorRT] INFO: Tactic #3 for stem_1x1 failed due to insufficient workspace\n"
        "[TensorRT] INFO: Fallback triggered for prelu_2\n"
        "[TensorRT] WARNING: Calibration range fallback defaulted to (min=-2.5, max=2.5)"
    )
    assert [(e.category, e.subject) for e in found] == [
        ("uncalibrated", "ln_7"),
        ("tactic_failed", "stem_1x1"),
        ("fallback", "prelu_2"),
        ("range", None),
    ]
    assert found[3].fields["high"] == 2.5


def test_fields_are_typed_and_flattened():
    event = one("[W] Tactic Device request: 900MB Available: 512MB. Device memory is insufficient")
    document = event.to_document()
    assert document["requested_mb"] == 900
    assert document["available_mb"] == 512
    assert document["line"] == 1


@each(
    "text",
    [
        "[E] [TRT] 10: Could not find any implementation for node PWN(a) + b.",
        "[E] Error[10]: Error Code: 10: Could not find any implementation for node PWN(a) + b.",
        "[E] IBuilder::build: Error Code 10: Internal Error (Could not find any implementation for "
        "node PWN(a) + b. In computeCosts at /src/optimizer.cpp:42)",
        "[E] [TRT] 10: [optimizer.cpp::computeCosts::1] Error Code 10: Internal Error (Could not "
        "find any implementation for node PWN(a) + b due to insufficient workspace. See verbose "
        "log for requested sizes.)",
    ],
)
def test_every_wrapper_of_an_error_comes_off(text):
    event = one(text)
    assert (event.category, event.subject) == ("no_implementation", "PWN(a) + b")
    assert event.fields["code"] == 10


@each(
    "start, end, category",
    [
        ("", "insuficient memory on requested size of 5 detected for tactic 2.", "skipped"),
        (
            "UNSUPPORTED_STATE",
            "oom error on requested size of 5 detected for tactic 0x2.",
            "skipped",
        ),
        ("UNSUPPORTED_STATE: ", "Myelin error: no such thing", "skipped"),
        ("9: ", "exception oh no", "failed"),
    ],
)
def test_spellings_of_a_skipped_tactic(start, end, category):
    assert one(f"[W] {start}Skipping tactic 1 due to {end}").category == f"tactic_{category}"


@each(
    "text, category, subject",
    [
        (
            "[TensorRT] ERROR: ../builder/x.cpp (42) - Misc Error in createScales: -1 (Could not find "
            "scales for tensor a_1.)",
            "uncalibrated",
            "a_1",
        ),
        (
            "[TensorRT] ERROR: ../builder/t.cpp (7) - Assertion Error in computeCosts: 0 (Internal "
            "error: could not find any implementation for node a + b, try increasing the workspace "
            "size with IBuilder::setMaxWorkspaceSize())",
            "no_implementation",
            "a + b",
        ),
        ("[E] t.cpp (7) - OutOfMemory Error in computeCosts: 0", "no_implementation", None),
        ("[E] 4: 9 has an odd shape", "error", None),
        ("[W] [TRT] 497: Dynamic range should be symmetric for better accuracy.", "range", "497"),
        ("[E] Error[3]: dq.7: only activation types allowed.", "error", "dq.7"),
        ("[E] f: Error Code 4: API Usage Error (onnx::Mul_3: bad type)", "error", "onnx::Mul_3"),
        ("[E] Something: bad", "error", None),
        (
            "[V] Assigning tensor scales: a using b scale and zero-point Quantization(x)",
            "range",
            "a",
        ),
        ("[E] f: Error Code 3: API Usage Error (Wrong. kA cannot be set if kB is set.)", "?", "kA"),
        ("[V] Layer: c Weights: 0 HostPersistent: 1 DevicePersistent: 2", "memory", "c"),
        ("Internal Error: MyelinCheckException: x.cpp:1: CHECK(0) failed.", "error", None),
    ],
)
def test_forms_of_many_versions(text, category, subject):
    text = text.replace("kA", "kPREFER_PRECISION_CONSTRAINTS")
    text = text.replace("kB", "kOBEY_PRECISION_CONSTRAINTS")
    subject = "kPREFER_PRECISION_CONSTRAINTS" if subject == "kA" else subject
    category = "precision_constraint" if category == "?" else category
    assert facts(text) == [(1, category, subject)]


def test_unknown_errors_and_warnings_are_kept_and_nothing_else():
    found = events("[E] Odd thing\n[W] Odd 'x'\n[I] Odd\n[V] Odd\nOdd\n[W] \n[E] node 'n1' is odd")
    assert [(e.line, e.category, e.subject) for e in found] == [
        (1, "error", None),
        (2, "other_warning", None),
        (7, "error", "n1"),
    ]
    assert "rule" not in found[0].fields


def test_lines_behind_an_error_belong_to_it_but_messages_of_their_own():
    found = events("[E] Parser said:\nnode: x\n[6] broken\n\nlater\n[E] Next")
    assert [e.message for e in found] == ["Parser said:\nnode: x\n[6] broken", "Next"]
    text = "[E] Bad\nMissing scale and zero-point for tensor t, expect fall back"
    assert facts(text) == [(1, "error", None), (2, "uncalibrated", "t")]


NO_KERNEL = "Could not find any implementation for node c3."


@each(
    "text, lines",
    [
        (f"[E] {NO_KERNEL} / [W] Odd", [1, 1]),
        (f"[TRT] [W] Odd thing) [03/04/2031-05:06:07] [E] {NO_KERNEL}", [1]),
        (f"> [E] IBuilder::b: Error Code 10: Internal Error\n> ({NO_KERNEL})", [1]),
        (f"IBuilder::b: Error Code 10: Internal Error\n({NO_KERNEL})", [1]),
        (f"[2031-03-04 05:06:07 ERROR] \n{NO_KERNEL}", [1]),
        (f"mine > IBuilder::b: Error Code 10: Internal Error ({NO_KERNEL})`. Why (again)?", [1]),
        (f"[E] {NO_KERNEL}\n```\nwords", [1]),
        (f"[E] {NO_KERNEL}\nTensorRT: export failure 2.5s: no engine", [1, 2]),
    ],
)
def test_lines_that_were_joined_or_broken_are_read_as_they_were(text, lines):
    found = events(text)
    assert [event.line for event in found] == lines
    assert "c3" in [event.subject for event in found]
    assert "```" not in found[0].message


def test_a_failure_printed_twice_is_marked_and_one_that_happens_twice_is_not():
    first, second = events(
        "[E] 10: Could not find any implementation for node a.\n"
        "[E] 10: [o.cpp::f::1] Error Code 10: Internal Error (Could not find any implementation "
        "for node a.)"
    )
    assert "repeats" not in first.fields
    assert second.fields["repeats"] == 1
    assert summarize([first, second])["counts"] == {"no_implementation": 1}
    line = "[E] 2: [a.cpp::f::1] Error Code 2: Internal Error (Assertion x failed. )"
    assert all("repeats" not in e.fields for e in events(f"{line}\n{line}"))


NEW_HEADING = "   Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer"
OLD_HEADING = "  Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %"


@pytest.mark.parametrize(
    ("heading", "row"),
    [
        (NEW_HEADING, "  1.5  0.25  0.2  7.5  a + b  [c]"),
        (OLD_HEADING, "  a + b  [c]  1.5  0.25  0.2  7.5"),
    ],
)
def test_profile_tables_of_both_layouts(heading, row):
    found = events(
        f"[I] === Profile (9 iterations ) ===\n[I] {heading}\n[I] {row}\n[I] \n[I] 1 2 3 4 5"
    )
    assert [(e.category, e.subject, e.fields["total_ms"]) for e in found] == [
        ("timing", "a + b  [c]", 1.5)
    ]
    assert found[0].fields["percent"] == 7.5


def test_gpu_layers_are_a_fallback_only_beside_an_accelerator():
    gpu = "[I] [TRT] [GpuLayer] POOLING: p1"
    assert facts(gpu) == []
    assert facts(f"[I] [TRT] [DlaLayer] {{x}}\n{gpu}") == [(2, "fallback", "p1")]


def test_copies_in_a_listing_are_events_and_other_layers_are_not():
    text = (
        "[V] Engine Layer Information:\n"
        "Layer(CaskConvolution): c, Tactic: 0x1, x (Int8[1]) -> y (Int8[1])\n"
        "Layer(Reformat): Q_1, Tactic: 0x1, x (Float[1]) -> y (Int8[1])\n"
        "Layer(NoOp): Reformatting CopyNode for Input Tensor 0 to c + d, Tactic: 0x0, x (Int8[1]) "
        "-> y (Int8[1])"
    )
    assert facts(text) == [
        (3, "reformat", "Q_1"),
        (4, "reformat", "Reformatting CopyNode for Input Tensor 0 to c + d"),
    ]


def layer_line(name):
    return (
        f"Name: {name}_myl0_1, LayerType: correlation, Inputs: [ {{ Name: x, Dimensions: [1], "
        "Strides: [1], StrideOrder: [0], Datatype: Int8, Format: (L) f }], Constants: [], "
        f"Outputs: [], TacticName: , StreamId: 0, Metadata: [ONNX Layer: {name}]\x1f[ONNX Layer: q]"
    )


@pytest.mark.parametrize("prefix", ["[V] ", "[03/04/2031-05:06:07] [TRT] [V] "])
def test_the_last_listing_is_kept_whole(tmp_path, prefix):
    names = ["c1", "two\nlines", "ESC\x1b[0m", "c, [2]"]
    text = f"{prefix}Layers:\n{layer_line('old')}\n{prefix}Next build\n{prefix}Layers:\n"
    text += "\n".join(map(layer_line, names))
    text += f"\n\nI/O Tensors:\n Name: x, IOMode: Input\n\n{prefix}Done\n[W] End\n"
    path = tmp_path / "build.log"
    path.write_bytes(text.encode())
    parsed = parse_file(path)
    assert [layer.nodes[0] for layer in parsed.layers] == names
    assert [layer.name for layer in parsed.layers] == [f"{name}_myl0_1" for name in names]
    assert parsed.lines == text.count("\n")
    assert [(e.line, e.message) for e in parsed.events] == [(parsed.lines, "End")]


PIECES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([example.encode() for _, example in EXAMPLES]),
    st.sampled_from(
        [b"[E] ", b"[W] [TRT] ", b"[V] ", b"\n", b"\r\n", b"\x1b[0m", b"Layers:\n", b"Name: a, "]
    ),
    st.sampled_from([layer_line("n").encode(), b"Layer(K): a", b"Time(ms) Avg.(ms) Time(%) Layer"]),
)


@examples(80)
@given(st.lists(PIECES, max_size=30).map(b"".join))
def test_no_bytes_make_it_raise_and_both_readers_agree(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data)
    try:
        parsed = parse_file(path)
    except InputError:  # it is no text
        return
    lines = b"".join(portions_of_file(path)).split(b"\n")[:-1]
    assert parsed.events == tuple(parse_lines(lines))
    for event in parsed.events:
        json.dumps(event.to_document())
    json.dumps(summarize(parsed.events))


@given(st.text(max_size=200))
def test_no_text_makes_it_raise(text):
    list(parse_lines([text, "[E] " + text, "[W] Layers:", text]))


def test_lines_may_be_given_as_text_bytes_or_whole_messages():
    line = "[W] Tensor a is uniformly zero."
    for lines in ([line], [line.encode()], [line + "\n"], [f"[V] x\n{line}\n"]):
        assert [e.subject for e in parse_lines(lines)] == ["a"]


def test_events_come_while_lines_come():
    def endless():
        while True:
            yield "[W] Tensor a is uniformly zero."

    stream = parse_lines(endless())
    assert next(stream).line == 1
    assert next(stream).line == 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_understood(tmp_path, encoding):
    path = tmp_path / "build.log"
    path.write_text("[W] Tensor ä is uniformly zero.\n[V] x\n", encoding=encoding)
    parsed = parse_file(path)
    assert [e.subject for e in parsed.events] == ["ä"]
    assert parsed.lines == 2


def test_line_numbers_hold_across_blocks(tmp_path):
    path = tmp_path / "build.log"
    quiet = "[V] [TRT] Running: SomeFusion on node\n" * 40_000
    path.write_text(f"{quiet}[W] one\n{quiet}[W] two")
    parsed = parse_file(path)
    assert [e.line for e in parsed.events] == [40_001, 80_002]
    assert parsed.lines == 80_002


@pytest.mark.parametrize(
    "line",
    [
        "[E] " + "x" * 5_000_000,
        "[W] Missing scale and zero-point for tensor " * 50_000,
        "Name: a" + ", LayerType: k, Inputs: [ { Name: x" * 50_000,
        "Layer(K): a, Tactic: 0x1, " + "x (Float[1]), " * 100_000,
        "PWN(" * 500_000,
        "\x1b[" * 500_000,
    ],
    ids=lambda line: line[:20],
)
def test_a_very_long_line_is_cut(tmp_path, line):
    path = tmp_path / "build.log"
    path.write_text(f"[V] Layers:\n{line}\n[W] End\n")
    parsed = parse_file(path)
    assert parsed.events[-1].message == "End"
    assert all(len(e.message) < 10_000 for e in parsed.events)


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path, name):
    with fails(InputError, str(tmp_path / name)):
        parse_file(tmp_path / name)


@each("order", [(0, 512), (512, 0)])
def test_no_free_memory_at_all_is_the_least_there_was(order):
    line = "[W] Tactic Device request: 900MB Available: {}MB. Device memory is insufficient."
    summary = summarize(parse_lines([line.format(size) for size in order]))
    assert summary["tactics"].endswith("largest request 900 MiB, available 0 MiB")


def test_a_summary_collapses_the_flood():
    skip = "[W] Skipping tactic {0} due to insufficient memory on requested size of "
    skip += "{0} detected for tactic 0x{0}."
    lines = [skip.format(100 + i) for i in range(50)]
    lines += ["[W] Tactic Device request: 4537MB Available: 1536MB. Device memory is insufficient."]
    lines += [f"[W] Odd thing {i}" for i in range(30)] + ["[I] Engine built in 2.5 sec."]
    summary = summarize(parse_lines(lines))
    assert summary["tactics"] == (
        "50 tactics skipped, 0 failed, largest request 4537 MiB, available 1536 MiB"
    )
    assert [(f["rule"], f["count"]) for f in summary["findings"]] == [
        ("tactic_no_memory", 50),
        ("memory_device_request", 1),
        (None, 30),
    ]
    assert summary["findings"][0]["distinct_subjects"] == 50
    assert summary["counts"] == {
        "tactic_skipped": 50,
        "memory": 1,
        "timing": 1,
        "other_warning": 30,
    }
    assert summary["is_failed"] is False
    json.dumps(summary)


def test_a_summary_tells_a_failed_build_and_puts_its_cause_first():
    summary = summarize(
        events(
            "[W] Odd\n[E] 10: Could not find any implementation for node a.\n[E] Engine set up failed"
        )
    )
    assert summary["is_failed"] is True
    assert summary["findings"][0]["rule"] == "no_implementation"
    assert summary["severities"] == {"error": 2, "warning": 1}

import json
import signal
import subprocess
import sys

import pytest

from tests.fixtures.commands import shows
from trtcal.backends.child import watching
from trtcal.cli.main import run_command
from trtcal.evidence.layers.listing import Listing
from trtcal.evidence.log.reader import Reader

LOG = (
    "[I] Starting\n"
    "[W] [TRT] Missing scale and zero-point for tensor a/b, expect fall back to non-int8\n"
    "[W] [TRT] Missing scale and zero-point for tensor c, expect fall back to non-int8\n"
    "[W] [TRT] Odd [red]thing[/red] \x1b]0;title\x07\n"
    "[E] 10: Could not find any implementation for node PWN(x).\n"
    "[I] Engine deserialized in 2.5 sec.\n"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.log").write_text(LOG)
    (tmp_path / "two.log").write_text("[V] quiet\n")
    return tmp_path


def run(capsys, *arguments):
    status = run_command(["log", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def start(*arguments, **options):
    # Tests that a shell runs in the background would hand on that Ctrl-C is ignored.
    main = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    main += "from trtcal.cli.main import main; main()"
    command = [sys.executable, "-c", main, "log", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_text_says_the_worst_first_and_is_readable_at_100_columns(place, capsys):
    status, out, _ = run(capsys, "one.log")
    assert status == 1
    lines = out.splitlines()
    assert lines[0].startswith("one.log: the build failed; 6 lines, ")
    assert lines[0].endswith(", 3 kinds of findings")
    assert lines[2] == "ERROR no_implementation: once, on line 5"
    assert "WARNING missing_scale (uncalibrated): 2 times about 2, first on line 2" in lines
    assert "  in: a/b, c" in lines
    assert any(line.startswith("  do: Put Q/DQ on the tensor") for line in lines)
    assert max(map(len, lines)) <= 100
    assert "[red]thing[/red] 0;title\\x07" in out
    assert "\x1b" not in out
    assert lines[-1] == "1 timing"


BUILT = (
    "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=net.onnx --int8\n"
    "[I] Selected Device: Imaginary GTX 1\n"
    "[I] [TRT] [MemUsageChange] Init CUDA: CPU +1, GPU +2, now: CPU 300, GPU 4000 (MiB)\n"
    "[I] [TRT] [MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 20 MiB, "
    "GPU 1030 MiB\n"
    "[V] [TRT] Engine generation completed in 11.25 seconds.\n"
    "[V] [TRT] Engine Layer Information:\n"
    "Layer(CaskConvolution): first, Tactic: 0x1, x (Int8[1,3]) -> a (Int8[1,3])\n"
    "Layer(CaskConvolution): second, Tactic: 0x2, a (Int8[1,3]) -> b (Float[1,3])\n"
    "Layer(CaskConvolution): third, Tactic: 0x3, b (Float[1,3]) -> y (Float[1,3])\n"
    "[I] Engine built in 12.5 sec.\n"
    "&&&& PASSED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=net.onnx --int8\n"
)


def summary(capsys, *arguments):
    _, out, _ = run(capsys, *arguments, "--json")
    return json.loads(out)["summary"]


def test_the_summary_says_what_was_built_with_what_and_how_long_it_took(place, capsys):
    (place / "built.log").write_text(BUILT)
    document = summary(capsys, "built.log")
    facts = ("result", "build_s", "peak_cpu_mib", "peak_gpu_mib", "version", "gpu")
    assert [document[name] for name in facts] == [
        *("built", 12.5, 20, 1030),
        *("8.6.1", "Imaginary GTX 1"),
    ]
    assert document["precisions"] == {"int8": 2, "fp32": 1}
    assert "build" not in document["counts"]
    status, out, err = run(capsys, "built.log")
    assert (status, err) == (0, "")
    assert out.startswith("built.log: an engine was built; 11 lines")
    assert "TensorRT 8.6.1 on Imaginary GTX 1; built in 12.5 s; peak memory CPU 20 MiB" in out
    assert "layers: 2 in INT8, 1 in FP32" in " ".join(out.split())


def test_what_a_log_does_not_say_is_null(place, capsys):
    document = summary(capsys, "two.log")
    assert document["result"] == "unknown"
    assert [document[name] for name in ("build_s", "peak_gpu_mib", "version", "gpu")] == [None] * 4
    assert run(capsys, "two.log")[1].startswith("two.log: the log does not say whether an engine")


FATAL = "[E] 10: Could not find any implementation for node PWN(x).\n"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (FATAL + "[I] Engine built in 2.5 sec.\n", "built"),
        ("[I] Engine built in 2.5 sec.\n" + FATAL, "failed"),
        ("[I] Engine built in 2.5 sec.\n" + FATAL + "[I] Engine built in 2.5 sec.\n", "built"),
        ("[I] Engine built in 2.5 sec.\n&&&& FAILED TensorRT.trtexec # trtexec\n", "failed"),
        ("[I] Engine loaded in 2.5 sec.\n[W] Odd\n", "unknown"),
        ("[V] Layers:\nLayer(Conv): a, Tactic: 0x1, x (Int8[1]) -> y (Int8[1])\n", "built"),
    ],
)
def test_the_last_line_that_says_how_a_build_ended_decides(place, capsys, text, result):
    (place / "some.log").write_text(text)
    assert summary(capsys, "some.log")["result"] == result


def test_a_failed_build_is_status_1_unless_asked_otherwise(place, capsys):
    status, out, err = run(capsys, "one.log", "--json")
    assert (status, json.loads(out)["summary"]["result"]) == (1, "failed")
    shows(err.splitlines()[0], "the build failed", "one.log", "PWN(x)")
    shows(err, "higher precision")
    assert run(capsys, "one.log", "--exit-zero")[::2] == (0, "")
    assert run(capsys, "two.log", "one.log", "-q")[0] == 1


@pytest.mark.skipif(not hasattr(Reader(Listing()), "recognised"), reason="counts no lines")
@pytest.mark.parametrize(
    ("text", "warned", "counts"),
    [
        ("dear diary\n" * 9, True, "9 lines, 0 recognized, no known message"),
        ("dear diary\n" * 9 + "[W] Odd\n", True, "10 lines, 1 recognized, 1 kind of finding"),
        ("dear diary\n" * 3 + "[V] quiet\n", False, "4 lines, 1 recognized, no findings"),
        ("", True, "0 lines, 0 recognized, no known message"),
    ],
)
def test_what_is_hardly_a_log_is_warned_of(place, capsys, text, warned, counts):
    (place / "some.log").write_text(text)
    status, out, err = run(capsys, "some.log")
    assert status == 0
    assert counts in out
    assert ("this may be no build log" in err) is warned


def test_json_is_one_object_for_one_file_and_one_a_line_for_several(place, capsys):
    _, out, _ = run(capsys, "one.log", "--json")
    document = json.loads(out)
    assert [event["line"] for event in document["events"]] == [2, 3, 4, 5, 6]
    assert (document["schema_version"], document["lines"]) == (1, 6)
    assert set(document) >= {"source", "summary", "layers", "digest"}
    _, out, _ = run(capsys, "one.log", "two.log", "--json")
    first, second = map(json.loads, out.splitlines())
    assert first == document
    assert (second["source"], second["events"]) == ("two.log", [])


def test_of_a_folder_the_logs_of_its_builds_are_read(place, capsys):
    logs = ("a/sm89/build.log", "b/failed-build.log")
    for name in logs:
        (place / "run" / name).parent.mkdir(parents=True)
        (place / "run" / name).write_text(LOG)
    _, out, _ = run(capsys, "run", "--json")
    assert [json.loads(line)["source"] for line in out.splitlines()] == [f"run/{n}" for n in logs]
    _, out, _ = run(capsys, "run/a/sm89", "--json")
    assert json.loads(out)["source"] == "run/a/sm89/build.log"
    (place / "empty").mkdir()
    status, _, err = run(capsys, "empty")
    assert status == 2
    assert "empty has no build.log, which a build keeps" in err
    assert "build.log" in err


def test_numbers_that_json_has_not_are_null(place, capsys):
    lines = (
        "[V] [TRT] Setting dynamic range for fc/out to [-1e999,1e999]",
        "[I] === Profile (100 iterations ) ===",
        "[I]    Layer   Time (ms)   Avg. Time (ms)   Time %",
        "[I]    conv1         nan              inf     50.0",
    )
    (place / "odd.log").write_text("\n".join(lines) + "\n")
    _, out, _ = run(capsys, "odd.log", "--json")

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    (event, *_) = json.loads(out, parse_constant=refuse)["events"]
    assert (event["low"], event["high"]) == (None, None)


def test_a_file_gets_the_same_json(place, capsys):
    _, out, _ = run(capsys, "one.log", "--json", "-o", "events.json")
    assert (place / "events.json").read_text() == out


@pytest.mark.parametrize(
    "arguments",
    [
        ("none.log", "--json"),
        ("none.log", "-o", "events.json"),
        (".", "--json"),
        ("one.log", "two.log", "-o", "events.json"),
        ("one.log", "two.log", "--follow"),
        ("one.log", "--follow", "-o", "events.json"),
    ],
)
def test_bad_usage_prints_and_leaves_nothing(place, capsys, arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert not (place / "events.json").exists()


def test_standard_input_is_read(place):
    child = start("-", "--json", stdin=subprocess.PIPE)
    out, _ = child.communicate(LOG.encode())
    assert json.loads(out)["source"] == "-"
    assert len(json.loads(out)["events"]) == 5


def test_a_reader_that_goes_away_changes_neither_status_nor_errors(place):
    (place / "long.log").write_text(LOG * 20_000)
    with start("long.log", "--json") as child:
        child.stdout.read(100)
        child.stdout.close()
        assert [line.partition(b":")[0] for line in child.stderr.read().splitlines()] == [
            b"error",
            b"hint",
            b"docs",
        ]
        assert child.wait(600) == 1  # as without a pipe, however soon the reader goes


def test_a_growing_file_is_followed_until_interrupted(place):
    child = start("one.log", "--follow", "--json")
    found = [json.loads(child.stdout.readline()) for _ in range(4)]
    assert [event["category"] for event in found][::3] == ["uncalibrated", "no_implementation"]
    with (place / "one.log").open("a") as file:
        file.write("[W] [TRT] Tensor z is uniformly zero.\n")
    assert json.loads(child.stdout.readline())["subject"] == "z"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=600)
    assert child.returncode == 130
    assert b"last: uncalibrated z" in err
    assert b"Traceback" not in err


def test_following_standard_input_ends_with_it(place):
    child = start("-", "--follow", stdin=subprocess.PIPE)
    out, err = child.communicate(LOG.encode())
    assert child.returncode == 1
    assert b"5: error no_implementation: PWN(x): 10: Could not find" in out
    assert b"2 uncalibrated, 1 without a kernel, 1 warnings" in err


def test_what_a_builder_prints_can_be_watched_while_it_runs(tmp_path):
    from trtcal.backends.child import run_worker

    (tmp_path / "slow_builder.py").write_text(
        "import pathlib, time\n"
        "print('[W] Tensor a is uniformly zero.', flush=True)\n"
        "while not pathlib.Path('seen').exists():\n"
        "    time.sleep(0.01)\n"
        "print('[W] done', flush=True)\n"
    )
    pieces = []

    def watch(data):
        pieces.append(data)
        (tmp_path / "seen").touch()

    with pytest.MonkeyPatch.context() as patch, watching(watch):
        patch.syspath_prepend(tmp_path)
        run_worker("slow_builder", {}, tmp_path, 60)
    assert b"".join(pieces) == (tmp_path / "build.log").read_bytes()
    assert pieces[0].startswith(b"[W] Tensor a")

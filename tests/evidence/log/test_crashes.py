"""What ends a program, what only repeats it, and what was broken into two lines."""

import pytest

from tests.evidence.log.lines import parse_lines
from tests.fixtures.tables import each
from trtcal.evidence.log.reader import ParsedLog


def events(text):
    return list(parse_lines(text.split("\n")))


def facts(text):
    return [(e.line, e.category, e.subject) for e in events(text)]


def is_failed(text):
    return ParsedLog(0, tuple(events(text)), ()).is_failed


@each(
    "line",
    [
        "terminate called after throwing an instance of 'nvinfer1::OddError'",
        "terminate called without an active exception",
        "build: /x/graph.cpp:77: void ir::fold(op_t*, size_t): Assertion `n > 3' failed.",
        r"Assertion failed: plan, file C:\w\net.cpp, line 4",
        "#assertion/src/plugin/mixPlugin.cpp,118",
        "[F] Check failed: output == nullptr",
        "Segmentation fault (core dumped)",
        "Segmentation fault (core dumped) <br/>",
        "./run.sh: line 8:  4321 Segmentation fault      (core dumped) ./build net.onnx",
        "zsh: segmentation fault (core dumped)  ./build",
        "[1]    4321 abort (core dumped)  ./build",
        "Aborted",
        "Killed",
        "./run.sh: line 8:  4321 Killed                  ./build net.onnx",
        "[ 12.5] Out of memory: Killed process 4321 (build) total-vm:9kB",
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 7.0",
        "Fatal Python error: Segmentation fault",
        "[node7:123] Signal: Bus error (7)",
        "Process finished with exit code 139",
        "container exited with code 137",
        "Command '['build', 'x']' died with <Signals.SIGSEGV: 11>.",
        "free(): invalid next size (fast)",
        "*** stack smashing detected ***: terminated",
        "RuntimeError: no engine",
        "AssertionError",
        "my.tools.BuildError: engine is None",
        "onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph: [ONNXRuntimeError] : 10 : X",
        "TypeError: pybind11::init(): factory function returned nullptr",
        "TensorRT: export failure 1.5s: no such thing",
        "[TRT]    device GPU, failed to build CUDA engine",
        "detector | 1       | UNAVAILABLE: Internal: unable to load plan file |",
    ],
)
def test_what_ends_a_program_is_an_error_and_the_build_failed(line):
    (event,) = events(line)
    assert (event.category, event.severity) == ("error", "error")
    assert is_failed(line)


@each(
    "line",
    [
        "Killed layers: 4",
        "aborted early because of patience",
        "Process finished with exit code 0",
        "0 errors: none",
        "Segmentation faults are common in this net",
        "SegmentationModelError = 4",
        "MaxAbsError: 0.0125",
        "RelativeError: 1.5e-3",
        'Run "Killed" again',
    ],
)
def test_words_of_a_crash_in_other_lines_are_none(line):
    assert events(line) == []
    assert not is_failed(line)


def test_the_reason_of_a_crash_is_an_event_of_its_own_unless_it_says_nothing():
    text = "terminate called after throwing an instance of 'std::bad_thing'\n  what():  {}\n"
    text += "Aborted (core dumped)"
    assert [event.line for event in events(text.format("no room"))] == [1, 2, 3]
    (event,) = events(text.format("std::exception"))
    assert event.message.endswith("what():  std::exception\nAborted (core dumped)")


TRACEBACK = (
    "Traceback (most recent call last):\n"
    + '  File "/a/b.py", line 3, in main\n    build()\n' * 11
    + "ValueError: no engine"
)


def test_an_exception_after_the_error_that_ended_the_build_only_repeats_it():
    fatal = "[TRT] [E] 10: Could not find any implementation for node mix_1."
    assert facts(f"{fatal}\n{TRACEBACK}") == [(1, "no_implementation", "mix_1")]
    assert facts(f"[TRT] [W] Odd\n{TRACEBACK}")[1:] == [(25, "error", None)]


def test_an_exception_that_python_ignores_fails_no_build():
    text = f"Exception ignored in: <function Engine.__del__ at 0x1>\n{TRACEBACK}"
    (event,) = events(text)
    assert event.severity == "warning"
    assert not is_failed(text)


@each("line, rule", [
        ("[W] [TRT] CUDA initialization failure with error: 35. Please check", "cuda_driver_old"),
        ("[E] createInferBuilder: Error Code 6: API Usage Error (CUDA initialization failure with "
         "error: 100. Please check your CUDA installation)", "cuda_no_device"),
        ("Cuda failure: 803", "cuda_driver_mismatch"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device",
         "cuda_architecture"),
        ("[TRT]    CUDA initialization failure with error: 222. Please check", "cuda_architecture"),
        ("[E] [TRT] ../rtSafe/safeRuntime.cpp (25) - Cuda Error in allocate: 2 (out of memory)",
         "out_of_memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
         "out_of_memory"),
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", "illegal_access"),
        ("Cuda failure: 46", "cuda_failed"),
    ])  # fmt: skip
def test_errors_of_cuda_say_what_their_number_means(line, rule):
    (event,) = events(line)
    assert (event.category, event.fields["rule"]) == ("error", rule)


@each("text, category, subject", [
        ("[W] [TRT] Missing scale and zero-point for tensor\nstem_9, expect fall back to x",
         "uncalibrated", "stem_9"),
        ("[W] [TRT] Missing scale and zero-point for tensor stem_9, expect\nfall back to non-int8",
         "uncalibrated", "stem_9"),
        ("[E] Error[10]: Could not find any implementation for node {ForeignNode[a_1...\nb_2]}.",
         "no_implementation", "{ForeignNode[a_1... b_2]}"),
        ("[E] 10: [optimizer.cpp::costs::9] Error Code 10: Internal\nError (Could not find any "
         "implementation for node mix_1.)", "no_implementation", "mix_1"),
        ("[W] [TRT] Skipping tac\ntic 4 due to Myelin error: no", "tactic_skipped", "4"),
    ])  # fmt: skip
def test_a_message_broken_into_two_lines_is_joined(text, category, subject):
    assert facts(text) == [(1, category, subject)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[W] Unused Input: mask\nof no use", [(1, "other_warning", "mask")]),
        ("[E] Odd thing\nof no use", [(1, "error", None)]),
        ("[E] Error[10]: Could not find any implementation for node a_1.\nof course",
         [(1, "no_implementation", "a_1")]),
    ],
)  # fmt: skip
def test_a_whole_message_is_not_joined_with_what_follows(text, expected):
    assert facts(text) == expected

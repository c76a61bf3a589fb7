from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tables import each
from trtcal.evidence.log.lines import split_line

SHAPES = [
    ("[03/04/2031-05:06:07] [TRT] [W] {}", "warning"),
    ("[03/04/2031-05:06:07] [E] [TRT] {}", "error"),
    ("[03/04/2031-05:06:07] [I] {}", "info"),
    ("[03/04/2031-05:06:07] [03/04/2031-05:06:07] [W] [TRT] {}", "warning"),
    ("[TensorRT] WARNING: {}", "warning"),
    ("[TensorRT] INTERNAL_ERROR: {}", "error"),
    ("[V] [TRT] {}", "verbose"),
    ("\t[W] [TRT] {}", "warning"),
    ("    [I] {}", "info"),
    ("[I]     {}", "info"),
    ("[!] {}", "error"),
    ("[V] {}\r", "verbose"),
    ("[Severity.VERBOSE] {}", "verbose"),
    ("WARNING: [TRT]: {}", "warning"),
    ("# INFO: [TRT]: {}", "info"),
    ("# [W] [TRT] {}", "warning"),
    (
        "0:00:02.345678901  4321 0x55aabbccdd INFO    nvinfer file.cpp:12:logger:<object-1> "
        "NvDsInferContext[UID 2]: Warning from Context::build() <context.cpp:34> [UID = 2]: {}",
        "warning",
    ),
    ("WARNING: [Torch-TensorRT] - {}", "warning"),
    ("WARNING: [Torch-TensorRT TorchScript Conversion Context] - {}", "warning"),
    ("WARNING:torch_tensorrt [TensorRT Conversion Context]:{}", "warning"),
    ("DEBUG: [TRTorch Conversion Context] - {}", "verbose"),
    (
        "- 2031-03-04 05:06:07.123456789 [W:onnxruntime:Default, provider.h:9 log] "
        "[2031-03-04 05:06:07 WARNING] {}",
        "warning",
    ),
    (
        "\x1b[0;93m2031-03-04 05:06:07.123456789 [E:onnxruntime:, a.cc:1 run] "
        "[2031-03-04 05:06:07   ERROR] {}\x1b[m",
        "error",
    ),
    ("E onnxruntime: [2031-03-04 05:06:07   ERROR] {} [provider.h:84 log]", "error"),
    ("[2031-03-04 05:06:07 UNKNOWN] {}", "verbose"),
    ("2031-03-04 05:06:07.123456: W tensorflow/a/trt_logger.cc:40] DefaultLogger {}", "warning"),
    ("2031-03-04 05:06:07,123 - [modelopt][onnx] - WARNING - {}", "warning"),
    ("W0304 05:06:07.123456  1234 builder.cc:12] {}", "warning"),
    ("[TRT][ERROR]{}", "error"),
    ("[TRT][Debug]{}", "verbose"),
    ("[TRT-LLM] [E] {}", "error"),
    ("[trt log]: {}", None),
    ("[TRT]    {}", None),
    ("WARN TRT: {}", "warning"),
    ("WARNING: {}", "warning"),
    ("[I]     [03/04/2031-05:06:07] [W] [TRT] {}", "warning"),
    ("2031-03-04 05:06:07,123 - my.module - WARNING - {}", "warning"),
    ("2031-03-04 05:06:07 WARNING mod:12 - {}", "warning"),
    ("2031-03-04 05:06:07.123 | WARNING  | mod.build:main:42 - {}", "warning"),
    ("[2031-03-04 05:06:07,123][mod][WARNING] - {}", "warning"),
    ("WARNING  mod.build:file.py:12 {}", "warning"),
    ("   TRT: {}        utils.cpp:253", None),
    ("W tensorflow/a/trt_logger.cc:40] TF-TRT Warning: DefaultLogger {}", "warning"),
    ("builder-1  | [03/04/2031-05:06:07] [TRT] [W] {}", "warning"),
    ("Mar  4 05:06:07 host app[12]: [W] [TRT] {}", "warning"),
    ("2031-03-04T05:06:07Z app[12]: [TRT] [W] {}", "warning"),
    ("[1,0]<stderr>:[03/04/2031-05:06:07] [TRT] [E] {}", "error"),
    (" 45%|##  | 9/20 [00:01<00:02][03/04/2031-05:06:07] [TRT] [W] {}", "warning"),
    ("\x1b[2A\x1b[0G\x1b[2K[W] {}", "warning"),
    (" 10%|#  |\r 20%|## |\r[E] {}", "error"),
    ("{}", None),
]
MESSAGES = [
    "Missing scale and zero-point for tensor x",
    "[MemUsageChange] Init: CPU +1, GPU +2",
    "10: Could not find any implementation for node x.",
    "- 3 weights are affected by this issue: y",
]


@each("message", MESSAGES)
@each("shape, severity", SHAPES)
def test_every_prefix_comes_off(shape, severity, message):
    assert split_line(shape.format(message))[:2] == (severity, message)


@given(st.text(max_size=300))
def test_no_text_makes_it_raise(text):
    split_line(text)


def test_a_message_in_brackets_stays():
    assert split_line("[MyOwnThing] hello")[:2] == (None, "[MyOwnThing] hello")

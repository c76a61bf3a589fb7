"""Messages of the tools around TensorRT, and of its old versions."""

import pytest

from tests.evidence.log.lines import parse_lines
from tests.fixtures.tables import each
from trtcal.evidence.log.summary import summarize


def facts(text):
    return [(e.category, e.subject) for e in parse_lines(text.split("\n"))]


PROVIDERS = "['CUDAExecutionProvider', 'CPUExecutionProvider']"


@each("line, category, subject", [
        (f"EP Error /o/a.cc:9 void f() Please install x when using {PROVIDERS}", "error", None),
        (f"Falling back to {PROVIDERS} and retrying.", "fallback", None),
        ("2031-03-04 05:06:07.1 [W:onnxruntime:Default, state.cc:5 Create] Failed to create "
         "CUDAExecutionProvider. Require cuDNN", "fallback", "CUDAExecutionProvider"),
        ("/x/session.py:9: UserWarning: Specified provider 'OddExecutionProvider' is not in "
         "available provider names.", "fallback", "OddExecutionProvider"),
        ("2031-03-04 05:06:07.1 [E:onnxruntime:, exec.cc:5 Execute] Non-zero status code returned "
         "while running Kernel_1 node. Name:'Provider_Kernel_1_0' Status Message: TensorRT EP "
         "failed to create engine from network.", "error", "Provider_Kernel_1_0"),
        ("[TRT]    requested fasted precision for device DLA_1 without providing valid calibrator, "
         "disabling INT8", "fallback", "DLA_1"),
        ("[TRT]    poseNet -- failed to initialize.", "error", None),
        ("[TRT]    [MemUsageChange] Init CUDA: CPU +6, GPU +0, now: CPU 24, GPU 0 (MiB)",
         "memory", None),
        ("[W] Validation failed for DLA layer: /b/Reshape_3. Switching to GPU fallback.",
         "fallback", "/b/Reshape_3"),
        ("[W] Splitting DLA subgraph at: /b/R because DLA validation failed for this layer.",
         "fallback", "/b/R"),
        ("[W] /m/Cat_4: DLA only supports concatenation on the C dimension.", "fallback",
         "/m/Cat_4"),
        ("[W] This version of DLA does not support reshape layers directly connected to Slice",
         "fallback", None),
        ("ERROR: ../nvdsinfer/nvdsinfer_func_utils.cpp:33 [TRT]: 3: getPluginCreator could not "
         "find plugin: MixUp_TRT version: 1", "error", "MixUp_TRT"),
        ('2031-03-04T05:06:07Z E 34 model.cc:4] "odd state"', "error", None),
        ("[2031-03-04 05:06:07.457] [mmthing] [error] [model.cpp:95] odd", "error", None),
        ("ERROR: [Torch-TensorRT - Debug Build] - Unsupported operator: aten::odd.dim(Tensor self)",
         "error", "aten::odd.dim"),
        ("** ERROR: <main:12>: Failed to set pipeline", "error", None),
        ("W0304 logging.cc:46] Tensor t_9 is uniformly zero.", "uncalibrated", "t_9"),
        ("E0304 05:06:07.1 47 model.cc:4] odd state", "error", None),
        ('E0304 05:06:07.1 47 model.cc:4] "odd state"', "error", None),
        ("06/12 09:54:07 - mmthing - ERROR - /x/y.py - pop - 80 - `convert` failed", "error",
         "convert"),
        ("2031-03-04 05:06:07,1 - torch_tensorrt [TensorRT Conversion Context] - ERROR - odd",
         "error", None),
        ("WARNING \u26a0\ufe0f TensorRT requires a GPU", "other_warning", None),
        ("[ERROR] [1700000000.123456789] [detector]: odd", "error", None),
        ("2031-03-04 05:06:07.1 ERROR gxf/tensor_rt/inference.cpp@14: TRT ERROR: 3: odd",
         "error", None),
        ("[TensorRT] INTERNAL ERROR: Assertion failed: d.nbDims >= 1", "error", None),
        ("[TRT]    INVALID_STATE: std::exception", "error", None),
        ("x/archive.h(271) - Serialization Error in read:0(Type mismatch)", "error", None),
    ])  # fmt: skip
def test_lines_of_the_tools_around_tensorrt(line, category, subject):
    assert facts(line) == [(category, subject)]


@each("line, category, rule", [
        ("WARNING: FP16 not supported by platform. Using FP32 mode.", "fallback",
         "precision_unsupported"),
        ("[W] [TRT] Layer \u2019/b/R_3\u2019 (SHUFFLE): Unsupported on DLA. Switching it", "fallback",
         "dla_layer_unsupported"),
        ("W0304 05:06:07.1 1 op.cc:5] Engine retrieval for batch size 1 failed. Running native "
         "segment for x/op_0", "fallback", "tensorflow_segment"),
        ("[W] Could not read the header, falling back to filename detection.", "other_warning",
         None),
        ("[W] Not capturable. Falling back to not using CUDA graphs.", "other_warning", None),
        ("worker[3]: killed by signal 11", "error", "signal"),
        ("worker[3]: killed by signal 9", "error", "killed"),
        ("worker[3]: killed by signal 15", "error", "interrupted"),
        ("a: /x.cpp:1: int f(): Assertion `b->platformHasFastInt8()' failed.", "error",
         "platform_assertion"),
        ("[TensorRT] INTERNAL ERROR: Assertion failed: d.nbDims >= 1", "error",
         "scalar_in_calibration"),
        ("[TensorRT] INTERNAL ERROR: Assertion failed: shape.nbDims >= 2", "error",
         "internal_assertion"),
        ("[E] Saving engine to file failed.", "error", "engine_not_saved"),
        ("[E] ../builder/a.cpp (1) - Misc Error in getFormatRequirements: -1 (Unable to find valid "
         "implementation for layer c_1)", "no_implementation", "no_valid_implementation"),
        ("[E] Error Code: 9: Skipping tactic 0x0 due to exception [type.cpp:1: t] Could not infer "
         "output types for operation: 3: quantize: a'-(f32[1])", "tactic_failed", "tactic_untyped"),
    ])  # fmt: skip
def test_a_meaning_is_given_only_where_it_is_true(line, category, rule):
    assert [(e.category, e.fields.get("rule")) for e in parse_lines([line])] == [(category, rule)]


@each("line", [
        "/x/motion.py:30: FutureWarning: `cuda.amp.autocast(args...)` is deprecated.",
        "g++ -c -Wno-error=deprecated-declarations net.cpp",
        "Even so, loading all models causes **out of memory**:",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "[node-1] failed to open ",
    ])  # fmt: skip
def test_a_line_of_another_program_is_no_event(line):
    assert facts(line) == []


@each("line, category, subject", [
        ("onnx2trt_utils.cpp:9: Your ONNX model has been generated with INT64 weights, while",
         "other_warning", None),
        ("While parsing node number 7 [Resize]:", "error", None),
        ("**While parsing node number 7 [Resize]:", "error", None),
        ('trt: ModelImporter.cpp:7: While parsing node number 4 [Grid -> "g_out"]:', "error",
         "g_out"),
        ("In node 11 with name: /m/Grid and operator: Grid3D (check): INVALID_NODE: creator",
         "error", "/m/Grid"),
        ("In node 5 (importGrid): UNSUPPORTED_NODE: Assertion failed: x", "error", None),
        ("[8] Assertion failed: inputs.at(1).is_weights()", "error", None),
        ("Unsupported ONNX data type: UINT8 (2)", "error", None),
        ("failed to parse onnx file", "error", None),
        ("min: 1.5 ms (end to end 2.5 ms)", "timing", None),
        ("[I] percentile: 1.5 ms at 99%", "timing", None),
        ("[I] total compute time:3.5 s", "timing", None),
        ("Average over 10 runs is 2.5 ms (host walltime is 3.5 ms, 99% percentile time is 4).",
         "timing", None),
        ("[W] Missing dynamic range for tensor b_1 copy, expect fall back to non-int8",
         "uncalibrated", "b_1 copy"),
        ("[V] (foreignNode) [pass.cpp:3: run_passes] Exceeded mem budget of 64. Need 128",
         "memory", None),
        ("[E] Unknown option: --quick 1", "error", "--quick"),
        ("[W] --fast is deprecated and will be removed. Use --best instead.", "deprecated",
         "--fast"),
        ("[E] [cache.cpp::validate::9] Error Code 4: API Usage Error (Timing cache header "
         "mismatch: UUID)", "error", None),
        ("[W] Some initializers contain values smaller than smallest fp16 value, they change",
         "weights_range", None),
        ("[E] 3: (Unnamed Layer* 2) [Convolution]: bias weights are of type Int32", "error",
         "(Unnamed Layer* 2) [Convolution]"),
        ("[E] Tensor x:0 cannot be both input and output", "error", "x:0"),
        ("[W] e/net.plan: Could not find 'step' in shape dict", "other_warning", "e/net.plan"),
        ("[W] opt is broadcasted to min for tensor pixels", "other_warning", "pixels"),
        ("[E] Parser: Validator error: net/fc/Bias: Unsupported operation", "error", "net/fc/Bias"),
        ("[W] Failed to enqueue batch for TRT engine: Part/TRTEngineOp_8", "other_warning",
         "Part/TRTEngineOp_8"),
        ("[W] 'paint' module is not installed", "other_warning", "paint"),
        ("[E] IBuilder::build: Error Code 10: Internal Error (Could not find any implementation for "
         "node {ForeignNode[a_1...b_2]}.) <br/>",
         "no_implementation", "{ForeignNode[a_1...b_2]}"),
    ])  # fmt: skip
def test_messages_of_the_importer_and_of_old_versions(line, category, subject):
    assert facts(line) == [(category, subject)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[W] [TRT] UNSUPPORTED_STATE: Skipping tactic 0 due to insufficient memory on requested "
         "size of 524288 detected for tactic 0x1.", "largest request 0 MiB"),
        ("[W] [TRT] UNSUPPORTED_STATESkipping tactic 0 due to insufficient memory on requested "
         "size of 9000 detected for tactic 0x1.", "largest request 9000 MiB"),
        ("[W] [TRT] Skipping tactic 3 due to insuficient memory on requested size of 900 detected "
         "for tactic 4.", "largest request 900 MiB"),
    ],
)  # fmt: skip
def test_sizes_have_the_unit_of_their_version(line, text):
    tactics = summarize(parse_lines([line]))["tactics"]
    assert text in tactics


HARMLESS = ["head.bias", "/m/Shape_3_output_0", "(Unnamed Layer* 3) [Shape]_output", "output0"]
HARMLESS += ["logits", "/n/ArgMax_output_0", "(Unnamed Layer* 3) [Constant]_output"]
COSTLY = ["stem_1", "/m/conv/Conv_output_0", "biased/Add_output_0", "onnx::Conv_12", "outputs/x"]


@each("name", HARMLESS + COSTLY)
def test_a_scale_that_no_layer_needs_is_harmless(name):
    line = f"[W] Missing scale and zero-point for tensor {name}, expect fall back to x"
    (event,) = parse_lines([line])
    assert event.subject == name
    assert ("harmless" in event.tags) == (name in HARMLESS)


def test_the_costly_findings_come_first():
    names = ["a.bias", "b.bias", "c_1"]
    lines = [
        f"[W] Missing scale and zero-point for tensor {name}, expect fall back to x"
        for name in names
    ]
    rules = [one["rule"] for one in summarize(parse_lines(lines))["findings"]]
    assert rules == ["missing_scale", "missing_scale_harmless"]

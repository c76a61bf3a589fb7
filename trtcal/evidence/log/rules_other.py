"""Messages about the rest: errors, warnings and deprecations worth more than their text."""

from __future__ import annotations

from trtcal.evidence.log.rules import Rule, table

PARSE = "The ONNX parser cannot take this node."
PARSE_FIX = "Response at the messages beside it; replace the operator, or give a plug-in for it."
INT64 = "Make sure that the program binds a 64-bit buffer."
SHAPES = "Give minimum, optimum and maximum shapes for this input."
QDQ = "The model's Q/DQ nodes break a rule of TensorRT."
READ_ON = "Read the message, then the lines before it: the first error is mostly the cause."

ERRORS = table(
    "error",
    Rule(
        "parser_node",
        pattern=r'^While parsing node number (?P<number>\d{1,9}) \[(?P<op>\w{1,80}) -> "'
        r'(?P<subject>[^"]+)"',
        example='While parsing node number 3 [Einsum -> "mixed_out"]:',
        meaning=PARSE,
        fix=PARSE_FIX,
    ),
    Rule(
        "parser_place",
        needle=" In function ",
        pattern=r"^(?:ERROR: )?(?P<where>[\w./]{1,120}:\d{1,6}) In function (?P<function>\w{1,120})",
        example="ModelImporter.cpp:9: ERROR: importers.cpp:77 In function importThing:",
        meaning=PARSE,
        fix=PARSE_FIX,
    ),
    Rule(
        "zero_point",
        needle="zero point",
        pattern=r"Non-zero zero point is not supported|only supports symmetric quantization"
        r"|zero point for the QuantizeLinear",
        example="TensorRT only supports symmetric quantization. The zero point for the "
        "QuantizeLinear operator must be all zeros.",
        meaning=QDQ + " Its zero point is not zero.",
        fix="Quantize symmetrically: zero point 0, type INT8.",
        levels=("error", "warning"),
    ),
    Rule(
        "scale_sign",
        needle="Scale coefficients must all be positive",
        pattern=r"Scale coefficients must all be positive",
        example="Assertion failed: Scale coefficients must all be positive",
        meaning=QDQ + " A scale is zero, negative or not a number.",
        fix="Give every scale a small positive floor.",
    ),
    Rule(
        "plugin_format",
        needle=": could not find any supported formats",
        pattern=r"^(?P<subject>.+?): could not find any supported formats",
        example="/crop9: could not find any supported formats consistent with input/output data "
        "types",
        meaning="The plug-in accepts none of the types and layouts that are possible here.",
        fix="Let the plug-in accept linear FP32, or keep INT8 away from its borders.",
    ),
    Rule(
        "myelin_requires",
        needle=" but node can not be handled by Myelin",
        pattern=r"^(?P<subject>.+?) requires .{1,80} but node can not be handled by Myelin",
        example="Split_3 requires bool I/O but node can not be handled by Myelin.",
        meaning="Only the graph compiler can run this node, and it cannot here.",
        fix="Rewrite the node, for example without the dynamic shape.",
    ),
    Rule(
        "myelin_check",
        pattern=r"^Internal Error: MyelinCheckException",
        example="Internal Error: MyelinCheckException: a.cpp:1: CHECK(0) failed.",
        meaning="The graph compiler met a subgraph that it cannot handle.",
        versions="10-",
    ),
    Rule(
        "no_profile",
        needle="no optimization profile has been defined",
        pattern=r"no optimization profile has been defined",
        example="Network has dynamic or shape inputs, but no optimization profile has been "
        "defined.",
        meaning="An input has a free dimension, and no shapes were given for it.",
        fix=SHAPES,
    ),
    Rule(
        "out_of_memory",
        needle="out of memory|Requested size was|could not be allocated|Out of memory",
        pattern=r"[Oo]ut of memory|^Requested size was (?P<requested_bytes>\d{1,20}) bytes"
        r"|Requested amount of (?:GPU )?memory \((?P<wanted_bytes>\d{1,20}) bytes\) could not be",
        example="Requested amount of memory (999 bytes) could not be allocated.",
        meaning="Memory ran out. The build may still go on with a kernel that needs less.",
        fix="Free memory, or use smaller calibration batches and a smaller build shape.",
        levels=("error",),
    ),
    Rule(
        "illegal_access",
        needle="illegal memory access|misaligned address|unspecified launch failure",
        pattern=r"illegal memory access|misaligned address|unspecified launch failure",
        example="[a.cu::run::1] Error Code 1: Cuda Runtime (an illegal memory access was "
        "encountered)",
        meaning="A kernel read or wrote outside its memory; every later GPU call fails too.",
        fix="Keep nodes with data-dependent shapes (TopK, NMS) out of calibration and INT8.",
    ),
    Rule(
        "consequence",
        needle="Engine |engine|Parsing model|parse onnx|configuring INT8 mode",
        pattern=r"^(?:Engine could not be created|Building engine failed|Failed to create engine"
        r"|Engine set up failed|Unable to create engine|Parsing model failed"
        r"|Failed to parse onnx|Builder failed while configuring INT8 mode)"
        r"|^Assertion engine(?:Ptr)? != nullptr",
        starts="Engine |Building engine|Failed to |Unable to create|Parsing model|Builder failed"
        "|Assertion engine",
        example="Engine could not be created from network",
        meaning="The build ended without an engine, because of an error before this line.",
        levels=("error",),
    ),
    Rule(
        "run_failed",
        pattern=r"^&&&& FAILED (?P<tool>\S{1,80})",
        example="&&&& FAILED TensorRT.trtexec [TensorRT v9999] # trtexec --onnx=a.onnx",
        meaning="The tool ended with a failure.",
    ),
    severity="error",
    fix=READ_ON,
)

WARNINGS = table(
    "other_warning",
    Rule(
        "int64_binding",
        needle=" has Int64 binding",
        pattern=r"^Make sure (?:input|output) (?P<subject>.+?) has Int64 binding",
        example="Make sure output label has Int64 binding.",
        meaning="This input or output is 64 bits wide from TensorRT 10 on.",
        fix=INT64,
        versions="10-",
    ),
    Rule(
        "shape_missing",
        needle="Dynamic dimensions required|Shape missing for input",
        pattern=r"^(?:Dynamic dimensions required for input: (?P<subject>.+?), but no shapes"
        r"|Shape missing for input with dynamic shape: (?P<subject2>.+?)Automatically)",
        starts="Dynamic dimensions|Shape missing",
        example="Dynamic dimensions required for input: ids, but no shapes were provided.",
        meaning="A shape was made up for an input with a free dimension.",
        fix=SHAPES,
    ),
    Rule(
        "shape_guessed",
        needle="No shapes provided",
        pattern=r"^Input tensor: (?P<subject>.{1,1000}?) (?:\(dtype=.{1,200}?\) )?"
        r"\| No shapes provided",
        example="Input tensor: img (dtype=DataType.FLOAT, shape=(-1, 3)) | No shapes provided; "
        "Will use shape: [1, 3] for min/opt/max in profile.",
        meaning="A shape was made up for an input with a free dimension.",
        fix=SHAPES,
    ),
    Rule(
        "input_unused",
        pattern=r"^(?:Unused Input: (?P<subject>.+)"
        r"|\[RemoveDeadLayers\] Input Tensor (?P<subject2>.+?) is unused)",
        starts="Unused Input|[RemoveDeadLayers]",
        example="Unused Input: mask",
        meaning="Nothing in the network reads this input.",
        fix="Remove it from the model, or find why its consumer went away.",
    ),
    Rule(
        "type_without_effect",
        needle="was called on non I/O tensor",
        pattern=r"was called on non I/O tensor: (?P<subject>.{1,500}?)\. This",
        example="ITensor::setType(Half) was called on non I/O tensor: t5. This will have no effect "
        "unless this tensor is marked as an output.",
        meaning="Only inputs and outputs take a type that way.",
        fix="Cast instead.",
    ),
    Rule(
        "weights_transposed",
        needle=" has been transposed with permutation",
        pattern=r"^Weights (?P<subject>.+?) has been transposed with permutation",
        example="Weights fc2.weight has been transposed with permutation of (1, 0)!",
        meaning="These weights are stored transposed; only a refit must know that.",
        fix="Nothing to do without a refit.",
    ),
    Rule(
        "torch_input_type",
        needle="input type",
        pattern=r"for input (?P<subject>.{1,300}?)\. Assuming it is",
        example="Cannot infer input type from calculations in graph for input x.7. Assuming it is "
        "Float32.",
        meaning="The type of this input was guessed.",
        fix="State the input's type.",
    ),
    Rule(
        "torch_input_conflict",
        needle="user specified input dtype",
        pattern=r"^For input (?P<subject>.+?), found user specified input dtype",
        example="For input x.3, found user specified input dtype as Float16, however the graph "
        "expects Float",
        meaning="The type asked for differs from the one that the graph expects.",
        fix="State the type that the graph expects.",
    ),
    Rule(
        "timing_cache",
        needle="timing cache|Timing cache",
        pattern=r"^(?:Could not read timing cache from: (?P<subject>.+?)\. "
        r"|Detected invalid timing cache|Timing cache header mismatch)",
        starts="Could not read timing|Detected invalid timing|Timing cache header",
        example="Could not read timing cache from: ./old.cache. A new timing cache will be "
        "generated and written.",
        meaning="Kernels are timed anew because the saved times do not fit.",
        fix="Harmless; builds on the same GPU and version can share one cache file.",
        levels=("error", "warning", ""),
    ),
    Rule(
        "flag_ignored",
        needle="has been ignored in this builder run",
        pattern=r"^BuilderFlag::(?P<subject>\w{1,60}) has been ignored in this builder run",
        example="BuilderFlag::kSPARSE_THING has been ignored in this builder run.",
        meaning="The option has no effect on this GPU.",
        fix="Build for a GPU that has it, or drop the option.",
    ),
    Rule(
        "uint8_as_int8",
        needle="Defaulting to INT8 instead",
        pattern=r"UINT8 zero_point only on DLA .{0,80}Defaulting to INT8 instead",
        example="TensorRT supports QuantizeLinear with UINT8 zero_point only on DLA (version >= "
        "3.16). Defaulting to INT8 instead...",
        meaning="Unsigned quantization is read as signed: the values change their meaning.",
        fix="Quantize to INT8 with zero point 0.",
    ),
    Rule(
        "fake_ranges",
        pattern=r"^FP32 and INT8 precisions have been specified",
        example="FP32 and INT8 precisions have been specified - more performance might be enabled "
        "by additionally specifying --fp16 or --best",
        meaning="What has no INT8 kernel falls back to FP32, not FP16. Without a cache or Q/DQ, "
        "trtexec also makes up the ranges: good for timing only.",
        fix="Allow FP16 too, and give a calibration.",
        severity="info",
    ),
    Rule(
        "tf32_off",
        pattern=r"^TF32 is disabled by default",
        example="TF32 is disabled by default. Turn on TF32 for better performance with minor "
        "accuracy differences.",
        meaning="FP32 layers run without the faster TF32 arithmetic.",
        fix="Allow TF32 if its small rounding is fine.",
        severity="info",
    ),
    severity="warning",
)

DEPRECATED = table(
    "deprecated",
    Rule(
        "deprecated_option",
        needle="deprecated",
        pattern=r"^(?:The )?(?P<subject>-{1,2}[\w-]{1,80}(?:=\w{1,80})?)(?: flag| option)? "
        r"has been deprecated",
        example="--oldflag flag has been deprecated by --newflag flag.",
        meaning="This option will go away.",
        fix="Use the one that the message names.",
    ),
    Rule(
        "deprecated_flag",
        needle="deprecated",
        pattern=r"^(?P<subject>\w{1,80}) is on by default .{1,80} deprecated",
        example="feature0805 is on by default in TensorRT 10.0. This flag is deprecated and has no "
        "effect.",
        meaning="This option has no effect any more.",
        fix="Remove it.",
    ),
    Rule(
        "deprecated",
        needle="eprecat",
        pattern=r"\b[Dd]eprecat(?:ed|ion)|DeprecationWarning",
        example="Implicit batch mode has been deprecated.",
        meaning="Something used here will go away.",
        fix="See what the message names instead; implicit INT8 calibration ended with TensorRT 11.",
        levels=("warning", "error", ""),
    ),
    Rule(
        "falls_back",
        category="fallback",
        needle="alling back",
        pattern=r"\b[Ff]alling back to (?P<target>.{1,60}?)(?:[.,;]|$)",
        example="Cannot fuse the block. Falling back to native code.",
        meaning="Something runs in another way than asked for.",
        fix=READ_ON,
        levels=("warning",),
    ),
    severity="warning",
)

RULES = (*ERRORS, *WARNINGS, *DEPRECATED)

"""Messages about the precision and the device that a layer gets."""

from __future__ import annotations

from trtcal.evidence.log.rules import Rule, table

GIVE_SCALE = (
    "Put Q/DQ on the tensor, or calibrate it; ignore this for integer, shape and boolean tensors."
)
LAYERNORM = "Sums of squares in a normalization layer may exceed what FP16 can hold."
LAYERNORM_FIX = (
    "Keep these layers in FP32, or export with ONNX opset 17 so that they stay one operator."
)
WEIGHTS = "Some weights change when they are stored in the narrower type."
WEIGHTS_FIX = (
    "Compare accuracy; if it suffers, keep the layers named in the verbose log in FP32, "
    "or retrain with weight decay."
)
OBEY = "No kernel does this layer in the precision asked for; another precision was taken."
OBEY_FIX = "Drop the constraint for this layer, or ask for a precision that has a kernel here."
DLA = "This layer runs on the GPU instead of the deep learning accelerator."
DLA_FIX = "Change the layer to one that the accelerator supports, or accept the transfer."

WEIGHT_RANGES = table(
    "weights_range",
    Rule(
        "weights_converted",
        needle="had the following issues when converted",
        pattern=r"^Weights \[name=(?P<subject>.+)\] had the following issues when converted to "
        r"(?P<dtype>\w{1,10})",
        example="Weights [name=up4.weight] had the following issues when converted to FP16:",
        versions="-8.4",
    ),
    Rule(
        "weights_affected",
        needle=" weights are affected by this issue",
        pattern=r"^-? ?(?P<count>\d{1,9}) weights are affected by this issue: (?P<issue>.+)",
        example="- 12 weights are affected by this issue: Detected NaN values.",
        versions="8.5-",
    ),
    Rule(
        "weights_list",
        pattern=r"^List of affected weights: (?P<subject>.+)",
        example="  List of affected weights: neck.c3.weight",
        severity="verbose",
        versions="8.5-",
    ),
    Rule(
        "weights_issues",
        needle="weights between types",
        pattern=r"issues when converting weights between types",
        starts="TensorRT encountered issues",
        example="TensorRT encountered issues when converting weights between types and that could "
        "affect accuracy.",
        versions="8.5-",
    ),
    Rule(
        "weights_detail",
        needle=" detected",
        pattern=r"^-? ?(?:Subnormal|Finite|Infinite|NaN|Overflow\w*|Underflow\w*|Out of range"
        r"|Values less than smallest)\b"
        r".{0,60}? (?:values? |weights? )?detected",
        example=" - Subnormal FP16 values detected. ",
    ),
    Rule(
        "weights_advice",
        needle="please modify the weights|list of affected weights",
        pattern=r"^(?:If this is not the desired behavior, please modify the weights"
        r"|Check verbose logs for the list of affected weights)",
        starts="If this is not|Check verbose logs",
        example="Check verbose logs for the list of affected weights.",
        levels=("warning", "error"),
    ),
    Rule(
        "weights_clamped",
        needle="eights outside the range of ",
        pattern=r"weights outside the range of (?P<dtype>\w{1,10}) was clamped",
        starts="One or more weights",
        example="One or more weights outside the range of INT32 was clamped",
        meaning="A constant does not fit 32 bits and was cut to the largest value that does.",
        fix="Mostly a huge 'to the end' index, which is harmless; check it if outputs differ.",
        versions="-9",
    ),
    Rule(
        "layernorm_nodes",
        pattern=r"^Detected layernorm nodes in FP16(?:: (?P<subject>.+?))?\.?$",
        example="Detected layernorm nodes in FP16: blk0/ln",
        meaning=LAYERNORM,
        fix=LAYERNORM_FIX,
        versions="8.5-",
    ),
    Rule(
        "layernorm_overflow",
        pattern=r"^Running layernorm after self-attention (?:in|with) FP16",
        example="Running layernorm after self-attention in FP16 may cause overflow.",
        meaning=LAYERNORM,
        fix=LAYERNORM_FIX,
        versions="8.5-",
    ),
    severity="warning",
    meaning=WEIGHTS,
    fix=WEIGHTS_FIX,
)

CONSTRAINTS = table(
    "precision_constraint",
    Rule(
        "constraint_not_obeyed",
        needle="obeys the requested constraints",
        pattern=r"^(?:Warning: )?[Nn]o implementation of (?:layer )?(?P<subject>.+?) "
        r"obeys the requested constraints",
        starts="No implementation|no implementation|Warning: no implementation",
        example="No implementation of layer resize_2 obeys the requested constraints in strict "
        "mode.",
        meaning=OBEY,
        fix=OBEY_FIX,
        severity="warning",
        versions="5-",
    ),
    Rule(
        "non_conforming_chosen",
        needle="a non-conforming implementation was chosen",
        pattern=r"^(?:(?P<subject>.+?): ?)?a non-conforming implementation was chosen",
        example="a non-conforming implementation was chosen than was requested i.e. requested "
        "layer computation precision and output precision types were ignored",
        meaning="The precision asked for was only a wish, and another one was faster.",
        fix="Set the flag that prefers or obeys precision constraints.",
        severity="warning",
        versions="8.2-",
    ),
    Rule(
        "no_obedient_candidate",
        pattern=r"^No valid obedient candidate choices for node (?P<subject>.+?) that meet the",
        example="No valid obedient candidate choices for node merge1 that meet the preferred "
        "precision. The remaining candidate choices will be profiled.",
        meaning=OBEY,
        fix=OBEY_FIX,
        severity="verbose",
        versions="8.6-",
    ),
    Rule(
        "precision_not_enabled",
        needle="is not configured in the builder",
        pattern=r"^(?P<precision>\w{2,10}) precision has been set for a layer or layer output, "
        r"but \w{2,10} is not configured in the builder",
        example="fp16 precision has been set for a layer or layer output, but fp16 is not "
        "configured in the builder",
        meaning="A layer asks for a precision that the build does not allow at all.",
        fix="Turn on the builder flag of that precision.",
    ),
    Rule(
        "int8_not_enabled",
        needle="INT8 data-type is not enabled",
        pattern=r"^INT8 data type constraint is set on input (?P<subject>.+?), but INT8 data-type",
        example="INT8 data type constraint is set on input img, but INT8 data-type is not enabled "
        "in builder config.",
        meaning="An input asks for INT8, which the build does not allow.",
        fix="Turn on INT8, or feed the input as float.",
    ),
    Rule(
        "qdq_without_int8",
        pattern=r"^INT8 mode needs to be enabled for networks with ",
        example="INT8 mode needs to be enabled for networks with QuantizeLayer/DequantizeLayer "
        "layers.",
        meaning="The model has Q/DQ, but the build does not allow INT8.",
        fix="Turn on the INT8 builder flag, or build strongly typed.",
        versions="8.0-10",
    ),
    Rule(
        "flags_exclude",
        needle="PRECISION_CONSTRAINTS cannot be set if",
        pattern=r"(?:^|\. )(?P<subject>\w{1,60}) cannot be set if \w{1,60} is set",
        example="kPREFER_PRECISION_CONSTRAINTS cannot be set if kOBEY_PRECISION_CONSTRAINTS is "
        "set.",
        meaning="Two flags about precision exclude each other; the second is not taken.",
        fix="Set one of them. Some tools set one by themselves, then this is harmless.",
        versions="8.2-10",
    ),
    Rule(
        "must_obey_int8",
        needle="int8 precision",
        pattern=r"^(?P<subject>.+?) (?:must run on Myelin but must obey int8 precision"
        r"|requires foreign node optimizations incompatible with int8 precision)",
        example="loop4 must run on Myelin but must obey int8 precision.",
        meaning="A subgraph that only the graph compiler can run may not keep INT8 this way.",
        fix="Take the node out of the INT8 plan.",
        versions="8.6-",
    ),
    Rule(
        "float_required",
        needle="requires input/output to be in floating point precision",
        pattern=r"^(?P<subject>.+?) requires input/output to be in floating point precision",
        example="topk_1 requires input/output to be in floating point precision. No format "
        "available with unquantized inputs.",
        meaning="This layer has no INT8 form.",
        fix="Take the node out of the INT8 plan.",
        versions="8.6-",
    ),
    Rule(
        "direct_io",
        needle="kDIRECT_IO specified",
        pattern=r"kDIRECT_IO specified but no conformant implementation exists",
        starts="BuilderFlag::kDIRECT_IO",
        example="BuilderFlag::kDIRECT_IO specified but no conformant implementation exists",
        meaning="Inputs or outputs cannot keep the format asked for without a copy.",
        fix="Ask for another format, or allow reformats.",
    ),
    severity="error",
)

FALLBACKS = table(
    "fallback",
    Rule(
        "dla_unsupported",
        pattern=r"^Default DLA is enabled but layer (?P<subject>.+?) "
        r"is not (?:supported|running) on DLA",
        example="Default DLA is enabled but layer pad1 is not supported on DLA, falling back to "
        "GPU.",
        versions="5-8.4",
    ),
    Rule(
        "dla_layer_unsupported",
        needle="Unsupported on DLA",
        pattern=r"^Layer '(?P<subject>.+)' \((?P<kind>\w{1,40})\): Unsupported on DLA",
        example="Layer 'up2' (RESIZE): Unsupported on DLA. Switching this layer's device type to "
        "GPU.",
        versions="8.5-",
    ),
    Rule(
        "dla_subgraphs",
        pattern=r"^DLA supports only (?P<count>\d{1,6}) subgraphs per DLA core\. "
        r"Switching to GPU for layer (?P<subject>.+?)\.?$",
        example="DLA supports only 8 subgraphs per DLA core. Switching to GPU for layer conv77",
        meaning="The model changes between accelerator and GPU too often.",
        fix="Remove unsupported layers between supported ones, so that fewer pieces remain.",
    ),
    Rule(
        "dla_precision",
        pattern=r"^DLA only supports FP16 and Int8 precision type\. "
        r"Switching (?P<subject>.+?) device type to GPU",
        example="DLA only supports FP16 and Int8 precision type. Switching emb0 device type to "
        "GPU.",
        fix="Give the layer FP16 or INT8.",
    ),
    Rule(
        "dla_dynamic",
        pattern=r"^DLA Layer (?P<subject>.+?) does not support dynamic shapes",
        example="DLA Layer roi2 does not support dynamic shapes in any dimension.",
        fix="Build with fixed shapes.",
    ),
    Rule(
        "dla_limits",
        needle="DLA",
        pattern=r"^(?P<subject>.+?): (?:DLA cores do not support|\w{1,40} on DLA requires) ",
        example="cat8: Concatenation on DLA requires at least two inputs.",
        levels=("warning", "error"),
    ),
    Rule(
        "dla_none",
        needle="can run on DLA",
        pattern=r"no layer in the network can run on DLA",
        starts="setDefaultDeviceType",
        example="setDefaultDeviceType was called but no layer in the network can run on DLA.",
        meaning="The accelerator was asked for, and nothing can run there.",
    ),
    Rule(
        "gpu_layer",
        pattern=r"^\[GpuLayer\] (?:[A-Z_\d]{2,40}: )?(?P<subject>.+)",
        example="[GpuLayer] POOLING: pool2",
        severity="info",
        versions="8.4-",
    ),
    Rule(
        "slow_precision",
        needle=" support requested on hardware without native ",
        pattern=r"^(?P<precision>\w{2,10}) support requested on hardware without native",
        example="Int8 support requested on hardware without native Int8 support, performance will "
        "be negatively affected.",
        meaning="This GPU has no fast arithmetic for the precision asked for.",
        fix="Build for the GPU that will run the engine, or drop the precision.",
    ),
    Rule(
        "slow_qdq",
        needle="hardware does not accelerate ",
        pattern=r"^The network has (?P<precision>\w{2,10}) Q/DQ layers but the hardware does not",
        example="The network has FP4 Q/DQ layers but the hardware does not accelerate FP4 compute.",
        meaning="The quantized layers run, but without the speed of that precision.",
        fix="Build for another GPU, or quantize to INT8.",
        versions="10-",
    ),
    Rule(
        "qdq_not_fused",
        needle="Q/DQ nodes will not be fused",
        pattern=r"Q/DQ nodes will not be fused because INT8 is slower",
        starts="To achieve better performance|Q/DQ nodes will",
        example="To achieve better performance on this platform, Q/DQ nodes will not be fused "
        "because INT8 is slower than FP16.",
        meaning="The builder declines INT8 on this GPU and computes in float.",
        fix="Use FP16 or FP8 for this target.",
        versions="11-",
    ),
    Rule(
        "stylised_fallback",
        pattern=r"^Fallback triggered for (?P<subject>.+)$",
        example="Fallback triggered for prelu_9",
        meaning="This layer left the precision or device that was asked for.",
        fix=GIVE_SCALE,
        severity="info",
    ),
    severity="warning",
    meaning=DLA,
    fix=DLA_FIX,
)

RULES = (*WEIGHT_RANGES, *CONSTRAINTS, *FALLBACKS)

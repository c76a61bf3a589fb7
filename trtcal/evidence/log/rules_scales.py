"""Messages about scales that are missing, and about ranges that were set."""

from __future__ import annotations

from trtcal.evidence.log.rules import Rule, table

LOSS = "The layers at this tensor run in FP16 or FP32 instead of INT8."
GIVE_SCALE = (
    "Put Q/DQ on the tensor, or calibrate it; ignore this for integer, shape and boolean tensors."
)
RANGE_SET = "The range of this tensor was set by hand, not by calibration."
RANGE_FIX = (
    "Check that it is the range you measured: a tool that sets the same one everywhere guesses."
)
NO_SOURCE = "INT8 is on but nothing gives scales, so only ranges set by hand count."
NO_SOURCE_FIX = "Give a calibration, or Q/DQ in the model."

UNCALIBRATED = table(
    "uncalibrated",
    Rule(
        "missing_scale",
        pattern=r"^Missing scale and zero-point for tensor (?P<subject>.+?)"
        r"(?:, expect fall back|\. Tensor scale and zero-point must be known|$)",
        example="Missing scale and zero-point for tensor stem [A], b, expect fall back to non-int8 "
        "implementation for any layer consuming or producing given tensor",
        meaning="No calibration and no Q/DQ gives this tensor a scale. " + LOSS,
        versions="7.2-10",
    ),
    Rule(
        "range_not_set",
        pattern=r"^Dynamic range would not be set for tensor (?P<subject>.+?) for nbSpatialDims",
        example="Dynamic range would not be set for tensor idx_out for nbSpatialDims = 2.",
        meaning="This tensor holds indices or has too few dimensions, so it gets no scale.",
        fix="Nothing to do unless a convolution reads it.",
        versions="8.0-8.4",
    ),
    Rule(
        "rejected_int8",
        pattern=r"^Rejecting some int8 implementation of layer (?P<layer>.{1,1000}?) "
        r"due to missing int8 scales for tensor (?P<subject>.+?)\.?$",
        example="Rejecting some int8 implementation of layer mix1 due to missing int8 scales for "
        "tensor mix1_out",
        meaning="An INT8 kernel was dropped because one of its tensors has no scale.",
        severity="verbose",
        versions="8.0-",
    ),
    Rule(
        "only_int8_implementation",
        pattern=r"^No non-int8 implementation of layer (?P<subject>.+?) is supported",
        example="No non-int8 implementation of layer gate7 is supported. Please provide missing "
        "int8 scales to use available int8 implementation.",
        meaning="Only INT8 kernels exist for this layer, and its scales are missing.",
        severity="error",
        versions="8.0-",
    ),
    Rule(
        "default_quantization",
        pattern=r"^Setting a default quantization params because quantization data is missing for"
        r"(?: (?P<subject>.+))?",
        example="Setting a default quantization params because quantization data is missing for "
        "head/conv",
        meaning="A made-up scale is used while kernels are timed. One line for each layer means "
        "that the calibration cache does not fit the model.",
        fix="Calibrate this very model again; a cache of another model or parser has other names.",
        severity="verbose",
        versions="8.5-8.6",
    ),
    Rule(
        "incomplete_fusion",
        pattern=r"^Incomplete horizontal fusion due to missing scales for (?P<subject>.+?)\.?$",
        example="Incomplete horizontal fusion due to missing scales for branch2_out",
        meaning="Parallel layers were not merged because one tensor has no scale.",
        severity="verbose",
        versions="8.6-",
    ),
    Rule(
        "uniformly_zero",
        needle=" is uniformly zero",
        pattern=r"^(?:Warning: )?Tensor (?P<subject>.+?) is uniformly zero",
        starts="Tensor |Warning: Tensor ",
        example="Tensor mask copy is uniformly zero; network calibration failed.",
        meaning="Calibration saw nothing but zeros here, so the scale is zero or missing.",
        fix="Check preprocessing, and that data reaches this branch; a constant zero is fine.",
        versions="5-",
    ),
    Rule(
        "no_scaling_factors",
        needle="Calibration failure occur",
        pattern=r"Calibration failure occurr?ed with no scaling factors detected",
        starts="Calibration failure",
        example="4: [standardEngineBuilder.cpp::initCalibrationParams::9] Error Code 4: Internal "
        "Error (Calibration failure occurred with no scaling factors detected. This could be due "
        "to no int8 calibrator or insufficient custom scales for network layers.)",
        meaning="Calibration ended without one scale: no calibrator, or one that gave no data.",
        fix="Check that the data source yields batches; a calibrator's exception is swallowed.",
        severity="error",
        versions="5-10",
    ),
    Rule(
        "no_calibrator",
        pattern=r"^Int8 mode specified but no calibrator specified",
        example="Int8 mode specified but no calibrator specified. Please ensure that you supply "
        "Int8 scales for the network layers manually.",
        meaning=NO_SOURCE,
        fix=NO_SOURCE_FIX,
        versions="5-8.6",
    ),
    Rule(
        "cache_mismatch",
        pattern=r"^Calibration table does not match(?: calibrator algorithm type)?",
        example="Calibration table does not match calibrator algorithm type.",
        meaning="The cache was written for another algorithm or version; it is not used.",
        fix="Calibrate again with this version, or convert the cache's header knowingly.",
    ),
    Rule(
        "cache_line",
        pattern=r"^Could not parse the following line from the calibration cache: "
        r'"?(?P<subject>[^"]{0,500})',
        example='Could not parse the following line from the calibration cache: "conv9 3c01"',
        meaning="One line of the calibration cache is broken, so its tensor has no scale.",
        fix="Write the cache again; do not edit it by hand.",
    ),
    Rule(
        "scales_not_found",
        pattern=r"^Could not find scales for tensor (?P<subject>.+?)\.?$",
        example="Could not find scales for tensor merge2 copy.",
        meaning="No calibration gives this tensor a scale. " + LOSS,
        severity="error",
        versions="-7",
    ),
    Rule(
        "stylised_uncalibrated",
        pattern=r"^Detected uncalibrated layer: (?P<subject>.+)$",
        example="Detected uncalibrated layer: norm_5",
        meaning="This layer has no scales. " + LOSS,
    ),
    severity="warning",
    fix=GIVE_SCALE,
)

RANGES = table(
    "range",
    Rule(
        "dynamic_range",
        pattern=r"^Setting dynamic range for (?P<subject>.+) to "
        r"\[(?P<low>[-+.\deE]{1,24}), ?(?P<high>[-+.\deE]{1,24})\]",
        example="Setting dynamic range for fc/out to [-4,4]",
        meaning=RANGE_SET,
        fix=RANGE_FIX,
        versions="-10",
    ),
    Rule(
        "calibrator_not_used",
        pattern=r"^Calibrator is not being used",
        example="Calibrator is not being used. Users must provide dynamic range for all tensors "
        "that are not Int32 or Bool.",
        meaning=NO_SOURCE,
        fix=NO_SOURCE_FIX,
        severity="warning",
        versions="5-10",
    ),
    Rule(
        "calibrator_ignored",
        pattern=r"^Calibrator won't be used in explicit precision",
        example="Calibrator won't be used in explicit precision mode. Use quantization aware "
        "training to generate network with Quantize/Dequantize nodes.",
        meaning="The model has Q/DQ, which decide alone; the calibrator is ignored.",
        fix="Fine if the Q/DQ are meant; otherwise remove them and calibrate.",
        severity="warning",
        versions="8.0-10",
    ),
    Rule(
        "ranges_complete",
        pattern=r"^User provided dynamic ranges for all network tensors",
        example="User provided dynamic ranges for all network tensors. Calibration skipped.",
        meaning="Ranges set by hand cover every tensor, so no calibration runs.",
        fix="Check where the ranges come from.",
        severity="info",
    ),
    Rule(
        "scale_override",
        pattern=r"^User overriding scale with scale and zero-point (?P<value>.{0,200})",
        example="User overriding scale with scale and zero-point Quantization(scale: {0.25,})",
        meaning=RANGE_SET,
        fix=RANGE_FIX,
    ),
    Rule(
        "scale_assigned",
        needle=" scale and zero-point",
        pattern=r"^(?:Assigning tensor scales: (?P<subject2>.{1,1000}?) using .{1,1000}?"
        r"|(?:Assigning|using) (?P<subject>.+?)) scale and zero-point ?(?P<value>Quant.{0,64})?",
        starts="Assigning |using ",
        example="Assigning flat_out scale and zero-point ",
        meaning="A tensor takes the scale of the tensor that it only rearranges.",
        fix="Nothing to do.",
    ),
    Rule(
        "scale_dump",
        needle="scale and zero-point Quantization",
        pattern=r"^(?:INT8 Inference Tensor scales and zero-points: |Overriding tensor scales: )?"
        r"(?P<subject>.+?) scale and zero-point Quantization\(scale: \{(?P<scale>[^,}]{1,40})",
        example="pool3 scale and zero-point Quantization(scale: {0.125,}, zero-point: {0,})",
        meaning="The scale that the builder really uses for this tensor.",
        fix="Compare it with your calibration.",
    ),
    Rule(
        "range_asymmetric",
        needle="Dynamic range should be symmetric",
        pattern=r"^(?:(?P<subject>.+?)[.:] )?Dynamic range should be symmetric",
        example="act3. Dynamic range should be symmetric for better accuracy.",
        meaning="The range given is not symmetric; the larger side is used for both.",
        fix="Set -amax and amax.",
        severity="warning",
    ),
    Rule(
        "range_required",
        needle="must have dynamic range set",
        pattern=r"^(?P<subject>.+?): (?:input/output|input|output) with DataType Int8 .{0,200}"
        r"must have dynamic range set",
        example="in0: input/output with DataType Int8 in network without Q/DQ layers must have "
        "dynamic range set when no calibrator is used.",
        meaning="An INT8 input or output has neither a range nor Q/DQ.",
        fix="Give the tensor a range, or make it a float input with Q/DQ behind it.",
        severity="error",
    ),
    Rule(
        "range_with_qdq",
        pattern=r"^Setting dynamic range is only allowed when there are no Q/DQ",
        example="Setting dynamic range is only allowed when there are no Q/DQ layers in the "
        "Network.",
        meaning="A model with Q/DQ cannot take ranges set by hand.",
        fix="Change the scales of the Q/DQ nodes instead.",
        severity="error",
    ),
    Rule(
        "stylised_range",
        pattern=r"^Calibration range fallback defaulted to "
        r"\(min=(?P<low>[-+.\deE]{1,24}), ?max=(?P<high>[-+.\deE]{1,24})\)",
        example="Calibration range fallback defaulted to (min=-3.5, max=3.5)",
        meaning="A default range stands in for a missing one.",
        fix=GIVE_SCALE,
        severity="warning",
    ),
    severity="verbose",
)

RULES = (*UNCALIBRATED, *RANGES)

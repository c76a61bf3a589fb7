"""Messages about scales that are missing, and about ranges that were set."""

from __future__ import annotations

from trtcal.evidence.log.rules import Rule

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

UNCALIBRATED = (
    Rule(
        name="missing_scale",
        category="uncalibrated",
        needle="Missing scale and zero-point for tensor ",
        pattern=r"^Missing scale and zero-point for tensor (?P<subject>.+?)"
        r"(?:, expect fall back|\. Tensor scale and zero-point must be known|$)",
        example="Missing scale and zero-point for tensor stem [A], b, expect fall back to non-int8 "
        "implementation for any layer consuming or producing given tensor",
        meaning="No calibration and no Q/DQ gives this tensor a scale. " + LOSS,
        fix=GIVE_SCALE,
        severity="warning",
        since="7.2",
        until="10",
    ),
    Rule(
        name="range_not_set",
        category="uncalibrated",
        needle="Dynamic range would not be set",
        pattern=r"^Dynamic range would not be set for tensor (?P<subject>.+?) for nbSpatialDims",
        example="Dynamic range would not be set for tensor idx_out for nbSpatialDims = 2.",
        meaning="This tensor holds indices or has too few dimensions, so it gets no scale.",
        fix="Nothing to do unless a convolution reads it.",
        severity="warning",
        since="8.0",
        until="8.4",
    ),
    Rule(
        name="rejected_int8",
        category="uncalibrated",
        needle="Rejecting some int8 implementation of layer ",
        pattern=r"^Rejecting some int8 implementation of layer (?P<layer>.{1,1000}?) "
        r"due to missing int8 scales for tensor (?P<subject>.+?)\.?$",
        example="Rejecting some int8 implementation of layer mix1 due to missing int8 scales for "
        "tensor mix1_out",
        meaning="An INT8 kernel was dropped because one of its tensors has no scale.",
        fix=GIVE_SCALE,
        severity="verbose",
        since="8.0",
    ),
    Rule(
        name="only_int8_implementation",
        category="uncalibrated",
        needle="No non-int8 implementation of layer ",
        pattern=r"^No non-int8 implementation of layer (?P<subject>.+?) is supported",
        example="No non-int8 implementation of layer gate7 is supported. Please provide missing "
        "int8 scales to use available int8 implementation.",
        meaning="Only INT8 kernels exist for this layer, and its scales are missing.",
        fix=GIVE_SCALE,
        severity="error",
        since="8.0",
    ),
    Rule(
        name="default_quantization",
        category="uncalibrated",
        needle="quantization data is missing for",
        pattern=r"^Setting a default quantization params because quantization data is missing for"
        r"(?: (?P<subject>.+))?",
        example="Setting a default quantization params because quantization data is missing for "
        "head/conv",
        meaning="A made-up scale is used while kernels are timed. One line for each layer means "
        "that the calibration cache does not fit the model.",
        fix="Calibrate this very model again; a cache of another model or parser has other names.",
        severity="verbose",
        since="8.5",
        until="8.6",
    ),
    Rule(
        name="incomplete_fusion",
        category="uncalibrated",
        needle="Incomplete horizontal fusion due to missing scales",
        pattern=r"^Incomplete horizontal fusion due to missing scales for (?P<subject>.+?)\.?$",
        example="Incomplete horizontal fusion due to missing scales for branch2_out",
        meaning="Parallel layers were not merged because one tensor has no scale.",
        fix=GIVE_SCALE,
        severity="verbose",
        since="8.6",
    ),
    Rule(
        name="uniformly_zero",
        category="uncalibrated",
        needle=" is uniformly zero",
        pattern=r"^(?:Warning: )?Tensor (?P<subject>.+?) is uniformly zero",
        starts="Tensor |Warning: Tensor ",
        example="Tensor mask copy is uniformly zero; network calibration failed.",
        meaning="Calibration saw nothing but zeros here, so the scale is zero or missing.",
        fix="Check preprocessing, and that data reaches this branch; a constant zero is fine.",
        severity="warning",
        since="5",
    ),
    Rule(
        name="no_scaling_factors",
        category="uncalibrated",
        needle="Calibration failure occur",
        pattern=r"Calibration failure occurr?ed with no scaling factors detected",
        starts="Calibration failure",
        example="4: [standardEngineBuilder.cpp::initCalibrationParams::9] Error Code 4: Internal "
        "Error (Calibration failure occurred with no scaling factors detected. This could be due "
        "to no int8 calibrator or insufficient custom scales for network layers.)",
        meaning="Calibration ended without one scale: no calibrator, or one that gave no data.",
        fix="Check that the data source yields batches; a calibrator's exception is swallowed.",
        severity="error",
        since="5",
        until="10",
    ),
    Rule(
        name="no_calibrator",
        category="uncalibrated",
        needle="Int8 mode specified but no calibrator",
        pattern=r"^Int8 mode specified but no calibrator specified",
        example="Int8 mode specified but no calibrator specified. Please ensure that you supply "
        "Int8 scales for the network layers manually.",
        meaning=NO_SOURCE,
        fix=NO_SOURCE_FIX,
        severity="warning",
        since="5",
        until="8.6",
    ),
    Rule(
        name="cache_mismatch",
        category="uncalibrated",
        needle="Calibration table does not match",
        pattern=r"^Calibration table does not match(?: calibrator algorithm type)?",
        example="Calibration table does not match calibrator algorithm type.",
        meaning="The cache was written for another algorithm or version; it is not used.",
        fix="Calibrate again with this version, or convert the cache's header knowingly.",
        severity="warning",
    ),
    Rule(
        name="cache_line",
        category="uncalibrated",
        needle="from the calibration cache",
        pattern=r"^Could not parse the following line from the calibration cache: "
        r'"?(?P<subject>[^"]{0,500})',
        example='Could not parse the following line from the calibration cache: "conv9 3c01"',
        meaning="One line of the calibration cache is broken, so its tensor has no scale.",
        fix="Write the cache again; do not edit it by hand.",
        severity="warning",
    ),
    Rule(
        name="scales_not_found",
        category="uncalibrated",
        needle="Could not find scales for tensor ",
        pattern=r"^Could not find scales for tensor (?P<subject>.+?)\.?$",
        example="Could not find scales for tensor merge2 copy.",
        meaning="No calibration gives this tensor a scale. " + LOSS,
        fix=GIVE_SCALE,
        severity="error",
        until="7",
    ),
    Rule(
        name="stylised_uncalibrated",
        category="uncalibrated",
        needle="Detected uncalibrated layer",
        pattern=r"^Detected uncalibrated layer: (?P<subject>.+)$",
        example="Detected uncalibrated layer: norm_5",
        meaning="This layer has no scales. " + LOSS,
        fix=GIVE_SCALE,
        severity="warning",
    ),
)

RANGES = (
    Rule(
        name="dynamic_range",
        category="range",
        needle="Setting dynamic range for ",
        pattern=r"^Setting dynamic range for (?P<subject>.+) to "
        r"\[(?P<low>[-+.\deE]{1,24}), ?(?P<high>[-+.\deE]{1,24})\]",
        example="Setting dynamic range for fc/out to [-4,4]",
        meaning=RANGE_SET,
        fix=RANGE_FIX,
        severity="verbose",
        until="10",
    ),
    Rule(
        name="calibrator_not_used",
        category="range",
        needle="Calibrator is not being used",
        pattern=r"^Calibrator is not being used",
        example="Calibrator is not being used. Users must provide dynamic range for all tensors "
        "that are not Int32 or Bool.",
        meaning=NO_SOURCE,
        fix=NO_SOURCE_FIX,
        severity="warning",
        since="5",
        until="10",
    ),
    Rule(
        name="calibrator_ignored",
        category="range",
        needle="Calibrator won't be used in explicit precision",
        pattern=r"^Calibrator won't be used in explicit precision",
        example="Calibrator won't be used in explicit precision mode. Use quantization aware "
        "training to generate network with Quantize/Dequantize nodes.",
        meaning="The model has Q/DQ, which decide alone; the calibrator is ignored.",
        fix="Fine if the Q/DQ are meant; otherwise remove them and calibrate.",
        severity="warning",
        since="8.0",
        until="10",
    ),
    Rule(
        name="ranges_complete",
        category="range",
        needle="User provided dynamic ranges for all network tensors",
        pattern=r"^User provided dynamic ranges for all network tensors",
        example="User provided dynamic ranges for all network tensors. Calibration skipped.",
        meaning="Ranges set by hand cover every tensor, so no calibration runs.",
        fix="Check where the ranges come from.",
    ),
    Rule(
        name="scale_override",
        category="range",
        needle="User overriding scale with scale",
        pattern=r"^User overriding scale with scale and zero-point (?P<value>.{0,200})",
        example="User overriding scale with scale and zero-point Quantization(scale: {0.25,})",
        meaning=RANGE_SET,
        fix=RANGE_FIX,
        severity="verbose",
    ),
    Rule(
        name="scale_assigned",
        category="range",
        needle=" scale and zero-point",
        pattern=r"^(?:Assigning tensor scales: (?P<subject2>.{1,1000}?) using .{1,1000}?"
        r"|(?:Assigning|using) (?P<subject>.+?)) scale and zero-point ?(?P<value>Quant.{0,64})?",
        starts="Assigning |using ",
        example="Assigning flat_out scale and zero-point ",
        meaning="A tensor takes the scale of the tensor that it only rearranges.",
        fix="Nothing to do.",
        severity="verbose",
    ),
    Rule(
        name="scale_dump",
        category="range",
        needle="scale and zero-point Quantization",
        pattern=r"^(?:INT8 Inference Tensor scales and zero-points: |Overriding tensor scales: )?"
        r"(?P<subject>.+?) scale and zero-point Quantization\(scale: \{(?P<scale>[^,}]{1,40})",
        example="pool3 scale and zero-point Quantization(scale: {0.125,}, zero-point: {0,})",
        meaning="The scale that the builder really uses for this tensor.",
        fix="Compare it with your calibration.",
        severity="verbose",
    ),
    Rule(
        name="range_asymmetric",
        category="range",
        needle="Dynamic range should be symmetric",
        pattern=r"^(?:(?P<subject>.+?)[.:] )?Dynamic range should be symmetric",
        example="act3. Dynamic range should be symmetric for better accuracy.",
        meaning="The range given is not symmetric; the larger side is used for both.",
        fix="Set -amax and amax.",
        severity="warning",
    ),
    Rule(
        name="range_required",
        category="range",
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
        name="range_with_qdq",
        category="range",
        needle="Setting dynamic range is only allowed",
        pattern=r"^Setting dynamic range is only allowed when there are no Q/DQ",
        example="Setting dynamic range is only allowed when there are no Q/DQ layers in the "
        "Network.",
        meaning="A model with Q/DQ cannot take ranges set by hand.",
        fix="Change the scales of the Q/DQ nodes instead.",
        severity="error",
    ),
    Rule(
        name="stylised_range",
        category="range",
        needle="Calibration range fallback defaulted",
        pattern=r"^Calibration range fallback defaulted to "
        r"\(min=(?P<low>[-+.\deE]{1,24}), ?max=(?P<high>[-+.\deE]{1,24})\)",
        example="Calibration range fallback defaulted to (min=-3.5, max=3.5)",
        meaning="A default range stands in for a missing one.",
        fix=GIVE_SCALE,
        severity="warning",
    ),
)

RULES = (*UNCALIBRATED, *RANGES)

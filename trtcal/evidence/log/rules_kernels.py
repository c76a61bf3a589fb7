"""Messages about kernels and their choice, and about copies between formats."""

from __future__ import annotations

from trtcal.evidence.log.rules import Rule, table

MORE_MEMORY = "Raise the workspace limit if the build machine has memory; else it is harmless."
SKIPPED = "A kernel was left out of the choice because it asked for more memory than allowed."
NOT_FATAL = "Harmless while the build goes on: other kernels are tried."
NO_KERNEL = "No kernel can run this node as it was asked for; the build ends here."
NO_KERNEL_FIX = (
    "Give the node a higher precision, more workspace, or another calibrator; then try another "
    "TensorRT version."
)
COPY = "A copy changes a tensor's layout or data type between two layers."
COPY_FIX = "Many copies around one layer cost more than its INT8 kernel saves: raise its precision."
TACTIC = r"#?(?P<subject>0x[0-9a-fA-F]{1,16}|-?\d{1,20})"

TACTICS = table(
    "tactic_skipped",
    Rule(
        "tactic_no_memory",
        needle="kipping tactic",
        pattern=rf"Skipping tactic ?(?P<index>\d{{1,9}}) due to (?:insuff?icient memory|oom error) "
        rf"on requested size of (?P<requested>\d{{1,20}}) detected for tactic {TACTIC}",
        starts="Skipping tactic|UNSUPPORTED_STATE",
        example="Skipping tactic 3 due to insuficient memory on requested size of 900 detected for "
        "tactic 7.",
        versions="8.0-",
    ),
    Rule(
        "tactic_exception",
        category="tactic_failed",
        needle="kipping tactic",
        pattern=rf"Skipping tactic ?{TACTIC} due to exception:? ?(?P<reason>.*)",
        starts="Skipping tactic|UNSUPPORTED_STATE",
        example="Error Code: 9: Skipping tactic 0x00000000000000ab due to exception no such shape",
        meaning="A kernel failed while it was tried.",
        fix=NOT_FATAL,
        severity="error",
        versions="8.5-",
    ),
    Rule(
        "tactic_other",
        needle="kipping tactic",
        pattern=rf"Skipping tactic ?{TACTIC} due to (?P<reason>.+)",
        starts="Skipping tactic|UNSUPPORTED_STATE",
        example="Skipping tactic 0x0000000000000002 due to Myelin error: cannot split",
        meaning="A kernel could not be made and was left out.",
        fix=NOT_FATAL,
        versions="8.0-",
    ),
    Rule(
        "tactic_overflow",
        pattern=r"^Skipping tactic due to integer overflow while computing strides"
        rf"(?: for tactic {TACTIC})?",
        example="Skipping tactic due to integer overflow while computing strides for tactic 12",
        meaning="A tensor is too large for this kernel's index arithmetic.",
        fix="Use a smaller batch if this kernel matters.",
    ),
    Rule(
        "tactic_scratch",
        needle=" skipped. ",
        pattern=rf"^Tactic: {TACTIC} skipped\. "
        r"(?:Scratch requested: (?P<requested_bytes>\d{1,20})"
        r", available: (?P<available_bytes>\d{1,20})|(?P<reason>.+))",
        example="Tactic: 0x0000000000000011 skipped. Scratch requested: 300, available: 200",
        severity="verbose",
    ),
    Rule(
        "tactics_no_workspace",
        pattern=r"^Some tactics do not have sufficient workspace memory to run",
        example="Some tactics do not have sufficient workspace memory to run. Increasing workspace "
        "size will enable more tactics, please check verbose output for requested sizes.",
        severity="info",
        versions="5-8.6",
    ),
    Rule(
        "no_valid_tactics",
        needle="o valid tactics for",
        pattern=r"^(?:(?P<subject>.+?) has no valid tactics for this config"
        r"|(?:.{0,300}: )?No valid tactics for (?P<subject2>.+))",
        example="CaskPooling has no valid tactics for this config, skipping",
        meaning="This family of kernels has none for the layer in this format.",
        fix=NOT_FATAL,
        severity="verbose",
    ),
    Rule(
        "tactic_out_of_memory",
        pattern=r"^Out of memory error while finding fastest tactic for (?P<subject>.+?)\.?$",
        example="Out of memory error while finding fastest tactic for conv5",
        meaning="The machine's memory ran out while kernels were timed.",
        fix="Free GPU memory, or use a smaller batch while building.",
    ),
    Rule(
        "tactic_gpu_error",
        category="tactic_failed",
        pattern=r"^GPU error during getBestTactic: (?P<subject>.+?) : (?P<reason>.+)",
        example="GPU error during getBestTactic: conv3 + relu3 : misaligned address",
        meaning="A kernel crashed on the GPU while it was tried.",
        fix="Update the driver; if the build fails, raise this layer's precision.",
        severity="error",
    ),
    Rule(
        "stylised_tactic",
        category="tactic_failed",
        needle="failed due to",
        pattern=r"^Tactic #?(?P<tactic>\w{1,20}) for (?P<subject>.+?) "
        r"failed due to (?P<reason>.+)$",
        example="Tactic #4 for stem_5x5 failed due to insufficient workspace",
        meaning="A kernel of this layer could not be used.",
        severity="info",
    ),
    Rule(
        "no_implementation",
        category="no_implementation",
        needle="ould not find any implementation for node ",
        pattern=r"(?:^|: )[Cc]ould not find any implementation for node (?P<subject>.{1,1000}?)"
        r"(?: due to insufficient workspace|, try increasing the workspace|\. See |\.?$)",
        example="IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find "
        "any implementation for node PWN(swish_2). In computeCosts at /src/optimizer.cpp:1)",
        meaning=NO_KERNEL,
        fix=NO_KERNEL_FIX,
        severity="error",
    ),
    Rule(
        "no_algorithm",
        category="no_implementation",
        needle="Number of Algorithm choices|Error in computeCosts",
        pattern=r"(?:Assertion|OutOfMemory) Error in computeCosts"
        r"|Number of Algorithm choices for a node must not be zero",
        example="../builder/tacticOptimizer.cpp (7) - Assertion Error in computeCosts: 0 (Number "
        "of Algorithm choices for a node must not be zero.)",
        meaning=NO_KERNEL,
        fix=NO_KERNEL_FIX,
        severity="error",
        versions="-7.1",
    ),
    severity="warning",
    meaning=SKIPPED,
    fix=MORE_MEMORY,
)

REFORMATS = table(
    "reformat",
    Rule(
        "reformat_layer",
        pattern=r"^Layer\((?:\w{0,40}Reformat\w{0,40}\): (?P<subject>.+?)"
        r"|\w{1,60}\): (?P<subject2>Reformatting CopyNode for .+?))(?:, Tactic: |$)",
        example="Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to c1, Tactic: 0x3e8, "
        "x (Float[1,3]) -> Reformatted Input Tensor 0 to c1 (Half[1,3])",
    ),
    Rule(
        "reformat_described",
        needle="LayerType: Reformat|LayerType: MyelinReformat",
        pattern=r"^Name: (?P<subject>.+?), LayerType: \w{0,40}Reformat",
        example="Name: Reformatting CopyNode for Output Tensor 0 to fc, LayerType: Reformat, "
        "Inputs: [], Outputs: []",
        versions="8.5-",
    ),
    Rule(
        "reformat_added",
        pattern=r"^Adding reformat layer: (?:Reformatted \w{1,10} Tensor \d{1,6} to )?"
        r"(?P<subject>.{1,1000}?) \((?P<tensor>.{1,1000})\) "
        r"from (?P<source>\w{1,20}\([^()]{0,64}\)) to (?P<target>\w{1,20}\([^()]{0,64}\))$",
        example="Adding reformat layer: Reformatted Input Tensor 0 to c1 (x) from Float(1,3) to "
        "Half(1,3)",
    ),
    Rule(
        "reformat_rules",
        needle=" reformatting nodes are needed",
        pattern=r"at least (?P<count>\d{1,9}) reformatting nodes are needed",
        starts="No implementation",
        example="No implementation conforms with I/O format restrictions; at least 2 reformatting "
        "nodes are needed.",
        meaning="Inputs or outputs cannot keep the format asked for without copies.",
        fix="Ask for the format that the first and last layer use.",
        severity="warning",
    ),
    severity="verbose",
    meaning=COPY,
    fix=COPY_FIX,
)

RULES = (*TACTICS, *REFORMATS)

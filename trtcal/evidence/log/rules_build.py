"""Messages about the course of a build: calibration, memory, time."""

from __future__ import annotations

from trtcal.evidence.log.rules import Rule, table

COURSE = "The progress of calibration."
MEMORY = "How much memory is taken."
TIME = "How long a step took."
NOTHING = "Nothing to do."
NUMBER = r"[\d.]{1,20}(?:e[-+]?\d{1,3})?"

CALIBRATION = table(
    "calibration_progress",
    Rule(
        "calibration_starts",
        pattern=r"^Starting Calibration(?: with batch size (?P<batch>\d{1,9}))?\.",
        example="Starting Calibration with batch size 16.",
        fix=NOTHING,
    ),
    Rule(
        "calibration_batch",
        pattern=rf"^Calibrated batch (?P<index>\d{{1,9}}) in (?P<seconds>{NUMBER}) seconds",
        example="  Calibrated batch 4 in 0.25 seconds.",
        fix="Fewer batches than the data holds mean that the calibrator stopped early.",
    ),
    Rule(
        "calibration_done",
        pattern=r"^(?:Calibration completed|Post Processing Calibration data) in "
        rf"(?P<seconds>{NUMBER}) seconds",
        starts="Calibration completed|Post Processing Calibration",
        example="Calibration completed in 31.5 seconds.",
        fix="A few seconds for a whole data set mean that little of it was read.",
    ),
    Rule(
        "calibration_cache",
        needle="Calibration Cache|calibration cache",
        pattern=r"^(?:(?:Reading|Writing) Calibration Cache for calibrator: "
        r"(?:TRT-(?P<trt>\w{1,10})-)?(?P<algorithm>\w{1,60})"
        r"|(?P<action>Loading|Saving|Reading|Writing) calibration cache (?:from|to):? "
        r"(?P<subject>.+))",
        starts="Reading |Writing |Loading calibration|Saving calibration",
        example="Reading Calibration Cache for calibrator: MinMaxCalibration",
        meaning="A calibration cache is read or written: an old one replaces calibration.",
        fix="Delete the cache when model, data or method change.",
    ),
    Rule(
        "calibration_from_cache",
        needle="calibration scales|regenerate calibration",
        pattern=r"^(?:Generated? calibration scales using|To regenerate calibration cache)",
        starts="Generate|To regenerate",
        example="Generated calibration scales using calibration cache. Make sure that calibration "
        "cache has latest scales.",
        meaning="The scales come from the cache; no data was read.",
        fix="Delete the cache when model, data or method change.",
    ),
    Rule(
        "calibration_profile",
        needle="Calibration Profile|calibration profile",
        pattern=r"^(?:Calibration Profile is not defined|Constructing calibration profile"
        r"|Using calibration profile)",
        starts="Calibration Profile|Constructing calibration|Using calibration",
        example="Calibration Profile is not defined. Calibrating with Profile 0",
        meaning="With dynamic shapes, calibration runs at one profile's shapes.",
        fix="Define the calibration profile at the shapes that you will run.",
    ),
    Rule(
        "calibration_maxima",
        pattern=r"^Calculating Maxima",
        example="Calculating Maxima",
        fix=NOTHING,
        severity="verbose",
    ),
    Rule(
        "calibration_random",
        pattern=r"^Int8 Calibration is using randomly generated input data",
        example="Int8 Calibration is using randomly generated input data.",
        meaning="The ranges are measured on noise and mean nothing.",
        fix="Give a data loader with real samples.",
        severity="warning",
    ),
    Rule(
        "calibration_shapes",
        needle="for calibration|during calibration",
        pattern=r"shapes from profile (?P<index>\d{1,6}) for calibration"
        r"|does not currently support using dynamic shapes during calibration",
        starts="Will use |TensorRT does not",
        example="Will use `opt` shapes from profile 0 for calibration.",
        meaning="With dynamic shapes, calibration runs at one profile's shapes.",
        fix="Define the calibration profile at the shapes that you will run.",
        severity="warning",
    ),
    meaning=COURSE,
)

MEMORY_RULES = table(
    "memory",
    Rule(
        "memory_device_request",
        needle="Tactic Device request: ",
        pattern=r"Tactic Device request: (?P<requested_mb>\d{1,12}) ?MB "
        r"Available: (?P<available_mb>\d{1,12}) ?MB",
        starts="Tactic Device request",
        example="Tactic Device request: 900MB Available: 512MB. Device memory is insufficient to "
        "use tactic.",
        meaning="A kernel asks for more device memory than is free.",
        fix="Free GPU memory or raise the limit, if speed matters; the build goes on without it.",
        severity="warning",
        versions="8.0-",
    ),
    Rule(
        "memory_not_allocated",
        needle="could not be allocated",
        pattern=r"^Requested amount of (?:GPU )?memory \((?P<requested_bytes>\d{1,20}) bytes\) "
        r"could not be allocated",
        example="Requested amount of GPU memory (123456 bytes) could not be allocated.",
        meaning="An allocation failed; the kernel that wanted it is left out.",
        fix="Free GPU memory, or use a smaller batch while building.",
        severity="warning",
        levels=("warning", "info", "verbose", ""),
    ),
    Rule(
        "memory_total",
        needle=" Memory: ",
        pattern=r"^(?:Total|Max|Peak) (?P<what>[A-Z][\w ]{2,40}) Memory: "
        r"(?P<total_bytes>\d{1,20})(?: bytes)?$",
        starts="Total |Max |Peak ",
        example="Total Activation Memory: 4096 bytes",
    ),
    Rule(
        "memory_layer",
        needle=" Host Persistent: ",
        pattern=r"^Layer: (?P<subject>.+) Host Persistent: (?P<host_bytes>\d{1,20})(?: bytes)? "
        r"Device Persistent: (?P<device_bytes>\d{1,20})(?: bytes)? "
        r"Scratch Memory: (?P<scratch_bytes>\d{1,20})",
        example="Layer: c1 + r1 Host Persistent: 10 bytes Device Persistent: 20 bytes Scratch "
        "Memory: 30 bytes",
        severity="verbose",
    ),
    Rule(
        "memory_layer_old",
        needle=" HostPersistent: ",
        pattern=r"^Layer: (?P<subject>.+) Weights: (?P<weights_bytes>\d{1,20}) "
        r"HostPersistent: (?P<host_bytes>\d{1,20}) DevicePersistent: (?P<device_bytes>\d{1,20})",
        example="Layer: c3 Weights: 0 HostPersistent: 64 DevicePersistent: 128",
        severity="verbose",
        versions="-7",
    ),
    Rule(
        "memory_change",
        pattern=r"^\[MemUsageChange\] (?P<what>.{1,200}?): CPU (?P<cpu_added_mib>[-+]\d{1,12}), "
        r"GPU (?P<gpu_added_mib>[-+]\d{1,12})"
        r"(?:, now: CPU (?P<cpu_mib>\d{1,12}), GPU (?P<gpu_mib>\d{1,12}))?",
        example="[MemUsageChange] Init library: CPU +12, GPU +34, now: CPU 56, GPU 78 (MiB)",
    ),
    Rule(
        "memory_stats",
        pattern=r"^\[MemUsage\w{1,20}\] (?P<what>.{1,200}?): CPU:? (?P<cpu_mib>\d{1,12}) MiB"
        r"(?:, GPU:? (?P<gpu_mib>\d{1,12}) MiB)?",
        example="[MemUsageStats] Peak memory usage during Engine building: CPU: 90 MiB",
    ),
    Rule(
        "memory_blocks",
        pattern=r"^\[BlockAssignment\] (?:Algorithm (?P<algorithm>\w{1,40}) took "
        rf"(?P<ms>{NUMBER})ms "
        r"to assign (?P<blocks_count>\d{1,9}) blocks to (?P<nodes_count>\d{1,9}) nodes requiring "
        r"(?P<required_bytes>\d{1,20}) bytes"
        r"|Started assigning block shifts\. This will take (?P<steps_count>\d{1,9}) steps)",
        example="[BlockAssignment] Algorithm Quick took 1.5ms to assign 2 blocks to 3 nodes "
        "requiring 512 bytes.",
    ),
    Rule(
        "memory_size",
        needle="Loaded engine size|device memory size|of size |Block size ",
        pattern=r"^(?:Loaded engine size: (?P<engine_mib>\d{1,12}) MiB"
        r"|Created execution context with device memory size: (?P<context>[\d.]{1,20} \w{1,4})"
        r"|Allocated (?P<what>[\w ]{2,40}) of size (?P<allocated_bytes>\d{1,20})"
        r"|Block size (?P<block_bytes>\d{1,20})$)",
        starts="Loaded engine|Created execution|Allocated |Block size ",
        example="Loaded engine size: 25 MiB",
    ),
    Rule(
        "memory_runner",
        needle="Total per-runner|Runner scratch",
        pattern=r"^(?:Total per-runner (?P<what>\w{1,10}) persistent memory is "
        r"(?P<persistent_bytes>\d{1,20})|- Runner scratch: (?P<scratch_bytes>\d{1,20}) bytes)",
        starts="Total per-runner|- Runner",
        example="Total per-runner device persistent memory is 640",
        severity="verbose",
    ),
    Rule(
        "memory_setting",
        needle="Setting workspace to|Reserving memory|Memory Pools",
        pattern=r"^(?:Setting workspace to (?P<workspace_bytes>\d{1,20}) ?enables more tactics"
        r"|Reserving memory for host IO tensors\. Host: (?P<host_bytes>\d{1,20}) bytes"
        r"|Memory Pools +\| \[(?P<pools>.{1,300})\])",
        starts="Setting workspace|Reserving memory|Memory Pools",
        example="Memory Pools           | [WORKSPACE: 64.00 MiB]",
        severity="verbose",
    ),
    meaning=MEMORY,
    fix=NOTHING,
)

TIMES = table(
    "timing",
    Rule(
        "time_built",
        needle="Engine built|Engine deserialized|Engine loaded|Engine generation|engine building in"
        "|build engine in|built engine in|Created engine in",
        pattern=r"^(?:Engine (?P<what>built|deserialized|loaded|generation completed)"
        r"|[Ff]inished engine building|[Bb]uil[dt] engine|Created engine) in "
        rf"(?P<seconds>{NUMBER}) ?[Ss]",
        starts="Engine built|Engine deserialized|Engine loaded|Engine generation"
        "|Finished engine|finished engine|Built engine|Build engine|built engine|build engine"
        "|Created engine",
        example="Engine built in 12.5 sec.",
    ),
    Rule(
        "time_step",
        needle=" completed in ",
        pattern=rf"^(?P<what>[\[A-Z].{{2,120}}?) completed in (?P<seconds>{NUMBER}) seconds",
        example="Formats and tactics selection completed in 4.5 seconds.",
    ),
    Rule(
        "time_optimization",
        needle=" time: ",
        pattern=rf"^(?P<what>[A-Z][\w ]{{2,60}} time): (?P<seconds>{NUMBER}) seconds",
        starts="Graph |Optimization |Engine ",
        example="Graph optimization time: 0.5 seconds.",
    ),
    Rule(
        "time_deserialization",
        pattern=r"^Deserialization required (?P<microseconds_count>\d{1,15}) microseconds",
        example="Deserialization required 250 microseconds.",
        severity="verbose",
    ),
    Rule(
        "time_throughput",
        needle="hroughput",
        pattern=rf"^[Tt]hroughput: (?P<qps>{NUMBER}) qps",
        starts="Throughput: |throughput: ",
        example="Throughput: 99.5 qps",
        meaning="How many inferences a second the benchmark reached.",
    ),
    Rule(
        "time_summary",
        needle=": min = ",
        pattern=rf"^(?P<what>[A-Z][\w -]{{2,40}}): min = (?P<min_ms>{NUMBER}) ms, "
        rf"max = (?P<max_ms>{NUMBER}) ms, mean = (?P<mean_ms>{NUMBER}) ms"
        rf"(?:, median = (?P<median_ms>{NUMBER}) ms)?",
        starts="Latency: |Host Latency|End-to-End|Enqueue Time|H2D Latency|D2H Latency"
        "|GPU Compute Time",
        example="GPU Compute Time: min = 1.5 ms, max = 2.5 ms, mean = 1.75 ms, median = 1.5 ms",
        meaning="How long one inference took.",
    ),
    Rule(
        "time_total",
        needle="Total Host Walltime|Total GPU Compute",
        pattern=r"^Total (?P<what>Host Walltime|GPU Compute Time): "
        rf"(?P<seconds>{NUMBER}) s",
        example="Total Host Walltime: 3.25 s",
        meaning="How long the whole benchmark ran.",
    ),
    Rule(
        "time_average",
        pattern=r"^Average on (?P<runs_count>\d{1,9}) runs - GPU latency: "
        rf"(?P<gpu_ms>{NUMBER}) ms(?: - Host latency: (?P<host_ms>{NUMBER}) ms)?",
        example="Average on 10 runs - GPU latency: 1.5 ms - Host latency: 2.5 ms",
        meaning="How long one inference took.",
    ),
    Rule(
        "time_queries",
        needle=" queries over ",
        pattern=r"^(?:Warmup completed|Timing trace has) (?P<queries_count>\d{1,12}) queries over ",
        starts="Warmup completed|Timing trace",
        example="Timing trace has 500 queries over 3.5 s",
        meaning="How many inferences the benchmark did.",
    ),
    meaning=TIME,
    fix=NOTHING,
)

RULES = (*CALIBRATION, *MEMORY_RULES, *TIMES)

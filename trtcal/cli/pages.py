"""The page of the documentation that helps with an error: that of the module that raised it."""

from __future__ import annotations

from traceback import walk_tb

from trtcal.errors import TrtcalError

TABLE: dict[str | None, str] = {
    "backends.md": "backends",
    "backends.md#builds": "cli.build",
    "calibration.md": "calibrators calibration cli.calibrate ranges",
    "calibration.md#how-many-samples": "cli.held_out evaluate.learning_curve",
    "calibration.md#long-jobs": "calibration.observer calibration.scheduler wings.cluster",
    "calibration.md#ranges-of-other-tools": "calibration.formats",
    "commands.md": "cli cli.extended",
    "configuration.md": "config scripts",
    "data.md#formats": "data",
    "data.md#models": "model wings.frameworks",
    "data.md#preparation": "cli.prepare model.passes",
    "data.md#the-data-check": "check cli.check_data",
    "devices.md": "wings.devices",
    "guides/beyond-int8.md": "formats",
    "guides/graph.md": "wings.graph",
    "history.md": "cli.history runs.history wings.fleet",
    "history.md#cost": (
        "wings.fleet.cli.cost wings.fleet.cost_table wings.fleet.costs wings.fleet.prices"
    ),
    "history.md#files-of-an-older-trtcal": "cli.upgrade runs.upgrade",
    "history.md#focus": "wings.fleet.focus",
    "history.md#verification": "cli.verify runs.verify",
    "logs.md": "evidence",
    "logs.md#build-logs": "cli.log evidence.log",
    "logs.md#diagnosis": "cli.diagnose evidence.diagnosis",
    "logs.md#fusions": "cli.fusion evidence.fusion",
    "logs.md#layers": "cli.layers evidence.layers",
    "plans.md": "cli.plan cli.quantize quantization",
    "plans.md#placement-of-qdq": "quantization.placement quantization.qdq",
    "plans.md#which-layers-to-leave-out-of-int8": "cli.search cli.sensitivity evaluate.search",
    "ptq.md": "ptq",
    "report.md": "cli.report reporting",
    "report.md#from-a-run": "cli.run pipeline",
    "statistics.md": "stats",
    "statistics.md#ab-test-can-one-model-replace-another": "cli.ab evaluate.ab",
    "statistics.md#comparison-with-fp32": "cli.compare evaluate",
    "statistics.md#limits": "limits metrics",
    "statistics.md#tasks": "evaluate.boxes evaluate.outputs evaluate.tasks",
    "traceability.md": "runs",
    "traceability.md#across-devices": "wings.fleet.cli.drift wings.fleet.drift",
    "traceability.md#bisection": "wings.forensics.bisect wings.forensics.cli.bisect",
    "traceability.md#bundles": "cli.bundle runs.bundle wings.fleet.exporters",
    "traceability.md#checkpoints": "wings.forensics",
    "traceability.md#passes-of-your-own": "pipeline.own_passes",
    "traceability.md#the-artifact-store": "wings.fleet.cli.store wings.fleet.store",
    "traceability.md#tvm": "wings.forensics.tvm",
    None: "cli.options cli.output documents errors extensions wings",
}
"""Page of `docs/` -> modules, and those below them; None: that of the module that calls."""
PAGES = {
    name if name == "calibrators" else f"trtcal.{name}": page
    for page, names in TABLE.items()
    for name in names.split()
}


def page_of(error: TrtcalError) -> str | None:
    """Return the page for an error: its own, else that of the innermost module that has one."""
    if error.page is not None:
        return error.page
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    pages = (page_of_module(name) for name in reversed(frames))
    return next((page for page in pages if page), None)


def page_of_module(name: str) -> str | None:
    """Return the page of a module, that of the nearest package above it if it has none of its own."""
    while name and name not in PAGES:
        name = name.rpartition(".")[0]
    page = PAGES.get(name)
    return page and f"docs/{page}"

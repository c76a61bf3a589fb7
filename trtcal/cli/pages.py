"""The page of the documentation that helps with an error: that of the module that raised it."""

from __future__ import annotations

from traceback import walk_tb

from trtcal.errors import TrtcalError

PAGES: dict[str, str | None] = {
    "calibrators": "calibration.md",
    "trtcal.backends": "backends.md",
    "trtcal.calibration": "calibration.md",
    "trtcal.calibration.formats": "calibration.md#ranges-of-other-tools",
    "trtcal.calibration.observer": "calibration.md#long-jobs",
    "trtcal.calibration.scheduler": "calibration.md#long-jobs",
    "trtcal.check": "data.md#the-data-check",
    "trtcal.cli": "commands.md",
    "trtcal.cli.ab": "statistics.md#ab-test-can-one-model-replace-another",
    "trtcal.cli.build": "backends.md#builds",
    "trtcal.cli.bundle": "traceability.md#bundles",
    "trtcal.cli.calibrate": "calibration.md",
    "trtcal.cli.check_data": "data.md#the-data-check",
    "trtcal.cli.compare": "statistics.md#comparison-with-fp32",
    "trtcal.cli.diagnose": "logs.md#diagnosis",
    "trtcal.cli.explain": "logs.md#build-logs",
    "trtcal.cli.extended": "commands.md",
    "trtcal.cli.fusion": "logs.md#fusions",
    "trtcal.cli.held_out": "calibration.md#how-many-samples",
    "trtcal.cli.history": "history.md",
    "trtcal.cli.layers": "logs.md#layers",
    "trtcal.cli.log": "logs.md#build-logs",
    "trtcal.cli.options": None,
    "trtcal.cli.output": None,
    "trtcal.cli.plan": "plans.md",
    "trtcal.cli.prepare": "data.md#preparation",
    "trtcal.cli.quantize": "plans.md",
    "trtcal.cli.report": "report.md",
    "trtcal.cli.run": "report.md#from-a-run",
    "trtcal.cli.search": "plans.md#which-layers-to-leave-out-of-int8",
    "trtcal.cli.sensitivity": "plans.md#which-layers-to-leave-out-of-int8",
    "trtcal.cli.upgrade": "history.md#files-of-an-older-trtcal",
    "trtcal.cli.verify": "history.md#verification",
    "trtcal.config": "configuration.md",
    "trtcal.data": "data.md#formats",
    "trtcal.documents": None,
    "trtcal.errors": None,
    "trtcal.evaluate": "statistics.md#comparison-with-fp32",
    "trtcal.evaluate.ab": "statistics.md#ab-test-can-one-model-replace-another",
    "trtcal.evaluate.boxes": "statistics.md#tasks",
    "trtcal.evaluate.learning_curve": "calibration.md#how-many-samples",
    "trtcal.evaluate.outputs": "statistics.md#tasks",
    "trtcal.evaluate.search": "plans.md#which-layers-to-leave-out-of-int8",
    "trtcal.evaluate.tasks": "statistics.md#tasks",
    "trtcal.evidence": "logs.md",
    "trtcal.evidence.diagnosis": "logs.md#diagnosis",
    "trtcal.evidence.fusion": "logs.md#fusions",
    "trtcal.evidence.layers": "logs.md#layers",
    "trtcal.evidence.log": "logs.md#build-logs",
    "trtcal.extensions": None,
    "trtcal.formats": "guides/beyond-int8.md",
    "trtcal.limits": "statistics.md#limits",
    "trtcal.model": "data.md#models",
    "trtcal.model.passes": "data.md#preparation",
    "trtcal.pipeline": "report.md#from-a-run",
    "trtcal.pipeline.own_passes": "traceability.md#passes-of-your-own",
    "trtcal.ptq": "ptq.md",
    "trtcal.quantization": "plans.md",
    "trtcal.quantization.placement": "plans.md#placement-of-qdq",
    "trtcal.quantization.qdq": "plans.md#placement-of-qdq",
    "trtcal.ranges": "calibration.md",
    "trtcal.reporting": "report.md",
    "trtcal.runs": "traceability.md",
    "trtcal.runs.bundle": "traceability.md#bundles",
    "trtcal.runs.history": "history.md",
    "trtcal.runs.upgrade": "history.md#files-of-an-older-trtcal",
    "trtcal.runs.verify": "history.md#verification",
    "trtcal.metrics": "statistics.md#limits",
    "trtcal.scripts": "configuration.md",
    "trtcal.stats": "statistics.md",
    "trtcal.wings": None,
    "trtcal.wings.cluster": "calibration.md#long-jobs",
    "trtcal.wings.fleet": "history.md",
    "trtcal.wings.fleet.cli.cost": "history.md#cost",
    "trtcal.wings.fleet.cli.drift": "traceability.md#across-devices",
    "trtcal.wings.fleet.cli.store": "traceability.md#the-artifact-store",
    "trtcal.wings.fleet.cost_table": "history.md#cost",
    "trtcal.wings.fleet.costs": "history.md#cost",
    "trtcal.wings.fleet.drift": "traceability.md#across-devices",
    "trtcal.wings.fleet.exporters": "traceability.md#bundles",
    "trtcal.wings.fleet.focus": "history.md#focus",
    "trtcal.wings.fleet.prices": "history.md#cost",
    "trtcal.wings.fleet.store": "traceability.md#the-artifact-store",
    "trtcal.wings.forensics": "traceability.md#checkpoints",
    "trtcal.wings.forensics.bisect": "traceability.md#bisection",
    "trtcal.wings.forensics.cli.bisect": "traceability.md#bisection",
    "trtcal.wings.forensics.tvm": "traceability.md#tvm",
    "trtcal.wings.frameworks": "data.md#models",
}
"""The page in `docs/` of each module and of those below it; None: that of the module that calls it."""


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

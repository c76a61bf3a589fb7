"""What to improve first."""

from dataclasses import replace

from tests.fixtures.tables import each
from tests.reporting.samples import accuracy, build, comparison, row, write_run
from trtcal.documents import write_document
from trtcal.evaluate.layerwise import LayerFigure, Layerwise
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.search.sensitivity import Sensitivities, Sensitivity
from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis, write_diagnosis
from trtcal.evidence.findings import Cost, Finding
from trtcal.quantization.plan import Plan, write_plan
from trtcal.reporting import views
from trtcal.reporting.document import assemble
from trtcal.reporting.render import render

GOOD, BAD = accuracy(5, 1), accuracy(134, 10)
FILES = {"model": "net.onnx", "config": "trtcal.toml", "folder": "out"}


def figure(node, own_db, share):
    return LayerFigure(f"{node}.w", True, (node,), None, own_db, None, None, 0.0, share=share)


LAYERS = Layerwise(64, (figure("loud", 3.0, 0.1), figure("deciding", 30.0, 0.6)))


def write(folder, figures=GOOD, layers=LAYERS, time_ms=None, **changes):
    """Write a run with a finding of this cost."""
    variant = replace(row("a", figures), layers=layers, **changes)
    write_run(folder, comparison(variant), build("a", {"conv": "fp32"}))
    finding = Finding("missed_fusion", "c", "c could be fused", "why", "fix", cost=Cost(time_ms))
    write_diagnosis(folder / "builds" / "0", Diagnosis((finding,)))
    return folder


def steps(folder):
    """Return what the steps are about."""
    return [
        step["layer"]["layer"] if "layer" in step else step["finding"]["what"]
        for step in views.shown(assemble(folder))["first_steps"]
    ]


@each(
    "figures, time_ms, order",
    [
        (GOOD, 1.0, ["c could be fused", "deciding"]),
        (GOOD, 0.0, ["deciding", "c could be fused"]),
        (BAD, 1.0, ["deciding", "c could be fused"]),
    ],
)
def test_what_costs_most_is_first_and_what_costs_nothing_last(tmp_path, figures, time_ms, order):
    folder = tmp_path / f"{time_ms} {figures.top1}"
    folder.mkdir()
    assert steps(write(folder, figures, time_ms=time_ms)) == order


def test_a_layer_is_chosen_by_its_part_at_the_outputs_and_not_by_its_own_sqnr(tmp_path):
    page = render(assemble(write(tmp_path)))
    assert "The layer deciding causes about 60 % of the error at the outputs (estimated" in page
    assert "hurts" not in page


def test_measured_sensitivities_come_before_estimates_and_say_what_a_layer_brings(tmp_path):
    whole, half = Loss(8, 0.01, kl=0.2), Loss(8, 0.005, kl=0.1)
    layer = Sensitivity("measured", "Conv", half, half, whole)
    document = Sensitivities((layer,), whole).to_document({"calibration": "sha256:c"})
    folder = write(tmp_path)
    write_document(folder / "sensitivity.json", document)
    page = render(assemble(folder))
    assert "The layer measured causes 50 % of the error at the outputs (measured)" in page
    assert "if it alone stays in float, SQNR rises by 3.0 dB" in page
    write_document(folder / "sensitivity.json", document | {"calibration": "sha256:other"})
    assert "deciding" in steps(folder)


def test_a_plan_of_the_run_says_what_it_brought(tmp_path):
    plan = Plan(layers={"conv": "fp32"})
    write(tmp_path)
    rows = [row("a", GOOD), row("mixed", accuracy(5, 1, sqnr_db=31.5))]
    digests = (Plan().to_document()["digest"], plan.to_document()["digest"])
    rows = [
        replace(each, layers=LAYERS, quantization={**each.quantization, "plan": digest})
        for each, digest in zip(rows, digests, strict=True)
    ]
    comparison(*rows).write(tmp_path / "comparison.json")
    write_plan(tmp_path / "plan.json", plan)
    page = render(assemble(tmp_path))
    assert (
        "Tried: the plan mixed, which leaves conv in float, raises SQNR from 30.0 to 31.5 dB"
        in page
    )

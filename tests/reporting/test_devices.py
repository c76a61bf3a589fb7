"""What a device measured, in the verdict, the page, the history and the next step."""

import re
from dataclasses import replace

import pytest

from tests.fixtures.device_sessions import CPU_HARDWARE, ORIN
from tests.fixtures.schema import schema_errors
from tests.fixtures.tables import each
from tests.reporting.samples import (
    accuracy,
    build,
    comparison,
    estimated,
    latency,
    row,
    write_run,
)
from tests.reporting.samples import measured as layers_timed
from trtcal.cli.compare import show
from trtcal.evaluate.target_times import best_known, of_latency
from trtcal.limits import DO_NOT, INCONCLUSIVE, SHIP, WITH_CARE, parse_limits
from trtcal.reporting.advice import next_step
from trtcal.reporting.document import assemble
from trtcal.reporting.markdown import to_markdown
from trtcal.reporting.render import render
from trtcal.reporting.verdict import judge
from trtcal.reporting.views import commands
from trtcal.runs.figures import digests_of_run, figures_of_run

HERE = {"on": "@here", "hardware": CPU_HARDWARE}
GPU = {"on": "@orin", "hardware": ORIN["hardware"], "is_gpu": True, "compute_p50_ms": 0.8}
FILES = {"folder": "out", "model": "net.onnx", "config": "trtcal.toml"}


def measured(*limits, device=GPU, energies=(9.0, 4.0), **changes):
    """Return a comparison of INT8 with FP32, both timed on a device, of which sm89 is estimated."""
    result = comparison(row("int8", accuracy(2, 2)), limits=("top1 >= -1.0", *limits))
    times = (latency(2.0, 1.0, 0.0), latency(1.0, 2.0))
    rows = []
    for each_row, time, energy, ms in zip(result.rows, times, energies, (4.0, 1.0), strict=True):
        there = replace(time, energy_mj=energy, **(device | changes))
        known = (of_latency(there), estimated(ms))
        rows.append(replace(each_row, latency=there, times=known))
    return replace(result, rows=tuple(rows), machine={"timed_on": device["on"]})


def document_of(folder, result, *builds):
    document = assemble(write_run(folder, result, *builds))
    document["measured"]["run"] = {"measured": {"files": FILES}}
    return document


def test_the_headline_chart_and_table_are_of_the_device_and_the_estimate_stands_beside(tmp_path):
    document = document_of(tmp_path, measured())
    document["measured"]["run"] = None
    assert schema_errors(document) == []
    page = render(document)
    for words in (
        "Speed on @orin",
        "2.00 \u00d7 FP32",
        "p50 on @orin (ms)",
        "The latency is measured on @orin (NVIDIA Orin (sm87), TensorRT 10.3.0).",
        "Energy, mJ",
        "Without transfers, ms",
        "Speed on sm89",
        "about 4.00 \u00d7 FP32",
        "estimated for TensorRT on L4",
        "timed on @orin",
    ):
        assert words in page
    assert page.index("Speed on @orin") < page.index("Speed on sm89")
    assert "Speed on &#64;\u2060orin" in to_markdown(document)


def test_a_device_that_is_a_cpu_is_never_called_a_gpu(tmp_path):
    page = render(document_of(tmp_path, measured(device=HERE)))
    assert "Speed on CPU @here" in page
    assert "p50 on CPU @here (ms)" in page
    assert "GPU @here" not in page
    assert "Energy, mJ" in page
    without = render(document_of(tmp_path / "b", measured(device=HERE, energies=(None, None))))
    assert "Energy, mJ" not in without


@each(
    "limits, word, sentence",
    [
        ((), SHIP, "40,000"),
        (("speedup@orin >= 1.5",), SHIP, "2.00 times the speed of FP32 on @orin"),
        (("speedup@orin >= 3",), DO_NOT, "has speed-up over FP32 on @orin 2 times"),
        (("speedup@orin >= 2",), INCONCLUSIVE, "More rounds on an idle machine narrow"),
        (("latency_p50@nano <= 9",), INCONCLUSIVE, "`trtcal compare ... --on nano` measures it"),
        (("energy@orin <= 4",), SHIP, "FP32 on @orin"),
        (("energy@orin <= 3",), DO_NOT, "has energy of an inference on @orin 4 mJ"),
        (("speedup@sm89 >= 4",), INCONCLUSIVE, "It is an estimate"),
    ],
)
def test_the_verdict_follows_what_the_device_measured(limits, word, sentence):
    verdict = judge(measured(*limits))
    assert verdict.word == (WITH_CARE if word == SHIP else word)
    assert limits == () or sentence in verdict.sentence
    assert not any("@orin was not measured" in reason for reason in verdict.reasons)


def test_a_gpu_that_was_throttled_is_a_warning():
    verdict = judge(measured(warnings=("the clock moved from 900 to 600 MHz",)))
    assert (
        "The times on @orin were disturbed: the clock moved from 900 to 600 MHz." in verdict.reasons
    )


@each("device, where", [(GPU, "@orin"), (HERE, "CPU @here")])
def test_a_variant_that_the_device_measured_slower_than_fp32_is_a_warning(device, where):
    slow = measured(device=device)
    rows = (slow.rows[0], with_speedup(slow.rows[1], 0.44, (0.4, 0.47)))
    slow = replace(slow, rows=rows)
    warning = f"On {where}, int8 is slower than FP32: 0.44 times its speed (0.4 to 0.47)."
    verdict = judge(slow)
    assert (verdict.word, warning in verdict.reasons) == (WITH_CARE, True)
    unsure = replace(slow, rows=(rows[0], with_speedup(rows[1], 0.9, (0.8, 1.1))))
    accepted = replace(slow, limits=parse_limits([f"speedup{device['on']} >= 0.1"]))
    for other in (unsure, accepted):
        assert not any("slower than FP32" in reason for reason in judge(other).reasons)


def with_speedup(result, speedup, interval):
    there = replace(result.latency, speedup=speedup, speedup_interval=interval)
    return replace(result, latency=there, times=(of_latency(there), *result.times[1:]))


def test_what_was_measured_leaves_what_was_not(tmp_path):
    engines = [build("int8", {}, target=target, backend=backend) for target, backend in (
        ("@orin", "tensorrt"), ("sm89", "tensorrt-rtx")
    )]  # fmt: skip
    (warning,) = [text for text in judge(measured(), engines).reasons if "not measured" in text]
    assert warning == "The speed on sm89 was not measured."


@each(
    "limit, command",
    [
        ("latency_p50@nano <= 9", "trtcal compare net.onnx out/models/int8.onnx --on nano"),
        (
            "speedup@orin >= 2",
            "trtcal compare net.onnx out/models/int8.onnx --on orin --rounds 240",
        ),
    ],
)
def test_the_next_step_measures_on_the_device(tmp_path, limit, command):
    assert next_step(document_of(tmp_path, measured(limit))).command == command


def test_the_next_step_after_a_run_on_a_device_tests_on_it(tmp_path):
    step = next_step(document_of(tmp_path, measured(device=HERE)))
    assert step.command == "trtcal ab net.onnx out/models/int8.onnx --on here"


def test_the_commands_of_a_run_build_and_compare_on_its_device(tmp_path):
    engine = build("int8", {}, target="@here", backend="onnxruntime")
    lines = [*commands(document_of(tmp_path, measured(device=HERE), engine))]
    assert "trtcal build int8.onnx --target @here -o builds/@here" in lines
    assert "trtcal compare net.onnx int8.onnx --on here" in lines


@each("limit", ["energy@orin <= 9", "energy@sm89 <= 9"])
def test_energy_that_the_device_does_not_tell_is_not_measured_again(tmp_path, limit):
    result = measured(limit, energies=(None, None))
    assert "Measure the variants" not in next_step(document_of(tmp_path, result)).why


def test_a_variant_without_an_engine_there_has_no_time_beside_those_of_the_device(tmp_path, capsys):
    result = measured(device=HERE)
    alone = replace(row("int8", accuracy(2, 2), latency(0.4321, 5.678)), times=())
    result = replace(result, rows=(replace(result.rows[0], times=result.rows[0].times[:1]), alone))
    page = render(document_of(tmp_path, result))
    page = re.sub("<style.*?</style>|<script.*?</script>", "", page)
    assert "int8 has no engine there" in page
    assert "0.432" not in page
    show(result)
    table = capsys.readouterr().out
    assert "times of CPU @here" in table
    assert "0.432" not in table
    assert "9" in next(line for line in table.splitlines() if "digits" in line and "98.60" in line)
    assert figures_of_run(document_of(tmp_path / "b", result))["int8", "latency_p50"] == 0.4321


def test_the_table_names_the_device_of_its_times_whatever_else_was_imported(capsys):
    result = measured(device=HERE)
    rows = [replace(each_row, times=each_row.times[::-1]) for each_row in result.rows]
    show(replace(result, rows=tuple(rows)))
    assert "times of CPU @here" in capsys.readouterr().out


def test_figures_of_a_device_are_recorded_under_its_name(tmp_path):
    document = document_of(tmp_path, measured())
    figures = figures_of_run(document)
    assert figures["int8", "latency_p50@orin"] == 1.0
    assert figures["int8", "speedup@orin"] == 2.0
    assert figures["int8", "energy@orin"] == 4.0
    assert not any(name == "latency_p50" for _, name in figures)
    assert digests_of_run(document)["device @orin"] == ORIN["hardware"]


def test_the_first_target_that_all_variants_have_decides_which_is_the_fastest():
    result = measured("speedup >= 0.1")
    other = replace(result.rows[1], name="other", times=(estimated(0.5),))
    both = replace(result, rows=(*result.rows, other))
    fast = replace(other, times=(replace(result.rows[1].times[0], ms=0.9), estimated(8.0)))
    assert judge(replace(both, rows=(*result.rows, fast))).variant == "other"
    assert judge(both).variant == "int8"  # the other was not measured on the first target
    slow = replace(other, times=(estimated(5.0),))
    there = replace(measured("speedup@sm89 >= 0.1"), rows=(*result.rows, slow))
    assert judge(there).variant == "int8"  # by the target that both have


def test_whole_inferences_come_before_the_layers_of_the_same_engine():
    whole = measured().rows[1].times[0]
    profiled = layers_timed("int8", 0.3, target="@orin", gpu="NVIDIA Orin")
    assert best_known([whole], [profiled]) == (whole,)


def test_the_time_of_this_cpu_is_not_shown_where_only_a_gpu_is_the_target(tmp_path):
    result = comparison(row("int8", accuracy(2, 2)))
    result = replace(result, machine={"timed_on": "CPU"})
    on_gpu = build("int8", {}, target="sm89")
    page = render(document_of(tmp_path / "gpu", result, on_gpu))
    assert "The latency on sm89 is known of fewer than two variants." in page
    assert "p50, ms" not in page
    assert "Top-1 accuracy of each variant" in page
    on_cpu = build("int8", {}, target="cpu", backend="onnxruntime")
    page = render(document_of(tmp_path / "both", result, on_gpu, on_cpu))
    assert "median latency p50 on this machine (ms)" in page
    assert "p50, ms" in page


@pytest.mark.parametrize("known", [0, 1])
def test_a_chart_names_what_is_not_known_on_its_target(tmp_path, known):
    result = measured()
    more = [replace(result.rows[1], name=name, times=()) for name in ("late", "later")]
    if known:
        more = [replace(each, times=(estimated(2.0, target="@orin"),)) for each in more]
    page = render(document_of(tmp_path, replace(result, rows=(*result.rows, *more))))
    if known:
        assert "p50 on @orin, in part estimated" not in page
        assert "latency on @orin, in part estimated (ms)" in page
        assert "The latency of digits, int8 is measured on @orin" in page
    else:
        assert "Not drawn, because the latency is not known there: late, later." in page

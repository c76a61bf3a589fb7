"""Optimizations in the report: the sentence, each try before and after and the layers."""

import json
from dataclasses import replace

import pytest

from tests.fixtures.fails import fails
from tests.fixtures.schema import schema_errors
from tests.reporting.samples import (
    accuracy,
    comparison,
    improvement,
    row,
    write_improvement,
    write_run,
)
from trtcal.documents import seal, write_document
from trtcal.errors import InputError
from trtcal.reporting.document import assemble
from trtcal.reporting.markdown import to_markdown
from trtcal.reporting.render import render
from trtcal.reporting.views import optimizations

GOOD = accuracy(5, 1)


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run", comparison(row("plain", GOOD)))


def improved(folder, **changes):
    """Add an improved variant to a run, and return the report on it."""
    ranges = write_improvement(folder, improvement(**changes))
    made = replace(row("int8-improved", GOOD), quantization={"calibration": ranges.digest})
    return assemble(write_run(folder, comparison(row("plain", GOOD), made)))


def test_the_document_says_whose_optimizations_and_ranges_they_are(folder):
    document = improved(folder)
    (one,) = document["optimizations"]
    assert one["variants"] == ["int8-improved"]
    assert [ranges["method"] for ranges in one["calibrations"]] == ["auto"]
    assert [one["method"] for one in document["calibrations"]] == ["percentile"]
    methods = {one["method"] for tensor in document["tensors"] for one in tensor["ranges"]}
    assert methods == {"percentile"}
    assert schema_errors(document) == []


def test_who_decides_reads_the_figures_of_what_was_kept(folder):
    document = improved(folder)
    (one,) = optimizations(document)
    assert (round(one["gain"]["before"], 1), round(one["gain"]["after"], 1)) == (14.0, 21.2)
    assert "from 14.0 to 21.2 dB on 32 samples" in render(document)
    text = to_markdown(document)
    assert "from 14.0 to 21.2 dB" in text
    assert "| adaptive rounding | 14.00 | 21.20 | kept |" in text


def test_where_ranges_alone_are_best_no_optimization_is_praised(folder):
    document = improved(folder, tries=improvement()["tries"][:2])
    (one,) = optimizations(document)
    assert one["gain"] is None
    assert "No optimization" in render(document)


def test_a_try_stands_on_the_best_before_it(folder):
    (one,) = optimizations(improved(folder))
    steps = [(made["before"]["sqnr"], made["after"]["sqnr"]) for made in one["tries"]]
    assert steps == [(None, 12.9), (12.9, 14.0), (14.0, 13.0), (14.0, 21.2)]


def test_of_another_objective_the_loss_is_reported_beside_the_noise(folder):
    page = render(improved(folder, objective="kl"))
    assert "Loss before" in page
    assert "from 20.0 to 30.0 dB" in page
    assert "Loss before" not in render(improved(folder))


def test_the_page_tells_tries_layers_and_what_there_was_no_time_for(folder):
    page = render(improved(folder, untried=["smoothing"], warnings=["32 are few"]))
    words = ("int8-improved", "not kept", "adaptive rounding", "32 are few", "conv1", "7.5 %")
    assert all(one in page for one in (*words, "smoothing", "--optimizations"))


def test_layers_with_the_largest_change_come_first_and_the_rest_are_counted(folder):
    layers = [
        {"name": f"layer {number}", "weights": 9, "rounded": 1, "bias": number / 10}
        for number in range(60)
    ]
    (one,) = improved(folder, layers=layers)["optimizations"]
    assert [layer["name"] for layer in one["layers"][:2]] == ["layer 59", "layer 58"]
    assert (len(one["layers"]), one["optimized_layers"]) == (40, 60)


def test_a_loss_that_is_not_finite_is_shown(folder):
    tries = json.loads(json.dumps(improvement()["tries"]))
    tries[0].update(value=None)
    tries[0]["loss"].update(noise=None, disagreement=None)
    document = improved(folder, tries=tries)
    assert schema_errors(document) == []
    assert "ranges: percentile" in render(document)


def test_a_run_without_optimizations_says_how_to_have_them(folder):
    document = assemble(folder)
    assert document["optimizations"] == []
    assert "<code>[calibration]</code>" in render(document)
    assert "### Optimizations" not in to_markdown(document)


def test_names_in_a_record_are_no_markup(folder):
    nasty = "<script>alert(1)</script>\u202e"
    tries = [{**one, "name": nasty, "what": nasty} for one in improvement()["tries"]]
    layers = [{"name": nasty, "weights": None, "rounded": None, "bias": 1.0}]
    changes = {"tries": tries, "layers": layers, "untried": [nasty], "warnings": [nasty]}
    document = improved(folder, effort=nasty, objective=nasty, **changes)
    for text in (render(document), to_markdown(document)):
        assert "alert(1)" in text
        assert "<script>alert" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize("field", ["tries", "samples", "optimizations"])
def test_a_record_without_a_field_is_an_input_error(folder, field):
    record = improvement()
    del record[field]
    write_document(folder / "record.json", seal(record))
    with fails(InputError, "record.json"):
        assemble(folder)

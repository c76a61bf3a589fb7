"""Every source of layers, and what lies beside it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evidence.layers.engines import float_residual, inspected, profiled, write
from tests.fixtures.listings import described
from tests.fixtures.tables import each
from trtcal.documents import seal
from trtcal.errors import InputError
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.reading import read_engine
from trtcal.evidence.manifest import Build


def build_document(layers):
    build = Build(
        folder=Path(), backend="tensorrt-rtx", backend_version="1.7", target="sm89",
        model="sha256:0", model_name="m", layers=tuple(layers), outcomes=(), skipped={},
        quantization={}, engine_file="engine.plan", measured={},
    )  # fmt: skip
    return json.dumps(build.to_document())


def test_a_file_takes_the_profile_that_is_given_and_a_folder_takes_its_own(tmp_path):
    folder = write(tmp_path / "a", float_residual())
    alone = read_engine(folder / "graph.json")
    assert (len(alone.layers), alone.is_timed, alone.notes) == (10, False, ())
    joined = read_engine(folder / "graph.json", folder / "profile.json")
    assert joined.total_ms == pytest.approx(sum(ms for _, ms in float_residual()))
    assert [layer.time_ms for layer in joined.layers] == [ms for _, ms in float_residual()]
    whole = read_engine(folder)
    assert whole.is_timed
    assert whole.notes == (f"layers: {folder}/graph.json", f"times: {folder}/profile.json")


def test_a_build_and_its_layer_times(tmp_path):
    layers = read_engine(write(tmp_path / "a", float_residual())).layers
    build = tmp_path / "build"
    build.mkdir()
    untimed = [replace(one, time_ms=None) for one in layers]
    (build / "build.json").write_text(build_document(untimed))
    assert not read_engine(build).is_timed
    times = [{"name": one.name, "timeMs": 2.0, "averageMs": 1.0} for one in layers]
    (build / "layer-times.json").write_text(json.dumps([{"count": 2}, *times]))
    assert read_engine(build).total_ms == 10
    listed = read_engine(tmp_path / "a" / "graph.json").layers
    assert read_engine(build / "build.json").layers == listed


def test_a_build_says_its_model_and_builder(tmp_path):
    (tmp_path / "build.json").write_text(build_document([Layer("a", "gemm")]))
    for place in (tmp_path, tmp_path / "build.json"):
        engine = read_engine(place)
        assert (engine.model, engine.builder) == ("sha256:0", "tensorrt-rtx 1.7 for sm89")


def test_a_log_and_the_times_at_its_end(tmp_path):
    log = tmp_path / "build.log"
    log.write_text(f"[V] Layers:\n{described(name='c1_myl0_1')}\n\n[I] done\n")
    assert [layer.name for layer in read_engine(log).layers] == ["c1_myl0_1"]
    table = "[I] Time(ms) Avg.(ms) Median(ms) Time(%) Layer\n[I] 20.0 2.0 1.9 100.0 {}\n"
    log.write_text(log.read_text() + table.format("c1_myl0_1"))
    assert read_engine(tmp_path).total_ms == 2.0
    log.write_text(log.read_text().replace("100.0 c1_myl0_1", "100.0 other"))
    assert not read_engine(log).is_timed
    assert "other layers" in read_engine(log).notes[0]


def test_what_does_not_fit_is_counted(tmp_path):
    timed = float_residual()
    folder = write(tmp_path / "a", timed)
    (folder / "profile.json").write_text(profiled([*timed[1:], ({"Name": "alien"}, 0.5)]))
    engine = read_engine(folder)
    assert engine.total_ms == pytest.approx(sum(ms for _, ms in timed[1:]) + 0.5)
    assert engine.notes[2:] == (
        "1 layers have no time, such as QuantizeLinear_2",
        "1 times (0.5 ms) belong to no layer, such as alien",
    )


BAD = {
    "nothing.json": "{}",
    "list.json": '{"Layers": 3}',
    "empty.json": '{"Layers": []}',
    "numbers.json": '{"Layers": [1]}',
    "deep.json": '{"Layers": ' + "[" * 100_000,
    "binary.plan": "ftrt\0\0\0",
    "rtx.plan": "vtrt\0\0\0",
    "text.log": "nothing of layers\n",
    "empty": "",
    "altered.json": '{"kind": "build", "schema_version": 1, "digest": "sha256:0"}',
    "lacking.json": json.dumps(seal({"kind": "build", "schema_version": 1, "layers": [{}]})),
}


@each("name", BAD)
def test_what_is_no_layer_list_is_an_input_error(name, tmp_path):
    (tmp_path / name).write_text(BAD[name])
    with pytest.raises(InputError):
        read_engine(tmp_path / name)


def test_nothing_and_the_profile_of_another_engine_are_input_errors(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError):
            read_engine(path)
    (tmp_path / "graph.json").write_text(inspected(float_residual()))
    (tmp_path / "other.json").write_text(profiled([({"Name": "alien"}, 0.5)]))
    for profile in ("other.json", "graph.json", "none.json"):
        with pytest.raises(InputError):
            read_engine(tmp_path / "graph.json", tmp_path / profile)

"""`--task OUTPUT=TASK`: what is printed is what is judged, and every command that judges takes it."""

import json

import numpy as np
import onnx
import pytest

import trtcal
from tests.docs.reference.commands import leaves
from tests.fixtures.commands import refused, run, shows, succeed
from tests.fixtures.kinds import Kind, normal
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from trtcal.config import read_config

SCENE = Kind(
    """\
net (float[n,3,16,16] x) => (float[n,4] weather, float[n,5,16,16] ground)
<float[8,3,3,3] w, float[5,8,1,1] g, float[4,8] h>
{
  [stem] a = Conv<pads=[1,1,1,1]>(x, w)
  b = Relu(a)
  [map] ground = Conv(b, g)
  p = GlobalAveragePool(b)
  q = Flatten(p)
  [gemm] weather = Gemm<transB=1>(q, h)
}""",
    normal(x=(3, 16, 16)),
)
DENOISER = Kind(
    """\
net (uint8[n,16,16,3] image) => (uint8[n,16,16,3] clean)
<float[3,3,3,3] w, float scale = {0.05}, float zero = {0.0}, float most = {255.0}>
{
  a = Cast<to=1>(image)
  b = Transpose<perm=[0,3,1,2]>(a)
  [conv] c = Conv<pads=[1,1,1,1]>(b, w)
  d = Mul(c, scale)
  e = Add(b, d)
  f = Clip(e, zero, most)
  g = Round(f)
  h = Transpose<perm=[0,2,3,1]>(g)
  clean = Cast<to=2>(h)
}""",
    lambda rng, count: {"image": rng.integers(0, 256, (count, 16, 16, 3), np.uint8)},
)
BOTH = {"weather": "classification", "ground": "segmentation"}
WORDS = [f"--task={name}={task}" for name, task in BOTH.items()]


def place_of(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind.save(tmp_path / "net.onnx")
    np.savez("data.npz", **kind.make(np.random.default_rng(0), 24))
    trtcal.calibrate("net.onnx", "data.npz", "minmax").write(tmp_path / "calibration.json")
    onnx.save(trtcal.quantize("net.onnx", "calibration.json").proto, "int8.onnx")
    return tmp_path


@pytest.fixture
def scene(tmp_path, monkeypatch):
    return place_of(SCENE, tmp_path, monkeypatch)


def task_in(path):
    return json.loads(path.read_text())["task"]


@SLOW
def test_a_run_judges_by_the_tasks_that_it_printed_as_compare_does(scene, capsys):
    line = "run net.onnx --data data.npz --target cpu --no-history"
    err = run(capsys, *line.split())[2]
    shows(err, "guessed: ground is segmentation", "guessed: weather is regression: uncertain")
    shows(err, "--task weather=classification")
    run(capsys, *["compare", "net.onnx", "int8.onnx", "--data", "data.npz", "--rounds", "2"])
    judged = {"weather": "values", "ground": "pixels"}
    assert task_in(scene / "net-run" / "comparison.json")["outputs"] == judged
    assert task_in(scene / "comparison.json")["outputs"] == judged
    written = read_config(scene / "net-run" / "trtcal.toml").task
    assert written == {"weather": "regression", "ground": "segmentation"}
    line = "run net-run/trtcal.toml --no-history --target cpu --task weather=embedding"
    out = run(capsys, *line.split(), "--limit", "agreement >= 50")[1]
    assert out.count("no limit is on weather") == 1
    judged = {"weather": "vectors", "ground": "pixels"}
    assert task_in(scene / "net-run" / "comparison.json")["outputs"] == judged


def test_every_command_judges_an_output_by_the_task_given(scene, capsys):
    kinds = {"weather": "classes", "ground": "pixels"}
    succeed(capsys, "init", "net.onnx", "--data", "data.npz", *WORDS, "--limit", "cosine >= 0.5")
    config = read_config(scene / "trtcal.toml")
    assert (config.task, [str(limit) for limit in config.limits]) == (BOTH, ["cosine >= 0.5"])
    (scene / "trtcal.toml").unlink()
    for command in ("compare net.onnx int8.onnx --rounds 2 -o found.json",
                    "ab net.onnx int8.onnx -o found.json"):  # fmt: skip
        run(capsys, *command.split(), "--data", "data.npz", *WORDS)
        assert task_in(scene / "found.json") | {"contrast": {}} == {
            "name": "classification", "is_given": True, "outputs": kinds, "contrast": {},
            "guesses": [],
        }  # fmt: skip
    line = "sensitivity net.onnx --data data.npz --samples 8 -o found.json"
    succeed(capsys, *line.split(), *WORDS)
    assert task_in(scene / "found.json") == BOTH


def test_a_picture_in_bytes_is_judged_by_psnr_or_as_values(tmp_path, monkeypatch, capsys):
    place = place_of(DENOISER, tmp_path, monkeypatch)
    line = "compare net.onnx int8.onnx --data data.npz --rounds 2"
    out = run(capsys, *line.split())[1]
    shows(out, "task image", "psnr_db >= 40", "largest diff.")
    a, b = (trtcal_outputs(place / name) for name in ("net.onnx", "int8.onnx"))
    error = np.square(a - b).reshape(len(a), -1).mean(1)
    psnr = np.minimum(10 * np.log10(255**2 / np.maximum(error, 1e-30)), 100)
    (row,) = json.loads((place / "comparison.json").read_text())["rows"][1:]
    assert row["means"]["psnr_db"]["value"]["mean"] == pytest.approx(psnr.mean(), rel=1e-5)
    assert row["accuracy"]["linf"] == np.abs(a - b).max()
    out = run(capsys, *line.split(), "--limit", "psnr_db >= -1")[1]
    assert "FP32 has no PSNR that could change" in out
    out = run(capsys, *line.split(), "--task", "regression", "--limit", "sqnr_db >= 20")[1]
    shows(out, "clean (values)", "sqnr_db >= 20")


def trtcal_outputs(path):
    from trtcal.evaluate.variants import open_variant

    with np.load("data.npz") as data:
        return open_variant(path).runner(["clean"])(dict(data))["clean"].astype(np.float64)


@each(
    "words, says",
    [
        (["--task", "sky=regression"], "no output 'sky'"),
        (["--task", "weather=nonsense"], "'nonsense' is not a task"),
        (["--outputs", "weather", "--task", "tokens"], "no output can be read as one of tokens"),
        (["--task", "weather=segmentation"], "weather float32"),
        (["--task", "none"], "no output is judged"),
    ],
)
def test_a_task_that_no_output_has_is_refused(scene, capsys, words, says):
    assert says in refused(capsys, "compare", "net.onnx", "int8.onnx", "--data", "data.npz", *words)


LEAVES = {context.command_path: context.command for context in leaves()}
SHARED = {"--task", "--outputs", "--limit", "--batch"}


@pytest.mark.parametrize("name", ["run", "init", "compare", "ab", "search"])
def test_commands_that_judge_take_the_same_options(name):
    parameters = LEAVES[f"trtcal {name}"].params
    options = {word for one in parameters for word in one.opts}
    assert options >= (SHARED if name == "search" else SHARED | {"--metric-file"})
    assert next(one for one in parameters if "--task" in one.opts).multiple

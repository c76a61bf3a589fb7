"""What `import trtcal` gives: its names, its examples, and what it takes as a model and as data."""

import doctest
import inspect
import os
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest

import calibrators
import trtcal
from tests.conftest import SAMPLES
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.tables import each
from trtcal import ABOptions, BuildOptions, History, ImagesConfig, SearchOptions
from trtcal.backends.registry import BACKENDS
from trtcal.config import BuildConfig, CalibrationConfig, EvaluationConfig
from trtcal.evidence.fusion.fusions import check_fusions
from trtcal.extensions import NAMES, entry_points

DIGITS = SAMPLES / "digits" / "digits.onnx"
FUNCTIONS = (
    "ab_test",
    "build",
    "calibrate",
    "check_data",
    "compare",
    "diagnose",
    "from_torch",
    "improve",
    "load_model",
    "open_dataset",
    "quantize",
    "read_log",
    "report",
    "run",
    "search",
    "sensitivity",
    "tvm_checkpoints",
    "tvm_fusions",
)
TYPES = {
    "ABOptions",
    "ABTest",
    "BackendError",
    "Build",
    "BuildLog",
    "BuildOptions",
    "Calibration",
    "Comparison",
    "Config",
    "DataCheck",
    "DataIssue",
    "Dataset",
    "Diagnosis",
    "Finding",
    "GateFailed",
    "History",
    "ImagesConfig",
    "Improved",
    "InputError",
    "Model",
    "Plan",
    "QuantizedModel",
    "Report",
    "ResourceError",
    "SearchOptions",
    "RunResult",
    "TrtcalError",
}


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    conv_net(folder / "net.onnx")
    samples(folder / "data.npz")
    return folder / "net.onnx"


@pytest.fixture(scope="module")
def arrays(net):
    return dict(np.load(net.parent / "data.npz").items())


def test_exactly_these_names_are_exported():
    assert set(trtcal.__all__) == {*FUNCTIONS, *TYPES}
    assert len(trtcal.__all__) == len(set(trtcal.__all__))
    homes = [name for names in trtcal._HOMES.values() for name in names]
    assert sorted([*homes, *entry_points(NAMES)]) == sorted(trtcal.__all__)


def test_type_checkers_see_the_same_names():
    source = inspect.getsource(trtcal)
    imported = source.split("if TYPE_CHECKING:", 1)[1].split("_HOMES", 1)[0]
    for home, names in trtcal._HOMES.items():
        assert f"from trtcal.{home} import" in imported
        for name in names:
            assert name in imported


@each("name", sorted({*FUNCTIONS, *TYPES}))
def test_every_name_is_documented_and_typed(name):
    thing = getattr(trtcal, name)
    assert (thing.__doc__ or "").strip()
    if name in FUNCTIONS:
        for parameter in inspect.signature(thing).parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty
        assert thing.__annotations__["return"]


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="has no attribute 'calibrat'"):
        trtcal.calibrat  # noqa: B018


@pytest.mark.parametrize("name", [*FUNCTIONS, *sorted(TYPES), "trtcal", "calibrators"])
def test_the_examples_run(name, tmp_path, monkeypatch):
    (tmp_path / "samples").symlink_to(SAMPLES)
    monkeypatch.chdir(tmp_path)
    modules = {"trtcal": trtcal, "calibrators": calibrators}
    thing = modules.get(name) or getattr(trtcal, name)
    globs = {one: getattr(trtcal, one) for one in trtcal.__all__}
    parser = doctest.DocTestParser()
    example = parser.get_doctest(thing.__doc__, globs, name, None, 0)
    assert example.examples, "without an example"
    runner = doctest.DocTestRunner()
    assert runner.run(example).failed == 0


def test_import_loads_nothing_but_itself():
    """Neither a package of others nor more than a few modules of ours."""
    code = "import sys; before = {*sys.modules}; import trtcal; print(*{*sys.modules} - before)"
    environment = {**os.environ, "PYTHONPATH": str(SAMPLES.parent)}
    command = [sys.executable, "-c", code]
    loaded = subprocess.check_output(command, env=environment, text=True).split()
    ours = [name for name in loaded if name.partition(".")[0] in ("trtcal", "calibrators")]
    others = {name.partition(".")[0] for name in loaded} - {"trtcal", *sys.stdlib_module_names}
    assert (others, len(ours) < 5) == (set(), True), ours


def test_a_model_is_a_path_a_proto_or_a_model(net):
    path = trtcal.load_model(net)
    assert trtcal.load_model(str(net)).fingerprint == path.fingerprint
    proto = trtcal.load_model(onnx.load(net))
    assert [spec.name for spec in proto.inputs] == [spec.name for spec in path.inputs]
    assert trtcal.load_model(proto) is proto
    onnx.save(proto.proto, net.parent / "again.onnx")
    assert trtcal.load_model(net.parent / "again.onnx").fingerprint == proto.fingerprint


@each("wrong", [3, None, b"model", ["net.onnx"]])
def test_other_types_of_models_are_refused(wrong):
    with pytest.raises(trtcal.InputError, match="not a model") as caught:
        trtcal.load_model(wrong)
    assert "onnx.ModelProto" in caught.value.hint


def test_data_in_every_form_give_the_same_ranges(net, arrays):
    (name, array), *_ = ((k, v) for k, v in arrays.items() if k != "labels")
    forms = [
        net.parent / "data.npz",
        str(net.parent / "data.npz"),
        {name: array},
        array,
        [{name: array[:10]}, {name: array[10:]}],
    ]
    tables = [trtcal.calibrate(net, data).ranges for data in forms]
    assert all(table == tables[0] for table in tables)


def test_a_data_loader_is_data(net, arrays):
    (name, array), *_ = ((k, v) for k, v in arrays.items() if k != "labels")
    expected = trtcal.calibrate(net, {name: array}, "minmax").ranges
    assert trtcal.calibrate(net, loader(array), "minmax").ranges == expected


def loader(array):
    """PyTorch's DataLoader where it is installed, else what one looks like from outside."""
    try:
        import torch
        from torch.utils.data import DataLoader, TensorDataset
    except ImportError:
        return Loader(array)
    return DataLoader(TensorDataset(torch.from_numpy(array)), batch_size=5)


class Tensor:
    """Has `.numpy()`, as tensors of frameworks do."""

    def __init__(self, array):
        self.array = array

    def numpy(self):
        return self.array


class Loader:
    """Yields a list of one tensor for each batch, anew in every pass."""

    def __init__(self, array):
        self.array = array

    def __iter__(self):
        for start in range(0, len(self.array), 5):
            yield [Tensor(self.array[start : start + 5])]


@pytest.mark.parametrize("wrong", [3, None])
def test_other_types_of_data_are_refused(net, wrong):
    with pytest.raises(trtcal.InputError, match=f"type {type(wrong).__name__}") as caught:
        trtcal.calibrate(net, wrong)
    assert "DataLoader" in caught.value.hint


def test_from_memory_to_a_report(net, arrays, tmp_path):
    proto = onnx.load(net)
    calibration = trtcal.calibrate(proto, arrays)
    int8 = trtcal.quantize(proto, calibration)
    built = trtcal.build(int8, tmp_path / "build")
    comparison = trtcal.compare(proto, {"int8": int8}, arrays, rounds=3)
    assert [row.name for row in comparison.rows] == ["FP32", "int8"]
    made = trtcal.report([calibration, comparison, built], tmp_path / "page.html")
    assert made.document["builds"]
    assert repr(made).startswith(f"{made.verdict.word}: {made.verdict.sentence[:40]}")
    assert f'">{tmp_path / "page.html"}</a>' in made._repr_html_()
    assert (tmp_path / "page.html").read_text() == made.html
    assert (tmp_path / "page.json").exists()


@pytest.fixture(scope="module")
def results(net, arrays, tmp_path_factory):
    """What every name gives: what a function returns, an object of a class."""
    folder = tmp_path_factory.mktemp("results")
    calibration = trtcal.calibrate(net, arrays)
    int8 = trtcal.quantize(net, calibration)
    built = trtcal.build(int8, folder / "build")
    comparison = trtcal.compare(net, {"int8": int8}, arrays, "sqnr_db >= 1", rounds=3)
    test = trtcal.ab_test(net, int8, arrays, ["sqnr_db >= 1"])
    dataset = trtcal.open_dataset(arrays, net)
    zeros = trtcal.check_data(net, np.zeros_like(arrays["x"]))
    config = trtcal.Config(
        folder / "trtcal.toml",
        model=net,
        output=folder / "run",
        calibration=CalibrationConfig(data=net.parent / "data.npz", methods=("minmax",)),
        evaluation=EvaluationConfig(data=net.parent / "data.npz"),
        build=BuildConfig(targets=("cpu",)),
    )
    quick = SearchOptions(samples=4, evaluations=2, improve="off")
    of_functions = {
        "ab_test": test,
        "build": built,
        "calibrate": calibration,
        "check_data": zeros,
        "compare": comparison,
        "diagnose": trtcal.diagnose(built),
        "from_torch": trtcal.load_model(net),
        "improve": trtcal.improve(net, arrays, time_limit_s=0.0),
        "load_model": trtcal.load_model(net),
        "open_dataset": dataset,
        "quantize": int8,
        "read_log": trtcal.read_log(built.log),
        "report": trtcal.report([calibration, comparison, test, built]),
        "run": trtcal.run(config),
        "search": trtcal.search(net, calibration, arrays, options=quick),
        "sensitivity": trtcal.sensitivity(net, calibration, arrays, 4),
        "tvm_checkpoints": None,  # TVM's own object
        "tvm_fusions": check_fusions(trtcal.load_model(net)),
    }
    others = (zeros.issues[0], config, History(folder / "runs.sqlite"), trtcal.Plan("fp16"))
    options = (
        ABOptions(64),
        BuildOptions("cpu"),
        SearchOptions(gpu="l4"),
        ImagesConfig("RGB", "NCHW", 1.0),
    )
    finding = trtcal.Finding("silent_fallback", "conv1", "conv1 runs in fp32", "slower", "use Q/DQ")
    errors = (getattr(trtcal, name)("what", "hint") for name in TYPES if "Error" in name)
    every = (*of_functions.values(), *others, *options, finding, *errors, trtcal.GateFailed("what"))
    return of_functions | {type(each).__name__: each for each in every} | {"Dataset": dataset}


@each("name", trtcal.__all__)
def test_every_result_is_short_in_python_and_in_a_notebook(results, name):
    result = results[name]
    assert len(repr(result)) <= 500
    assert repr(result).count("\n") < 5
    assert "object at 0x" not in repr(result)
    if result is not None and not isinstance(result, Exception):
        assert len(repr(result)) > len(type(result).__name__)
        assert len(result._repr_html_()) <= 10_000
        assert len(repr([result] * 1000)) <= 502_000


def test_what_is_shown_is_in_the_words_of_the_field(results):
    comparison = repr(results["compare"])
    assert comparison.startswith("Comparison of 1 variant with net on ")
    assert "times as fast" in comparison
    assert repr(results["ab_test"]).partition("\n  ")[2].startswith(results["ab_test"].verdict.word)
    assert results["run"].verdict.word in results["run"]._repr_html_()
    assert "run/report.html</a>" in results["run"]._repr_html_()


@each("name", ["calibrate", "compare", "ab_test", "diagnose", "quantize"])
def test_what_is_shown_does_not_change_what_a_result_is(results, name):
    result = results[name]
    copy = pickle.loads(pickle.dumps(result))  # noqa: S301
    assert copy == result or name == "quantize"  # a proto is not equal to its copy
    assert repr(copy) == repr(result)


def test_variants_of_one_name_are_refused_also_that_of_the_reference(net, arrays, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        onnx.save(onnx.load(net), tmp_path / folder / "same.onnx")
    both = [tmp_path / folder / "same.onnx" for folder in ("a", "b")]
    for reference, variants in ((net, both), (both[0], both[1:]), (net, {"net": both[0]})):
        with pytest.raises(trtcal.InputError, match="two variants have the name") as caught:
            trtcal.compare(reference, variants, arrays, rounds=3)
        assert "a dict of names" in caught.value.hint
    named = trtcal.compare(net, {"one": both[0], "two": both[1]}, arrays, rounds=3)
    assert [row.name for row in named.rows] == ["net", "one", "two"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda net: trtcal.quantize(net, {"x": 1.0}), "type dict is not a calibration"),
        (lambda net: trtcal.quantize(net, "none.json"), "none.json"),
        (
            lambda net: trtcal.compare(net, "int8.onnx", "data.npz"),
            "`variants` is not a list or a dict",
        ),
        (lambda net: trtcal.diagnose(3), "type int is not a build"),
        (lambda net: trtcal.read_log(3), "type int is not a build log"),
        (lambda net: trtcal.report([3]), "type int cannot be reported"),
        (lambda net: trtcal.run(3), "type int is not a configuration"),
    ],
)
def test_wrong_types_are_named(net, call, says):
    with pytest.raises(trtcal.InputError) as caught:
        call(net)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_plan_is_an_object_a_dict_or_a_file(net, arrays, tmp_path):
    calibration = trtcal.calibrate(net, arrays)
    table = {"layers": {"second": "fp32"}}
    (tmp_path / "plan.json").write_text('{"layers": {"second": "fp32"}}')
    made = [
        trtcal.quantize(net, calibration, plan).asked
        for plan in (table, trtcal.Plan(layers={"second": "fp32"}), tmp_path / "plan.json")
    ]
    assert made[0]["second"] == "fp32"
    assert made[0] == made[1] == made[2]


def test_data_are_not_read_for_a_plan_without_float16(net, arrays):
    calibration = trtcal.calibrate(net, arrays)
    trtcal.quantize(net, calibration, data=net.parent / "nowhere.npz")
    with pytest.raises(trtcal.InputError):
        trtcal.quantize(net, precision="fp16", data=net.parent / "nowhere.npz")


def test_a_build_is_diagnosed_as_an_object_and_as_a_folder(net, tmp_path):
    built = trtcal.build(net, tmp_path / "build")
    diagnoses = [trtcal.diagnose(one).to_document() for one in (built, tmp_path / "build")]
    assert diagnoses[0] == diagnoses[1]
    assert trtcal.read_log(tmp_path / "build" / "build.log").summary["is_failed"] is False


@pytest.mark.skipif(not BACKENDS["tensorrt-rtx"].availability().works, reason="needs TensorRT-RTX")
def test_a_target_is_chosen_by_name(net, tmp_path):
    assert trtcal.build(net, tmp_path / "sm89", "sm89").backend == "tensorrt-rtx"


def test_one_limit_can_be_a_string(net, arrays):
    int8 = trtcal.quantize(net, trtcal.calibrate(net, arrays))
    comparison = trtcal.compare(net, {"int8": int8}, arrays, "sqnr_db >= 1", rounds=3)
    assert [str(limit) for limit in comparison.limits] == ["sqnr_db >= 1.0 dB"]


def test_a_result_that_is_not_in_a_list_is_reported_like_a_list_of_one(net, arrays):
    int8 = trtcal.quantize(net, trtcal.calibrate(net, arrays))
    comparison = trtcal.compare(net, {"int8": int8}, arrays, rounds=3)
    assert trtcal.report(comparison).document["comparison"]["rows"]
    with pytest.raises(trtcal.InputError, match="type int"):
        trtcal.report(3)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
def test_a_traceback_shows_the_hint(net, arrays):
    with pytest.raises(trtcal.InputError) as caught:
        trtcal.calibrate(net, arrays, "entropi")
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]

"""Calibration inside TensorRT's builder, on host memory.

With TensorRT up to 10 installed these tests go through its real bindings, else through a stand-in.
"""

import ctypes
import gc
import signal
import sys
import threading
import weakref

import numpy as np
import pytest

from calibrators.feeder import FeedError
from calibrators.tensorrt_builder import (
    KINDS,
    Legacy,
    NotCalibratedError,
    cache_object,
    calibrator_object,
)
from tests.calibrators import bindings
from tests.calibrators.bindings import BASES, CACHE, Builder, HostMemory
from tests.fixtures.fails import fails
from tests.fixtures.tables import each

SHAPES = {"x": (4, 3), "ids": (4, 2)}
SIZES = {"x": 48, "ids": 32}
ALGORITHMS = {  # in the order of TensorRT's numbers
    "legacy": "LegacyCalibration",
    "entropy": "EntropyCalibration",
    "entropy2": "EntropyCalibration2",
    "minmax": "MinMaxCalibration",
}
LEGACY = Legacy(quantile=0.999, regression_cutoff=0.75)


@pytest.fixture(autouse=True)
def tensorrt(monkeypatch):
    """TensorRT if it is installed, else base classes in its place."""
    if bindings.installed() is None:
        monkeypatch.setitem(sys.modules, "tensorrt", bindings.stand_in())


def batches(count, rest=0, **changed):
    """Yield full batches of different numbers, and perhaps one that is not full."""
    sizes = [4] * count + [rest] * bool(rest)
    for number, size in enumerate(sizes):
        x = np.arange(size * 3, dtype=np.float32).reshape(size, 3) + 100 * number
        yield {"x": x, "ids": np.full((size, 2), number, np.int32), **changed}


def calibrator(data, memory=None, kind="entropy2", **options):
    options = {"types": {"ids": "int32"}, **options}
    return calibrator_object(kind, data, SHAPES, memory=memory or HostMemory(), **options)


@each("kind", KINDS)
def test_every_kind_streams_every_batch_to_its_address(kind):
    made = calibrator(batches(3), kind=kind, legacy=LEGACY if kind == "legacy" else None)
    builder = Builder(SIZES)
    with made:
        builder.build(made)
    wanted = [{name: array.tobytes() for name, array in feeds.items()} for feeds in batches(3)]
    assert builder.seen == wanted
    served = made.finish()
    assert (served.batches, served.samples, served.left_out) == (3, 12, 0)
    assert (served.from_cache, served.cache_refused, served.cache) == (False, False, CACHE)


@each("kind", KINDS)
def test_every_kind_is_of_tensorrts_own_class(kind):
    made = calibrator(batches(1), kind=kind, legacy=LEGACY if kind == "legacy" else None)
    assert isinstance(made, getattr(sys.modules["tensorrt"], BASES[kind]))
    assert bindings.calls(made).get_batch_size() == 4


def test_addresses_follow_the_order_that_tensorrt_asks_in():
    made = calibrator(batches(1))
    builder = Builder({"ids": 32, "x": 48})
    builder.build(made)
    assert builder.seen[0]["ids"] == bytes(32)
    assert made.finish().unused == ()


def test_a_dataset_of_trtcal_is_streamed_as_it_is(digits):
    pytest.importorskip("onnx", reason="trtcal itself is not installed")
    from trtcal.data import open_dataset
    from trtcal.model import load_model

    model = load_model(digits / "digits.onnx")
    dataset = open_dataset(digits / "calibration.npz", model)
    (spec,) = model.inputs
    shape = (32, *spec.shape[1:])
    full, left = divmod(len(dataset), 32)
    made = calibrator_object(
        "minmax", dataset.batches(32), {spec.name: shape}, memory=HostMemory(), leave_out_rest=True
    )
    builder = Builder({spec.name: 4 * int(np.prod(shape))})
    with made:
        builder.build(made)
    served = made.finish()
    assert (served.batches, served.left_out) == (full, left)
    fed = b"".join(seen[spec.name] for seen in builder.seen)
    assert fed == next(dataset.batches(full * 32))[spec.name].tobytes()


def test_one_buffer_for_each_input_is_used_again_and_given_back():
    memory = HostMemory()
    made = calibrator(batches(5), memory)
    Builder(SIZES).build(made)
    assert memory.allocated == len(memory.buffers) == 2
    made.finish()
    made.finish()
    assert not memory.buffers


def test_inputs_that_tensorrt_does_not_ask_for_are_named():
    made = calibrator(batches(2))
    Builder({"x": 48}).build(made)
    assert made.finish().unused == ("ids",)


def test_arrays_that_are_not_in_c_order_arrive_in_it():
    x = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    builder = Builder({"x": 48})
    made = calibrator([{"x": x}])
    builder.build(made)
    assert builder.seen == [{"x": np.arange(12, dtype=np.float32).tobytes()}]


class BrokenError(Exception):
    pass


def breaking(count, error):
    yield from batches(count)
    raise error


@pytest.mark.parametrize("error", [BrokenError("disk"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("count", [0, 2])
def test_no_exception_of_the_data_is_swallowed(count, error, capfd):
    memory = HostMemory()
    made = calibrator(breaking(count, error), memory)
    builder = Builder(SIZES)
    builder.build(made)
    assert len(builder.seen) == count
    with pytest.raises(type(error)) as raised:
        made.finish()
    assert raised.value is error
    assert not memory.buffers
    assert "ERROR" not in capfd.readouterr().err  # nothing reached the bindings


def test_the_first_exception_stays_and_no_data_are_taken_after_it():
    taken = []

    def data():
        for feeds in [*batches(1), {"x": np.zeros((4, 3))}, *batches(1)]:
            taken.append(feeds)
            yield feeds

    made = calibrator(data(), cache=CACHE)
    Builder(SIZES, refuses=True, at_most=2).build(made)
    assert bindings.calls(made).get_batch(["x"]) is None
    assert bindings.calls(made).read_calibration_cache() is None
    assert len(taken) == 2
    with fails(FeedError, "batch 2"):
        made.finish()


def test_a_cache_that_cannot_be_kept_is_an_error():
    made = calibrator(batches(1))
    Builder(SIZES, at_most=2).build(made)
    made.write_calibration_cache("not from TensorRT")
    with pytest.raises(TypeError):
        made.finish()
    failed = calibrator(breaking(2, BrokenError()))
    Builder(SIZES).build(failed)
    for _ in range(2):
        with pytest.raises(BrokenError):
            failed.finish()


@pytest.mark.parametrize("device", ["allocate", "copy", "free"])
def test_no_exception_of_the_device_is_swallowed(device, monkeypatch):
    def fail(self, *_):
        raise MemoryError(device)

    monkeypatch.setattr(HostMemory, device, fail)
    made = calibrator(batches(2))
    Builder(SIZES).build(made)
    with fails(MemoryError, device):
        made.finish()


@pytest.fixture
def ctrl_c():
    """Python's own handler: a process that runs tests may have another."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def build_interrupted(made, callback):
    with made:
        asked = bindings.calls(made)
        asked.get_batch(["x"])
        asked.interrupted(callback)
        assert asked.get_batch(["x"]) is None


@pytest.mark.parametrize(
    "callback", ["get_batch", "get_batch_size", "read_calibration_cache", "get_quantile"]
)
def test_ctrl_c_while_the_builder_computes_is_not_swallowed(callback, ctrl_c, capfd):
    made = calibrator(batches(3), kind="legacy", legacy=LEGACY)
    with pytest.raises(KeyboardInterrupt):
        build_interrupted(made, callback)
    assert callback in capfd.readouterr().err  # the bindings had swallowed it
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_first_exception_stays_when_ctrl_c_comes_later(ctrl_c):
    with pytest.raises(BrokenError):
        build_interrupted(calibrator(breaking(0, BrokenError())), "get_batch")


def test_ctrl_c_in_code_beside_the_builder_comes_at_once(ctrl_c):
    made = calibrator(batches(3))
    with pytest.raises(KeyboardInterrupt), made:
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        made.finish()


def test_handlers_of_other_threads_are_left_alone(ctrl_c):
    def build():
        with calibrator(batches(1)) as made:
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            Builder(SIZES).build(made)
        served.append(made.finish())

    served = []
    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    assert served[0].batches == 1


def build_and_fail(made, error):
    with made:
        Builder(SIZES, at_most=1).build(made)
        raise error


def test_a_failing_builder_says_which_callback_failed_and_hides_no_ctrl_c():
    with pytest.raises(BrokenError) as raised:
        build_and_fail(calibrator(breaking(0, BrokenError())), RuntimeError("no engine"))
    assert isinstance(raised.value.__context__, RuntimeError)
    with pytest.raises(KeyboardInterrupt):
        build_and_fail(calibrator(breaking(0, BrokenError())), KeyboardInterrupt())


@pytest.mark.parametrize("error", [RuntimeError("no engine"), KeyboardInterrupt()])
def test_a_failing_builder_keeps_its_own_error_otherwise(error):
    memory = HostMemory()
    with pytest.raises(type(error)):
        build_and_fail(calibrator(batches(2), memory), error)
    assert not memory.buffers


def finished(made, error, *names, builds=1, **options):
    """Build with a calibrator, which then fails, and return what was asked for."""
    for _ in range(builds):
        (builder := Builder(SIZES, **options)).build(made)
    with fails(error, *names):
        made.finish()
    return builder.seen


def test_what_a_builder_must_not_do_is_an_error():
    finished(calibrator(batches(3)), NotCalibratedError, "batch 2", at_most=2)
    finished(calibrator(batches(2)), NotCalibratedError, builds=2)
    ranges = cache_object("entropy2", {"x": 1.0})
    assert not finished(ranges, FeedError, "x, ids", refuses=True)
    finished(calibrator(batches(2, rest=3)), FeedError, "batch 3", "3 samples", "4")
    shapeless = calibrator_object("minmax", batches(1), {"x": (4, 3)}, memory=HostMemory())
    finished(shapeless, FeedError, "ids")


@pytest.mark.parametrize("options", [{}, {"cache": CACHE}])
def test_a_builder_that_never_asks_is_an_error(options):
    with fails(NotCalibratedError, "no batch"), calibrator(batches(3), **options):
        pass


def test_a_cache_saves_the_data():
    made = calibrator(breaking(0, BrokenError()), cache=CACHE)
    builder = Builder(SIZES)
    builder.build(made)
    assert bindings.calls(made).read_calibration_cache() == CACHE
    served = made.finish()
    assert served.from_cache
    assert (served.batches, served.cache_refused, served.cache) == (0, False, None)


def test_a_cache_that_tensorrt_refuses_is_reported():
    made = calibrator(batches(2), cache=CACHE)
    Builder(SIZES, refuses=True).build(made, b"another")
    served = made.finish()
    assert served.cache_refused
    assert (served.from_cache, served.batches, served.cache) == (False, 2, b"another")


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_save_the_data_and_the_device(kind, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    made = cache_object(kind, {"x": 1.0, "a: b": 0.5})
    with made:
        Builder(SIZES).build(made)
        lines = bindings.calls(made).read_calibration_cache().decode().splitlines()
    assert lines[0].startswith("TRT-")
    assert lines[0].endswith("-" + ALGORITHMS[kind])
    assert lines[1:] == ["x: 3c010204", "a: b: 3b810204"]
    assert made.finish().from_cache
    assert "ERROR" not in capfd.readouterr().err


@each(
    "amaxes, names",
    [
        ({}, []),
        ({"x": 0.0}, ["x", "0"]),
        ({"x": float("nan")}, ["x", "not a number"]),
        ({"x": float("inf")}, ["x", "infinite"]),
        ({"a\nb": 1.0}, [r"'a\nb'"]),
        ({"": 1.0}, ["''"]),
    ],
)
def test_ranges_that_are_none_are_refused(amaxes, names):
    with fails(ValueError, *names):
        cache_object("entropy2", amaxes)


def test_our_classes_say_their_algorithm_through_the_bindings():
    if bindings.installed() is None:
        pytest.skip("the stand-in has no algorithms")
    for kind in KINDS:
        made = calibrator(batches(1), kind=kind, legacy=LEGACY if kind == "legacy" else None)
        number = bindings.calls(made).call("get_algorithm", ctypes.c_int)
        assert number == int(made.get_algorithm()) == list(ALGORITHMS).index(kind)


def test_a_last_batch_that_is_not_full_is_left_out_if_wanted_and_counted():
    made = calibrator(batches(2, rest=3), leave_out_rest=True)
    builder = Builder(SIZES)
    builder.build(made)
    served = made.finish()
    assert (len(builder.seen), served.samples, served.left_out) == (2, 8, 3)


WRONG = [
    ([], ["4"]),
    ([None], ["batch 1", "NoneType"]),
    ([{"ids": np.zeros((4, 2), np.int32)}], ["x"]),
    ([*batches(1), *batches(1, x=np.zeros((4, 9), np.float32))], ["batch 2", "x", "[4, 9]"]),
    (batches(1, x=np.zeros((5, 3), np.float32)), ["[5, 3]"]),
    (batches(1, x=np.float32(0)), ["[]"]),
    (batches(1, x=np.zeros((4, 3))), ["x", "float64", "float32"]),
    (batches(1, x=np.zeros((4, 3), np.int32)), ["x", "int32"]),
    (batches(1, x=np.zeros((4, 3), ">f4")), ["x", ">f4"]),
    (batches(1, ids=np.zeros((4, 2), np.int64)), ["ids", "int64"]),
    (batches(1, x=np.full((4, 3), np.inf, np.float32)), ["infinite"]),
    (batches(1, x=np.full((4, 3), np.nan, np.float32)), ["NaN"]),
]


@each("data, names", WRONG)
def test_data_that_do_not_fit_are_an_error(data, names):
    finished(calibrator(list(data)), FeedError, *names)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ([*batches(1, rest=3), *batches(1)], ["batch 3", "3 samples"]),
        (batches(0, rest=3), ["4"]),
    ],
)
def test_leaving_out_is_for_the_last_batch_only(data, names):
    finished(calibrator(list(data), leave_out_rest=True), FeedError, *names)


@each(
    "kind, shapes, options, name",
    [
        ("percentile", SHAPES, {}, "percentile"),
        ("legacy", SHAPES, {}, "legacy"),
        ("minmax", SHAPES, {"legacy": LEGACY}, "legacy"),
        ("minmax", SHAPES, {"cache": b""}, "cache"),
        ("minmax", SHAPES, {"cache": "TRT-8600"}, "bytes"),
        ("minmax", {}, {}, "0"),
        ("minmax", {"x": (-1, 3)}, {}, "x"),
        ("minmax", {"x": ()}, {}, "x"),
        ("minmax", {"x": (4, 3), "ids": (2, 2)}, {}, "ids"),
        ("minmax", SHAPES, {"types": {"y": "int32"}}, "y"),
        ("minmax", SHAPES, {"types": {"x": "float16"}}, "float16"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(kind, shapes, options, name):
    with fails(ValueError, name):
        calibrator_object(kind, batches(1), shapes, memory=HostMemory(), **options)


@each("share", [-0.1, 1.1, float("nan"), "0.5"])
def test_shares_of_the_legacy_calibrator_are_from_0_to_1(share):
    with fails(ValueError, "quantile"):
        Legacy(quantile=share, regression_cutoff=0.5)


def test_the_legacy_calibrator_answers_what_tensorrt_asks(capfd):
    asked = bindings.calls(calibrator(batches(1), kind="legacy", legacy=LEGACY))
    assert (asked.get_quantile(), asked.get_regression_cutoff()) == (0.999, 0.75)
    assert asked.read_histogram_cache() is None
    asked.write_histogram_cache(b"histograms")
    assert "ERROR" not in capfd.readouterr().err


def test_a_calibrator_is_given_back_when_nobody_holds_it():
    made = weakref.ref(calibrator(batches(1)))
    gc.collect()
    assert made() is None


def test_tensorrt_11_is_asked_to_use_qdq(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", bindings.stand_in("11.4.0"))
    with fails(ImportError, "11.4.0", "Q/DQ"):
        calibrator(batches(1))


@pytest.mark.parametrize(
    ("package", "name"), [("tensorrt", "TensorRT"), ("pycuda.driver", "pip install pycuda")]
)
def test_a_package_that_is_missing_is_named(monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    with fails(ImportError, name):
        calibrator_object("minmax", batches(1), SHAPES)

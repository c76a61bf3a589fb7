"""Evaluation samples that are calibration samples: how many, exactly or by estimate."""

import numpy as np
import pytest

from tests.fixtures.networks import conv_net, rng
from trtcal import ab_test, calibrate, compare, open_dataset, quantize
from trtcal.data import overlap as module
from trtcal.data.overlap import keep, numbers_of, overlap


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("overlap")
    conv_net(path / "net.onnx")
    return path


def images(count, seed):
    return rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def numbers(place, array):
    return numbers_of(open_dataset(array, place / "net.onnx"))


def test_shared_samples_are_counted_in_any_order_and_container(place):
    calibration, other = images(20, 1), images(30, 2)
    mixed = np.concatenate([other, calibration[[7, 3, 3]]])
    kept = keep(numbers(place, calibration))
    found = overlap(kept, numbers(place, mixed))
    assert (found.shared, found.samples, found.estimate) == (3, 33, None)
    np.savez(place / "mixed.npz", x=mixed)
    assert overlap(kept, numbers(place, place / "mixed.npz")) == found
    assert overlap(kept, numbers(place, other)) is None
    assert overlap("", numbers(place, mixed)) is None
    assert overlap("no base64", numbers(place, mixed)) is None


def test_of_many_samples_some_are_kept_and_the_others_estimated(monkeypatch):
    monkeypatch.setattr(module, "DIGESTS", 512)
    everyone = rng(5).integers(0, 2**64, 20_000, dtype=np.uint64)
    found = overlap(keep(everyone), np.concatenate([everyone[:4000], everyone[:0:-1][:10]]))
    assert found.shared < 200
    assert found.estimate == pytest.approx(4010, rel=0.25)
    assert "for certain" in str(found)


def test_compare_and_ab_name_them(place):
    calibration = images(40, 1)
    table = calibrate(place / "net.onnx", calibration, "minmax")
    int8 = quantize(place / "net.onnx", table)
    tested = np.concatenate([images(20, 2), calibration[:12]])
    row = compare(place / "net.onnx", {"int8": int8}, tested, rounds=2).rows[1]
    assert row.shared_samples.shared == 12
    verdict = ab_test(place / "net.onnx", int8, tested).verdict
    assert any("12 of 32 samples are calibration samples" in one for one in verdict.warnings)
    clean = ab_test(place / "net.onnx", int8, tested[:20]).verdict
    assert not any("calibration samples" in one for one in clean.warnings)


def test_histograms_and_calibrations_keep_them(place):
    from trtcal.calibration import ObserveOptions, observe
    from trtcal.calibration.observation import read_observation, write_observation
    from trtcal.model import load_model
    from trtcal.ranges import Calibration

    data = open_dataset(images(8, 1), place / "net.onnx")
    seen = observe(load_model(place / "net.onnx"), data, ["x"], ObserveOptions())
    write_observation(place / "h.npz", seen)
    assert read_observation(place / "h.npz").sample_digests == seen.sample_digests != ""
    table = calibrate(place / "net.onnx", images(8, 1), "minmax")
    table.write(place / "c.json")
    assert Calibration.read(place / "c.json").sample_digests == seen.sample_digests

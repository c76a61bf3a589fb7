"""Outputs of devices against the golden ones, by tier."""

import json

import numpy as np
import pytest

from tests.fixtures.commands import succeed
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.cli.main import run_command
from trtcal.documents import digest_file, read_npz, write_npz
from trtcal.errors import InputError
from trtcal.runs.bundle.verifying import MANIFEST, Options, verify
from trtcal.wings.fleet.drift import drift


@pytest.fixture
def saved(made_bundle, tmp_path):
    """Return what writes outputs of a device that is wrong about the first `wrong` golden inputs."""
    golden = read_npz(made_bundle / "golden.npz")
    about = {"manifest": digest_file(made_bundle / MANIFEST).removeprefix("sha256:")}

    def save(name, tier, wrong=0, noise=0.0, **given):
        arrays = {key: one.copy() for key, one in golden.items() if key.startswith("output")}
        for sample in range(16):
            outputs = arrays[f"output.0.{sample}"]
            outputs += np.float32(noise)
            if sample < wrong:
                outputs[0] = np.roll(outputs[0], 1)
        arrays["about"] = np.array(json.dumps({**about, "tier": tier, **given}))
        write_npz(tmp_path / name, arrays.items())
        return tmp_path / name

    return save


def test_outputs_of_a_self_test_agree_with_the_reference(made_bundle, tmp_path):
    verify(made_bundle, Options(allow_unsigned=True, save_outputs=tmp_path / "cpu.npz"))
    (tier,) = drift(made_bundle, [tmp_path / "cpu.npz"], 100.0)
    assert (tier.name, tier.devices, tier.within, tier.alert) == ("CPU", 1, 16, None)
    assert tier.agreement.value == 100.0
    assert 75.0 < tier.agreement.low < 85.0  # 16 inputs are few, and the interval says so
    assert tier.below is None


def test_a_tier_that_drifts_is_found_beside_those_that_do_not(made_bundle, saved):
    files = [saved(f"l4-{n}.npz", "L4") for n in range(3)]
    files += [saved("t4.npz", "T4", wrong=9), saved("orin.npz", "Orin", wrong=1)]
    found = {tier.name: tier for tier in drift(made_bundle, files, 90.0)}
    assert {name: tier.devices for name, tier in found.items()} == {"L4": 3, "Orin": 1, "T4": 1}
    assert found["L4"].alert is None
    assert found["Orin"].alert is None  # 15 of 16, and no interval below the rest
    assert found["Orin"].below.low < 0 < found["Orin"].below.high
    assert "points below the rest" in found["T4"].alert
    assert found["T4"].below.low > 0
    assert found["T4"].within == 7


def test_a_single_tier_is_held_to_the_limit(made_bundle, saved):
    path = saved("t4.npz", "T4", wrong=1)
    assert "15 of 16" in drift(made_bundle, [path], 95.0)[0].alert
    assert drift(made_bundle, [path], 90.0)[0].alert is None


def test_devices_of_a_tier_are_no_further_samples(made_bundle, saved):
    one = drift(made_bundle, [saved("a.npz", "T4")], 95.0)
    many = drift(made_bundle, [saved(f"{n}.npz", "T4") for n in range(20)], 95.0)
    assert one[0].agreement == many[0].agreement


def test_what_stays_in_the_class_but_not_within_tolerance_is_counted(made_bundle, saved):
    (tier,) = drift(made_bundle, [saved("t4.npz", "T4", noise=1.0)], 95.0)
    assert (tier.agreement.value, tier.within, tier.alert) == (100.0, 0, None)
    assert tier.largest > 1.0


@each("about", ["", "[]", "{}", '{"tier": "x", "manifest": "y"}'])
def test_outputs_of_another_bundle_or_of_none_are_refused(made_bundle, tmp_path, about):
    write_npz(tmp_path / "out.npz", {"about": np.array(about)}.items())
    with fails(InputError, "out.npz"):
        drift(made_bundle, [tmp_path / "out.npz"], 95.0)


def test_a_file_without_outputs_and_one_given_twice_are_refused(made_bundle, saved, tmp_path):
    write_npz(tmp_path / "data.npz", {"x": np.zeros(3)}.items())
    with fails(InputError, "data.npz", hint="trtcal bundle verify BUNDLE --save-outputs"):
        drift(made_bundle, [tmp_path / "data.npz"], 95.0)
    path = saved("t4.npz", "T4")
    with fails(InputError, "twice"):
        drift(made_bundle, [path, path.parent / "." / path.name], 95.0)


def test_outputs_that_lack_an_array_or_have_another_shape_are_refused(made_bundle, saved):
    path = saved("t4.npz", "T4")
    arrays = read_npz(path)
    less = {k: v for k, v in arrays.items() if k != "output.0.7"}
    for wrong in (less, {**arrays, "output.0.7": np.zeros((1, 3), np.float32)}):
        write_npz(path, wrong.items())
        with fails(InputError, "t4.npz"):
            drift(made_bundle, [path], 95.0)


def test_the_command_alerts_by_its_status(made_bundle, saved, capsys):
    fine, bad = saved("l4.npz", "L4"), saved("t4.npz", "T4\x1b[31m", wrong=9)
    assert "100.0 (79.4 to 100.0)" in succeed(capsys, "bundle", "drift", made_bundle, fine)
    assert run_command(["bundle", "drift", str(made_bundle), str(fine), str(bad), "--json"]) == 1
    captured = capsys.readouterr()
    assert [one["name"] for one in json.loads(captured.out)] == ["L4", "T4\x1b[31m"]
    assert "\x1b" not in captured.err

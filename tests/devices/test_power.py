"""Power, energy, clocks and throttling, by stand-ins of NVML and of a Jetson's programs.

They prove that functions are called and lines are read as documented: no GPU has been measured yet.
"""

import ctypes
import itertools
import json
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.wings.devices.worker import power
from trtcal.wings.devices.worker.frames import LINE_BYTES
from trtcal.wings.devices.worker.jobs import MAX_ROUNDS
from trtcal.wings.devices.worker.power import Integral, Meter, NvmlMeter, TegraMeter, rails
from trtcal.wings.devices.worker.timing import time_engines, timing_result

SOURCE = Path(__file__).parent.parent / "cuda" / "nvml.c"
BUS = b"0000:01:00.0"


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """Return the stand-in; skips without a C compiler."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc, for the stand-in of NVML")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE], check=True)  # noqa: S607
    return ctypes.CDLL(str(library))


def tell(library, **values):
    """Choose what the GPU answers."""
    for name, value in values.items():
        wide = name in ("energy_mj", "reasons")
        kind = ctypes.c_ulonglong if wide else ctypes.c_int
        kind.in_dll(library, name).value = value


def test_nvml_is_asked_for_the_gpu_that_cuda_runs_on(nvml):
    tell(nvml, energy_mj=2**40, clock_mhz=1980, reasons=0x01 | 0x20 | 0x04, processes=3)
    meter = NvmlMeter(BUS, nvml)
    assert meter.energy_mj() == 2.0**40
    assert meter.clock_mhz() == 1980
    assert meter.throttling() == ["the power limit", "the temperature"]
    assert meter.others() == 2
    assert meter.describe() == {"driver": "550.54.15", "power_mode": "350.5 W"}
    with fails(OSError, "NVML does not know the GPU (6)"):
        NvmlMeter(b"0000:09:00.0", nvml)


def test_without_a_counter_the_power_is_integrated(nvml, monkeypatch):
    times = itertools.count(5)
    monkeypatch.setattr(power.time, "monotonic", lambda: next(times))
    tell(nvml, has_energy=0, power_mw=1000)
    meter = NvmlMeter(BUS, nvml)
    assert meter.energy_mj() == 0
    tell(nvml, power_mw=3000)
    assert meter.energy_mj() == 2000  # one second, from 1 W to 3 W
    tell(nvml, power_mw=0)  # which this GPU cannot say any more
    assert meter.energy_mj() == 2000
    assert NvmlMeter(BUS, nvml).energy_mj() is None
    tell(nvml, has_energy=1)


def test_what_disturbs_a_measurement_is_said_once(nvml):
    tell(nvml, reasons=0, processes=1)
    meter = NvmlMeter(BUS, nvml)
    meter.watch()
    assert meter.warnings() == []
    tell(nvml, reasons=0x80, processes=2)
    meter.watch()
    meter.watch()
    assert meter.warnings() == [
        "the power supply lowered the GPU's clock during the measurement",
        "other programs used the GPU during the measurement",
    ]


def test_a_program_that_runs_is_watched(monkeypatch):
    monkeypatch.setattr(power, "SAMPLE_S", 0)
    meter, sampled, clocks = Meter(), threading.Event(), iter([300.0, 1500.0, None])
    monkeypatch.setattr(meter, "throttling", lambda: ["the temperature"])
    monkeypatch.setattr(meter, "clock_mhz", lambda: next(clocks, None) or sampled.set())
    with meter.sampling() as seen:
        assert sampled.wait(60)
    assert seen[:3] == [300.0, 1500.0, 0.0]
    assert len(meter.warnings()) == 1


class Counter(Meter):
    """A counter that shows what was used only every `every` runs, as NVML's does every 0.1 s."""

    def __init__(self, every):
        super().__init__()
        self.runs, self.every = 0, every

    def launch(self):
        self.runs += 1

    def energy_mj(self):
        return 1e6 + 3.0 * (self.runs // self.every * self.every)

    def clock(self):
        return self.runs / 8  # a run takes 0.125 s


@each("every", [1, 7])
def test_energy_is_counted_between_changes_of_the_counter(every):
    meter = Counter(every)
    energy = meter.energy_per_run(meter.launch, 8, meter.clock)
    assert energy == 3.0
    assert meter.runs == 64


def test_energy_that_does_not_change_twice_is_not_known():
    meter = Counter(60)
    assert meter.energy_per_run(meter.launch, 8, meter.clock) is None
    assert Meter().energy_per_run(lambda: pytest.fail("it measures nothing")) is None


def test_an_integral_needs_two_samples():
    integral = Integral()
    assert integral.mj is None
    integral.add(5, 1)
    assert integral.mj == 0


TEGRASTATS = {
    "RAM 2448/7772MB (lfb 4x4MB) SWAP 0/3886MB CPU [10%@1190] EMC_FREQ 0% GR3D_FREQ 99%@[1300] "
    "VDD_IN 4998mW/4990mW VDD_CPU_GPU_CV 1000mW/900mW VDD_SOC 1400mW/1400mW": 4998,
    "RAM 1/2MB IRAM 0/252kB(lfb 252kB) POM_5V_IN 2100/2000 POM_5V_GPU 40/40 POM_5V_CPU 7/7": 2100,
    "VDD_GPU_SOC 2390mW/2390mW VDD_CPU_CV 398mW/398mW VIN_SYS_5V0 3119mW/3119mW "
    "VDDQ_VDD2_1V8AO 402mW/402mW": 2390 + 398 + 3119,
    "GPU 10mW/10mW CPU 20mW/20mW SOC 5mW/5mW": 35,
    "RAM 2448/7772MB SWAP 0/3886MB": None,
}


@each("line", TEGRASTATS)
def test_a_jetson_s_module_uses_what_its_input_or_its_rails_say(line):
    assert power.module_power(rails(line)) == TEGRASTATS[line]


def test_a_jetson_s_energy_is_read_as_its_program_says_it(tmp_path, monkeypatch):
    program = tmp_path / "tegrastats"
    program.write_text("#!/bin/sh\nfor i in 1 2 3; do echo RAM 1/2MB VDD_IN 4000mW/1mW; done\n")
    program.chmod(0o755)
    (tmp_path / "nvpmodel").write_text("#!/bin/sh\necho NV Power Mode: MAXN\necho 0\n")
    (tmp_path / "nvpmodel").chmod(0o755)
    clock = tmp_path / "17000000.gpu"
    clock.mkdir()
    (clock / "cur_freq").write_text("1300500000\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(power, "CLOCKS", str(tmp_path / "*{}*" / "cur_freq"))
    times = itertools.count(5)
    monkeypatch.setattr(power.time, "monotonic", lambda: next(times))
    meter = power.open_meter()
    assert isinstance(meter, TegraMeter)
    meter._reader.join()  # the program has ended
    assert meter.energy_mj() == 8000  # two seconds between three lines
    assert meter.clock_mhz() == 1300.5
    assert meter.describe() == {"driver": None, "power_mode": "MAXN"}
    meter.close()


def test_without_a_gpu_nothing_is_measured(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert type(power.open_meter()) is Meter
    assert power.nvpmodel() is None


class Ran:
    """An engine of which each run takes two milliseconds, one of them for transfers."""

    def launch(self):
        return 2.0, 1.0


def job(rounds, runtime):
    return SimpleNamespace(fields={"rounds": rounds, "runtime": runtime})


def test_a_job_that_times_says_energy_and_clocks(monkeypatch):
    meter = Counter(1)
    clocks = iter([1500.0, 1200.0])
    monkeypatch.setattr(meter, "clock_mhz", lambda: next(clocks))
    monkeypatch.setattr(meter, "throttling", lambda: ["the temperature"])
    monkeypatch.setattr(meter, "energy_per_run", lambda launch: launch()[0] * 10)
    monkeypatch.setattr("trtcal.wings.devices.worker.timing.open_meter", lambda: meter)
    result = time_engines([Ran(), Ran()], job(4, "tensorrt"), lambda _: None)
    assert result["energy_mj"] == [20.0, 20.0]
    assert result["clocks_mhz"] == [1500.0, 1200.0]
    assert result["compute_ms"] == [[[1.0, 1.0]] * 2] * 4
    clock, throttled = result["warnings"]
    assert "from 1500 to 1200 MHz" in clock
    assert "the temperature" in throttled


def test_the_most_times_that_a_job_takes_fit_the_line_of_an_answer():
    run = ctypes.c_float(123.4567).value, ctypes.c_float(111.2345).value
    result = timing_result([[[run, run]]] * MAX_ROUNDS, (None, None), [])
    assert result["compute_ms"][0] == [[111.2345] * 2]
    assert len(json.dumps(result)) < LINE_BYTES


def test_a_cpu_s_job_does_not_count_the_gpu_s_energy(monkeypatch):
    monkeypatch.setattr(
        "trtcal.wings.devices.worker.timing.open_meter", lambda: pytest.fail("it asks the GPU")
    )
    result = time_engines([Ran()], job(1, "onnxruntime"), lambda _: None)
    assert result["energy_mj"] == [None]

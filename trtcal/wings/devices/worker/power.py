"""Power, energy, clocks and throttling of a GPU. Not yet run on a GPU.

NVML through ctypes, for GPUs in a slot: the energy counter (Volta and later), else sampled power. On a
Jetson `tegrastats`, which reports the rails of the module, and the clock that the kernel shows.
Sources: NVML API reference, "Device Queries"; Jetson Linux developer guide, "tegrastats".
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

from .cuda_driver import CudaError, Device

SECONDS = 2.0  # of repeated runs for an engine's energy
POLL_S = 0.01
SAMPLE_S = 0.05
SM_CLOCK = 1  # NVML_CLOCK_SM
INSUFFICIENT_SIZE = 7  # NVML_ERROR_...
THROTTLING = {
    0x04: "the power limit",
    0x08: "a slowdown by the hardware",
    0x20: "the temperature",
    0x40: "the temperature (by the hardware)",
    0x80: "the power supply",
}
"""Bits of nvmlClocksThrottleReason that lower the clock during work."""


class Meter:
    """What a device tells of itself while engines run: here nothing.

    `watch` looks whether something lowers the clock, and who else computes; `warnings` says it.
    """

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}
        self._integral = Integral()

    def energy_mj(self) -> float | None:
        """Return the energy used so far in millijoules, from any zero; None if it is not known."""
        return self._integral.mj

    def clock_mhz(self) -> float | None:
        """Return the present clock of the multiprocessors."""
        return None

    def throttling(self) -> list[str]:
        """Return what lowers the clock now."""
        return []

    def others(self) -> int:
        """Return how many other programs compute on the GPU."""
        return 0

    def describe(self) -> dict[str, Any]:
        """Return `driver` and `power_mode`."""
        return {"driver": None, "power_mode": None}

    def watch(self) -> None:
        """Remember what disturbs the measurement now."""
        causes = [f"{reason} lowered the GPU's clock" for reason in self.throttling()]
        causes += ["other programs used the GPU"] if self.others() else []
        self._seen.update(dict.fromkeys(causes))

    def warnings(self) -> list[str]:
        """Return what `watch` saw."""
        return [f"{cause} during the measurement" for cause in self._seen]

    @contextlib.contextmanager
    def sampling(self) -> Iterator[list[float]]:
        """Watch while a program runs; yield the clocks that are seen meanwhile, in MHz."""
        clocks: list[float] = []
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_S):
                self.watch()
                clocks.append(self.clock_mhz() or 0.0)

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield clocks
        finally:
            ended.set()
            thread.join()

    def energy_per_run(
        self,
        launch: Callable[[], object],
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> float | None:
        """Return millijoules per run of repeated runs, None if the device does not tell.

        Runs and energy are counted from the first change of the counter to the last: one that
        changes ten times a second would else be wrong by what it has not counted yet.
        """
        marks: list[tuple[int, float]] = []
        count, polled, end, last = 0, clock(), clock() + seconds, self.energy_mj()
        while last is not None and clock() < end:
            launch()
            count += 1
            if clock() - polled >= POLL_S:
                polled, energy = clock(), self.energy_mj()
                if energy is not None and energy != last:
                    last = energy
                    marks.append((count, energy))
        if len(marks) < 2:
            return None
        (first, before), (final, after) = marks[0], marks[-1]
        return (after - before) / (final - first)

    def close(self) -> None:
        """End what runs in the background."""


class Integral:
    """Energy in millijoules from samples of power, by the trapezoidal rule; None before the first."""

    def __init__(self) -> None:
        self.mj: float | None = None
        self._last = 0.0, 0.0

    def add(self, power_mw: float, at_s: float) -> None:
        """Take one sample."""
        before_mw, before_s = (power_mw, at_s) if self.mj is None else self._last
        self.mj = (self.mj or 0.0) + (before_mw + power_mw) / 2 * (at_s - before_s)
        self._last = power_mw, at_s


class NvmlMeter(Meter):
    """A GPU by its address on the bus; all the board's power counts. `OSError` without NVML."""

    def __init__(self, pci_bus_id: bytes, library: Any = None) -> None:
        super().__init__()
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1") if library is None else library
        self._device = ctypes.c_void_p()
        failed = self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByPciBusId_v2(
            pci_bus_id, ctypes.byref(self._device)
        )
        if failed:
            raise OSError(f"NVML does not know the GPU ({failed})")

    def _ask(self, name: str, kind: Any, *arguments: Any) -> int | None:
        """Return what one query answers, None if this GPU or driver has no answer."""
        value = kind()
        query = getattr(self._nvml, name, None)
        failed = query is None or query(self._device, *arguments, ctypes.byref(value))
        return None if failed else int(value.value)

    def energy_mj(self) -> float | None:
        """Return the counter's millijoules, else the integral of the power asked for here."""
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
        if energy is not None:
            return float(energy)
        power = self._ask("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        if power is not None:
            self._integral.add(power, time.monotonic())
        return self._integral.mj

    def clock_mhz(self) -> float | None:
        """Return the multiprocessors' clock."""
        return self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint, SM_CLOCK)

    def throttling(self) -> list[str]:
        """Return the reasons for a lower clock that have a name here."""
        query = "nvmlDeviceGetCurrentClocksThrottleReasons"
        bits = self._ask(query, ctypes.c_ulonglong) or 0
        return [reason for bit, reason in THROTTLING.items() if bits & bit]

    def others(self) -> int:
        """Return how many programs compute on the GPU, but for this one."""
        for version in ("_v3", "_v2", ""):
            query = getattr(self._nvml, "nvmlDeviceGetComputeRunningProcesses" + version, None)
            count = ctypes.c_uint(0)
            if query and query(self._device, ctypes.byref(count), None) in (0, INSUFFICIENT_SIZE):
                return max(count.value - 1, 0)
        return 0

    def describe(self) -> dict[str, Any]:
        """Return the driver's version, and the power limit as the power mode."""
        text = ctypes.create_string_buffer(96)
        failed = self._nvml.nvmlSystemGetDriverVersion(text, len(text))
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        return {
            "driver": None if failed else text.value.decode("ascii", "replace"),
            "power_mode": None if limit is None else "%g W" % (limit / 1e3),
        }


RAIL = re.compile(r"(\w+) (\d+)(?:mW)?/\d+(?:mW)?(?=\s|$)")
WHOLE = ("VDD_IN", "POM_5V_IN", "VIN")  # rails that feed all the others
PARTS = {"VDDQ_VDD2_1V8AO"}  # counted in another rail
CLOCKS = "/sys/class/devfreq/*{}*/cur_freq"
GPUS = ("gpu", "gv11b", "ga10b", "gp10b")


def rails(line: str) -> dict[str, int]:
    """Return the power of each rail in mW that a line of `tegrastats` reports.

    >>> rails("RAM 1/2MB VDD_IN 4998mW/4990mW VDD_SOC 1000mW/1000mW")
    {'VDD_IN': 4998, 'VDD_SOC': 1000}
    """
    return {name: int(power) for name, power in RAIL.findall(line)}


def module_power(powers: dict[str, int]) -> int | None:
    """Return the whole module's power in mW: its input, else the sum of the rails."""
    for name in WHOLE:
        if name in powers:
            return powers[name]
    return sum(mw for name, mw in powers.items() if name not in PARTS) if powers else None


class TegraMeter(Meter):
    """A Jetson: its module's power from `tegrastats`. `OSError` without that program."""

    def __init__(self, program: str = "tegrastats") -> None:
        super().__init__()
        command = [program, "--interval", "50"]
        self._process = subprocess.Popen(  # noqa: S603  # the system's own program
            command, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            power = module_power(rails(line))
            if power is not None:
                self._integral.add(power, time.monotonic())

    def clock_mhz(self) -> float | None:
        """Return the GPU's clock that the kernel shows."""
        for path in (path for gpu in GPUS for path in glob.glob(CLOCKS.format(gpu))):
            return int(Path(path).read_text()) / 1e6
        return None

    def describe(self) -> dict[str, Any]:
        """Return the module's power mode by `nvpmodel`."""
        return {"driver": None, "power_mode": nvpmodel()}

    def close(self) -> None:
        """End `tegrastats`."""
        self._process.terminate()
        self._reader.join()
        self._process.communicate()


def nvpmodel() -> str | None:
    """Return a Jetson's power mode, such as `MAXN`; None if it does not tell."""
    program = shutil.which("nvpmodel", path=os.environ.get("PATH", "") + ":/usr/sbin")
    try:
        done = subprocess.run(  # noqa: S603  # the system's own program
            [program or "nvpmodel", "-q"], stdout=subprocess.PIPE, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    mode = re.search(r"Power Mode: *(\S+)", done.stdout)
    return mode.group(1) if mode else None


def open_meter() -> Meter:
    """Return what measures the GPU here; a meter that knows nothing if nothing does."""
    try:
        return TegraMeter() if shutil.which("tegrastats") else NvmlMeter(Device().pci_bus_id())
    except (OSError, CudaError):
        return Meter()


def describe() -> dict[str, Any] | None:
    """Return the GPU as `hello` shows it; None without one."""
    try:
        device = Device().describe()
    except CudaError:
        return None
    meter = open_meter()
    meter.close()
    return dict(device, **meter.describe())

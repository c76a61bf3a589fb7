"""The kernels as nvcc compiles them, run by an interpreter under adverse schedules, beside NumPy.

Mutants of the compiled text (`ptx_mutants`) show that the schedules notice what is wrong. None of this
shows that a GPU runs the text so: `make test-gpu` does, where there is one.
"""

import shutil

import numpy as np
import pytest

from calibrators import Histogram, histogram
from calibrators.cuda_histogram import DeviceHistogram, kernel_source
from tests.calibrators.bindings import HostMemory
from tests.cuda import ptx_mutants
from tests.cuda.ptx import Kernel, Memory, PtxError, compiled
from tests.cuda.ptx_mutants import (
    KERNELS,
    SCHEDULES,
    counted,
    difference,
    expected,
    few_slots,
    runs,
    summary,
)
from tests.fixtures.slow import SLOW, slow_but

HEAD = ".visible .entry k(\n.param .u64 out,\n.param .u32 x,\n.param .u32 y\n)\n{\n"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The PTX of the kernels with few slots, for any architecture."""
    made = {}

    def of(architecture=90, change=few_slots):
        key = architecture, change
        if key not in made:
            folder = tmp_path_factory.mktemp("ptx")
            made[key] = compiled(change(kernel_source()), architecture, folder)
        return made[key]

    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc, of the CUDA toolkit, which compiles the kernels")
    return of


@pytest.mark.parametrize("name", KERNELS)
def test_compiled_kernels_count_what_numpy_counts(text, name):
    assert difference(text(), name, runs(every=1)) is None


@SLOW
@pytest.mark.parametrize("architecture", [75, 90])
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_kernels_count_so_under_all_schedules(text, name, architecture):
    assert difference(text(architecture), name, runs()) is None


def test_a_kernel_with_all_its_slots_counts_the_same(text):
    values = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    kernel = Kernel(text(change=str), "count_values")
    words = counted(kernel, values, "at random", blocks=1, threads=64)
    assert np.array_equal(words, expected("count_values", values))


class PtxDevice(HostMemory):
    """Host memory, in which the interpreter runs the compiled kernels."""

    def __init__(self, text, schedule):
        super().__init__()
        self.kernels = {name: Kernel(text, name) for name in KERNELS}
        self.schedule, self.buffers = schedule, {}

    def allocate(self, nbytes):
        address = ptx_mutants.COUNTS + len(self.buffers) * (1 << 30)
        self.buffers[address] = bytearray(nbytes)
        return address

    def free(self, address):
        del self.buffers[address]

    def _at(self, address):
        base = max(base for base in self.buffers if base <= address)
        return self.buffers[base], address - base

    def copy(self, address, array):
        data, start = self._at(address)
        data[start : start + array.nbytes] = array.tobytes()

    def read(self, address, array):
        data, start = self._at(address)
        array[...] = np.frombuffer(data, array.dtype, array.size, start).reshape(array.shape)

    def launch(self, kernel, blocks, values, elements, fp16, words):
        memories = [Memory(base, data) for base, data in self.buffers.items()]
        arguments = values, elements, int(fp16), words
        self.kernels[kernel].run(2, 5, arguments, memories, SCHEDULES[self.schedule])


@pytest.mark.parametrize("schedule", slow_but(SCHEDULES, "in lockstep"))
def test_the_histogram_has_the_digest_of_the_host(text, schedule, monkeypatch):
    monkeypatch.setattr(histogram, "VALUES_KEPT", 20)
    device, wanted = PtxDevice(text(), schedule), Histogram()
    rng = np.random.default_rng(5)
    with DeviceHistogram(device) as result:
        for dtype in (np.float16, np.float32, np.float16):
            values = rng.standard_normal(90).astype(dtype)
            address = device.allocate(values.nbytes)
            device.copy(address, values)
            result.update(address, values.size, dtype)
            wanted.update(values)
        assert result.histogram().digest() == wanted.digest()


def test_removed_barriers_and_plain_atomics_are_noticed(text):
    tried = {"barrier removed": 0, "plain atomic": 0}
    for name in KERNELS:
        few = [(kind, *rest) for kind, *rest in ptx_mutants.mutants(text(), name) if kind in tried]
        order = runs()
        for kind, line, mutant in few[:2] + few[2::9]:
            tried[kind] += 1
            assert difference(mutant, name, order), f"not noticed: {line}"
    assert tried == {"barrier removed": 4, "plain atomic": 6}


@SLOW
def test_all_mutants_that_are_not_equivalent_are_noticed(text):
    lines, missed = summary(text())
    print("\n".join(lines))
    assert missed == []


def run_lines(*lines, x=0, y=0, threads=1):
    """Run instructions, with %x, %y and the address of 64 bytes in %out; return these as words."""
    loads = "ld.param.u64 %out, [out];\nld.param.u32 %x, [x];\nld.param.u32 %y, [y];\n"
    out = Memory(1 << 40, bytearray(64))
    kernel = Kernel(HEAD + loads + "\n".join(lines) + "\nret;\n}\n", "k")
    kernel.run(1, threads, (out.base, x, y), [out], SCHEDULES["in lockstep"])
    return np.frombuffer(out.data, np.uint32).tolist()


@pytest.mark.parametrize(
    ("line", "x", "y", "result"),
    [
        ("add.s32 %z, %x, %y;", 0xFFFFFFFF, 2, 1),
        ("sub.s32 %z, %x, %y;", 1, 2, 0xFFFFFFFF),
        ("mul.lo.s32 %z, %x, -1640531535;", 3, 0, 3 * 2654435761 % (1 << 32)),
        ("shl.b32 %z, %x, 32;", 5, 0, 0),
        ("shr.u32 %z, %x, %y;", 0x80000000, 31, 1),
        ("shr.s32 %z, %x, %y;", 0x80000000, 40, 0xFFFFFFFF),
        ("min.s32 %z, %x, %y;", 0xFFFFFFFF, 2, 0xFFFFFFFF),
        ("max.u32 %z, %x, %y;", 0xFFFFFFFF, 2, 0xFFFFFFFF),
        ("clz.b32 %z, %x;", 0, 0, 32),
        ("clz.b32 %z, %x;", 1, 0, 31),
        ("mul.wide.u32 %w, %x, %y;\nshr.u64 %v, %w, 32;\ncvt.u32.u64 %z, %v;", 1 << 31, 6, 3),
        ("cvt.s64.s32 %w, %x;\nshr.u64 %v, %w, 32;\ncvt.u32.u64 %z, %v;", 1 << 31, 0, 0xFFFFFFFF),
        ("setp.lt.s32 %p, %x, %y;\nselp.u32 %z, 7, 8, %p;", 0xFFFFFFFF, 0, 7),
        ("setp.lt.u32 %p, %x, %y;\nselp.u32 %z, 7, 8, %p;", 0xFFFFFFFF, 0, 8),
        ("setp.eq.s32 %p, %x, 0;\nmov.u32 %z, 1;\n@!%p mov.u32 %z, -2;", 4, 0, 0xFFFFFFFE),
        ("atom.global.cas.b32 %z, [%out+4], 0, %x;", 9, 0, 0),
    ],
)
def test_instructions(line, x, y, result):
    assert run_lines(line, "st.global.u32 [%out], %z;", x=x, y=y)[0] == result


@pytest.mark.parametrize(
    "opcode",
    [
        "fma.rn.f32",
        "ld.global.f32",
        "shfl.sync.idx.b32",
        "atom.shared.exch.b32",
        "add.sat.s32",
        "exit",
    ],
)
def test_an_opcode_that_is_not_known_is_named(opcode):
    with pytest.raises(PtxError, match=f"opcode {opcode} is not known"):
        run_lines(f"{opcode} %z, [%out], %x, %y;")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["ld.global.u32 %z, [%out+64];"], "outside"),
        (["st.global.u32 [%out+2], %x;"], "not aligned"),
        (["$L:", "bra.uni $L;"], "does not end"),
        (["mov.u32 %z, %tid.x;", "setp.eq.s32 %p, %z, 0;", "@%p ret;", "bar.sync 0;"], "1 threads"),
        (["not PTX"], "not understood"),
    ],
)
def test_what_a_gpu_does_not_allow_is_an_error(lines, message):
    with pytest.raises(PtxError, match=message):
        run_lines(*lines, threads=2)

"""Where numba keeps compiled kernels: in a folder of the user's, for each folder of sources.

Beside the package they would outlive it, and that folder would hide the next installation.
"""

from contextlib import suppress
from typing import Any

from numba.core.caching import CompileResultCacheImpl as Files
from numba.core.caching import FunctionCache


class _Files(Files):
    _locator_classes: Any = tuple(x for x in Files._locator_classes if "InTree" not in x.__name__)


class _KernelCache(FunctionCache):
    _impl_class = _Files

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code where there is room; else the next process compiles it again."""
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def keep_compiled(kernel: Any) -> Any:
    """Return a function of `numba.njit` that keeps its code, where a folder can be written."""
    with suppress(RuntimeError):  # numba has no folder
        kernel._cache = _KernelCache(kernel.py_func)  # type: ignore[no-untyped-call]
    return kernel

"""Where numba keeps compiled kernels: in the user's cache folder, never beside the installed package.

There they would outlive an uninstallation, and that folder without modules would hide the next
installation. `NUMBA_CACHE_DIR` goes before; the caches of other packages stay where they are.
"""

from contextlib import suppress
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = tuple(
        place for place in CompileResultCacheImpl._locator_classes if "InTree" not in place.__name__
    )


class _KernelCache(FunctionCache):  # type: ignore[misc]
    _impl_class = _Files

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code where there is room; else the next process compiles it again."""
        with suppress(OSError):
            super().save_overload(sig, data)


def keep_compiled(kernel: Any) -> Any:
    """Return a function of `numba.njit` that keeps its code, where a folder can be written."""
    with suppress(RuntimeError):  # numba has no folder
        kernel._cache = _KernelCache(kernel.py_func)
    return kernel

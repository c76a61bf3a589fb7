"""Libraries that would read a file of the current folder as they are imported: it is data here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

MATPLOTLIB, NUMBA = "matplotlibrc", ".numba_config.yaml"
Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def without_file(name: str) -> Iterator[None]:
    """Let what is imported in the block find no file of this relative name."""
    exists = os.path.exists
    os.path.exists = lambda path: path != name and exists(path)
    try:
        yield
    finally:
        os.path.exists = exists


class Compiled:
    """A function that numba compiles when it is first called, or compiled into another one.

    `plain` does the same in NumPy while there is little work: `cost` a value in its first argument.
    """

    left = 1 << 25  # values for NumPy, which takes 0.1 s for them: less than to import numba

    def __init__(
        self, function: Callable[..., Any], plain: Callable[..., Any] | None, cost: int
    ) -> None:
        functools.update_wrapper(self, function)
        self.plain, self.cost = plain, cost

    @functools.cached_property
    def kernel(self) -> Any:
        """The compiled function. Importing numba takes 0.3 s, which most commands have no need of."""
        with without_file(NUMBA):
            from numba import njit
            from numba.core import config

            from calibrators.kernel_cache import keep_compiled
        config._config_fname = ""  # it is looked for again at every compilation
        return keep_compiled(njit(nogil=True)(self.__wrapped__))  # type: ignore[attr-defined]

    def __call__(self, *arguments: Any) -> Any:
        """Call the function: compiled, once there was much to do in this process."""
        if self.plain is not None:
            Compiled.left -= self.cost * arguments[0].size
        if self.plain is None or Compiled.left < 0:
            return self.kernel(*arguments)
        return self.plain(*arguments)

    @property
    def _numba_type_(self) -> Any:
        """What numba asks of a global that a function names which it compiles."""
        return self.kernel._numba_type_


def compiled(
    function: Function, plain: Callable[..., Any] | None = None, cost: int = 1
) -> Function:
    """Compile a function with numba, to run without the GIL, and keep the code for the next process.

    A configuration in the current folder could name another place for it, whose files are unpickled.
    """
    return cast("Function", Compiled(function, plain, cost))

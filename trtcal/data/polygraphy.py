"""A Python file with `load_data()`, as for `polygraphy run --data-loader-script`.

It is the user's own code, run because the user named it. The whole file is run anew for each pass:
random numbers that are seeded at its top then come out the same, and no pass is kept in memory.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trtcal.data.arrays import parse_array
from trtcal.data.dataset import Array, Feeds
from trtcal.documents import read_json
from trtcal.errors import InputError
from trtcal.scripts import function_in, running

CLASS = "polygraphy_class"
OLD_CLASS = "__polygraphy_encoded_"
SAVED_INPUTS = "give the file or folder that `polygraphy run --save-inputs` wrote"


def read_feeds(path: Path) -> Iterator[Feeds]:
    """Yield the feeds in one file of Polygraphy's, which holds a list of them or a single one."""
    value = read_json(path)
    feeds = value if isinstance(value, list) else [value]
    for number, feed in enumerate(feeds):
        where = f"{path}, feed {number}"
        if not isinstance(feed, dict) or class_of(feed):
            what = class_of(feed) if isinstance(feed, dict) else type(feed).__name__
            raise InputError(
                f"data {where}: the feed is a {what}, not a dictionary of arrays", SAVED_INPUTS
            )
        yield {name: array_of(f"data {where}", name, item) for name, item in feed.items()}


def class_of(value: dict[str, object]) -> str | None:
    """Return the Python class that Polygraphy says a JSON object was, None for a plain one."""
    old = (key.removeprefix(OLD_CLASS) for key in value if key.startswith(OLD_CLASS))
    name = value.get(CLASS) or next(old, None)
    return None if name is None else str(name)


def array_of(where: str, name: str, value: object, hint: str = SAVED_INPUTS) -> Array:
    """Return an array that Polygraphy encoded; `InputError` if it is none."""
    kind = class_of(value) if isinstance(value, dict) else type(value).__name__
    if not isinstance(value, dict) or kind != "ndarray" or not isinstance(value.get("array"), str):
        raise InputError(f"{where}: {name!r} is a {kind or 'dict'}, not a numpy array", hint)
    try:
        return parse_array(base64.b64decode(value["array"], validate=True))
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise InputError(f"{where}: {name!r} cannot be read: {error}", hint) from error


FUNCTION = "load_data"
YIELDS = "yield one dictionary {input: array} after another from the function"
_END = object()


@dataclass(frozen=True)
class Script:
    """A Python file, and the function in it that gives the feeds."""

    path: Path
    function: str

    def __call__(self) -> Iterator[object]:
        """Run the file and yield what its function yields."""
        with running(self.path, YIELDS):
            hint = f"define {FUNCTION}(), or name another one: --data {self.path}:name"
            items = iter(function_in(self.path, self.function, hint)())
        while True:
            with running(self.path, YIELDS):
                item = next(items, _END)
            if item is _END:
                return
            yield item

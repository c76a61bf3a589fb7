"""The per-layer profile table of trtexec, whose rows mean nothing without their heading."""

from __future__ import annotations

from dataclasses import dataclass

from trtcal.buildlog.events import Value

MAX_COLUMNS = 6


@dataclass(frozen=True)
class Table:
    """A table being read: how many number columns it has, and on which side the layer stands.

    `columns` is 0 outside of a table. Two layouts exist: layer last (TensorRT 8.6 and later) and
    layer first, padded to the longest name (before).
    """

    columns: int = 0
    layer_first: bool = False

    def read_row(self, message: str) -> tuple[str | None, dict[str, Value]] | None:
        """Return a row's layer (None for the total) and its numbers, or None if it is no row."""
        split = message.rsplit if self.layer_first else message.split
        cells = split(None, self.columns)
        if len(cells) != self.columns + 1:
            return None
        name = cells.pop(0 if self.layer_first else -1).strip()
        try:
            numbers = [float(cell) for cell in cells]
        except ValueError:
            return None
        values: dict[str, Value] = {"rule": "time_layer", "total_ms": numbers[0]}
        values.update(average_ms=numbers[1], percent=numbers[-1])
        if len(numbers) > 3:
            values["median_ms"] = numbers[2]
        return (None if name == "Total" else name), values


NO_TABLE = Table()


def table_headed(message: str) -> Table:
    """Return the table that a message is the heading of, or `NO_TABLE`."""
    if "Time" not in message:
        return NO_TABLE
    place = message.find("Layer")
    time = max(message.find("Time(ms)"), message.find("Time (ms)"))
    columns = message.count("(ms)") + message.count("(%)") + message.count("Time %")
    is_heading = place >= 0 and time >= 0 and 3 <= columns <= MAX_COLUMNS
    return Table(columns, place < time) if is_heading else NO_TABLE

"""An input of the fuzzer: files of which one is mutated, and the command that reads them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fuzz import mutations as m

Chooser = random.Random


@dataclass(frozen=True)
class Case:
    """Files by their path in a folder, one of them mutated, and the command that reads them there."""

    files: dict[str, bytes]
    command: tuple[str, ...]


@dataclass(frozen=True)
class Format:
    """Mutates one of `seeds`, puts it beside the files that `commands` need, and chooses a command.

    In a command `{}` is the mutated file. `placed` is its path, the seed's name if not given.
    """

    seeds: tuple[str, ...]
    mutate: m.Mutator
    commands: tuple[str, ...]
    beside: tuple[str, ...] = ()
    placed: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def __call__(self, folder: Path, chooser: Chooser) -> Case:
        """Return a case."""
        seed = chooser.choice(self.seeds)
        name = self.placed.format(Path(seed).name) or Path(seed).name
        command = chooser.choice(self.commands).format(name)
        files = {one: (folder / one).read_bytes() for one in self.beside}
        files |= {place: (folder / one).read_bytes() for place, one in self.extra.items()}
        return Case({**files, name: mutated(self.mutate, folder / seed, chooser)}, _words(command))

    def whole(self, folder: Path) -> Iterator[Case]:
        """Yield each command with each seed as it is: what is read if nothing is wrong."""
        for seed in self.seeds:
            for command in self.commands:
                one = replace(self, seeds=(seed,), commands=(command,), mutate=lambda data, _: data)
                yield one(folder, random.Random(0))  # noqa: S311


def mutated(mutate: m.Mutator, path: Path, chooser: Chooser) -> bytes:
    """Return a mutated seed."""
    seed = path.read_bytes()
    try:
        return mutate(seed, chooser)
    except (RecursionError, ValueError):  # what can't be written can't be read
        return m.of_bytes(seed, chooser)


def _words(command: str) -> tuple[str, ...]:
    return tuple(command.split())

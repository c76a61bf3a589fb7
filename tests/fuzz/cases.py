"""An input of the fuzzer: files of which one is mutated, and the command that reads them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import mutations as m

Chooser = random.Random


@dataclass(frozen=True)
class Case:
    """Files by their path in a folder, one of them changed, and the command that reads them there."""

    files: dict[str, bytes]
    command: tuple[str, ...]
    changed: str


@dataclass(frozen=True)
class Format:
    """Mutates one of `seeds`, puts it beside the files that `commands` need, and chooses a command.

    In a command `{}` is the mutated file. `placed` is its path, the seed's name if not given.
    """

    seeds: tuple[str, ...]
    mutate: m.Mutator
    commands: tuple[str, ...]
    beside: tuple[str, ...] = ()
    placed: str = "{}"
    extra: dict[str, str] = field(default_factory=dict)

    def __call__(self, folder: Path, chooser: Chooser) -> Case:
        """Return a case of a mutated seed."""
        seed, command = chooser.choice(self.seeds), chooser.choice(self.commands)
        return self.case(folder, seed, mutated(self.mutate, folder / seed, chooser), command)

    def case(self, folder: Path, seed: str, data: bytes, command: str) -> Case:
        """Return a case in which a file has these bytes instead of a seed's."""
        name = self.placed.format(Path(seed).name)
        files = {one: (folder / one).read_bytes() for one in self.beside}
        files |= {place: (folder / one).read_bytes() for place, one in self.extra.items()}
        return Case({**files, name: data}, tuple(command.format(name).split()), name)

    def whole(self, folder: Path) -> Iterator[Case]:
        """Yield each command with each seed as it is: what is read if nothing is wrong."""
        for seed in self.seeds:
            yield from self.every(folder, seed, (folder / seed).read_bytes())

    def every(self, folder: Path, changed: str, data: bytes) -> Iterator[Case]:
        """Yield each command with these bytes instead of the seed of that file's name."""
        seed = next(one for one in self.seeds if Path(one).name == Path(changed).name)
        for command in self.commands:
            yield self.case(folder, seed, data, command)


def mutated(mutate: m.Mutator, path: Path, chooser: Chooser) -> bytes:
    """Return a mutated seed."""
    seed = path.read_bytes()
    try:
        return mutate(seed, chooser)
    except (RecursionError, ValueError):  # what can't be written can't be read
        return m.of_bytes(seed, chooser)

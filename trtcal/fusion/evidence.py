"""What a real build made of each match: the layers that list its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtcal.backends.manifest import MANIFEST, read_build
from trtcal.buildlog.layers import NODE_SEPARATORS, Layer
from trtcal.engine import read_engine
from trtcal.errors import InputError
from trtcal.fusion.matching import Match

ONE, SEVERAL, UNLISTED, OPAQUE = "one layer", "several layers", "not listed", "opaque"


@dataclass(frozen=True)
class LayerList:
    """The layers of an engine, where they were read, and of which model it is, if that is told."""

    source: str
    layers: tuple[Layer, ...]
    model: str | None = None
    builder: str | None = None


@dataclass(frozen=True)
class Seen:
    """What the layer list shows of one match.

    `state` is `one layer`, `several layers`, `not listed` (no layer names a node of it) or `opaque`
    (one lists it that stands for a whole compiled subgraph). `layers` are names and kinds;
    `unlisted` the nodes that none names: folded away, or merged where no name is kept.
    """

    state: str
    layers: tuple[tuple[str, str], ...] = ()
    unlisted: tuple[str, ...] = ()
    moved_bytes: int | None = None
    """Bytes of what one of the layers writes and another reads, counted twice."""

    @property
    def is_known(self) -> bool:
        """Whether it says how many kernels there are."""
        return self.state in (ONE, SEVERAL)


def read_layers(path: Path) -> LayerList:
    """Read whatever `trtcal.engine` takes layers from; of a build also which model it is of.

    `InputError` if there are no layers in it.
    """
    if not (path.is_dir() and (path / MANIFEST).is_file()) and path.name != MANIFEST:
        return LayerList(str(path), read_engine(path).layers)
    build = read_build(path if path.is_dir() else path.parent)
    if not build.layers:
        raise InputError(f"{path} lists no layers", "build with detailed profiling verbosity")
    builder = f"{build.backend} {build.backend_version} for {build.target}"
    return LayerList(str(path), build.layers, build.model, builder)


def look(matches: Sequence[Match], layers: Sequence[Layer]) -> tuple[Seen, ...]:
    """Return what a layer list shows of each match.

    Layers that neither read nor write (they synchronize) don't count, if others tell what they do.
    """
    told = any(layer.inputs or layer.outputs for layer in layers)
    working = [layer for layer in layers if layer.inputs or layer.outputs or not told]
    index: dict[str, list[int]] = {}
    for number, layer in enumerate(working):
        for node in layer.nodes:
            index.setdefault(node, []).append(number)
    return tuple(_look(match, working, index) for match in matches)


def _look(match: Match, layers: Sequence[Layer], index: Mapping[str, list[int]]) -> Seen:
    listing = {node: _listing(node, layers, index) for node in match.nodes}
    unlisted = tuple(node for node, numbers in listing.items() if not numbers)
    found = [layers[number] for number in sorted(set().union(*listing.values()))]
    named = tuple((layer.name, layer.kind) for layer in found)
    if not found:
        return Seen(UNLISTED, (), unlisted)
    if any(layer.is_opaque for layer in found):
        return Seen(OPAQUE, named, unlisted)
    state = ONE if len(found) == 1 else SEVERAL
    return Seen(state, named, unlisted, _moved(found))


def _listing(node: str, layers: Sequence[Layer], index: Mapping[str, list[int]]) -> list[int]:
    """Return the layers that list a node; a name with a separator in it was cut into pieces."""
    if node in index:
        return index[node]
    pieces = (node.split(mark)[0] for mark in NODE_SEPARATORS if mark in node)
    return [number for one in pieces for number in index.get(one, ()) if layers[number].lists(node)]


def _moved(layers: Sequence[Layer]) -> int | None:
    written = {one.name: one for layer in layers for one in layer.outputs}
    passed = {one.name for layer in layers for one in layer.inputs} & set(written)
    sizes = [written[name].size_bytes for name in passed]
    return None if None in sizes else 2 * sum(size for size in sizes if size is not None)

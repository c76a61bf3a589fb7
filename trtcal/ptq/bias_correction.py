"""Bias correction: shifts of channels that quantization causes are taken back in the biases.

The mean behind the activation is corrected (appendix D of M. Nagel et al., "Data-Free Quantization
Through Weight Equalization and Bias Correction", 2019, corrects that before it). Noise before a Relu is
cut off below zero and not above: the mean behind it is too large although the mean before it is right,
and over all channels and positions that a later layer sums up this counts more than the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.evaluate.search.segments import PairedGraph
from trtcal.model.graph import reads
from trtcal.model.model import Floats
from trtcal.model.ops import ACTIVATIONS, ELEMENTWISE

STEPS = 2  # of the secant method
SLOPES = (0.2, 1.2)  # of the mean behind over the mean before, for a channel that seldom fires too


def activation_of(pair: PairedGraph, place: int) -> Callable[[Array], Array] | None:
    """Return the activation of the first output of the node at a place, None if there is none.

    It is as many nodes as work on each value by itself, have one tensor that is read behind them, and
    are not all linear.
    """
    output = pair.nodes[place].output[0]
    taken = [] if output in pair.outputs else _elementwise_behind(pair, place, output)
    for count in range(len(taken), 0, -1):
        nodes = taken[:count]
        left = _still_read(pair, output, nodes)
        if len(left) == 1 and any(node.op_type in ACTIVATIONS for node in nodes):
            session = open_session(pair.as_model(nodes, [output], left))
            return lambda values: run_session(session, left, {output: values})[0]
    return None


def _elementwise_behind(pair: PairedGraph, place: int, output: str) -> list[onnx.NodeProto]:
    """Return the nodes that work on each value of a tensor, or of their own outputs, by itself."""
    taken, inside = list[onnx.NodeProto](), {output}
    unseen = pair.readers[output]
    for node in pair.nodes[place + 1 :]:
        read = set(reads(node))
        unseen -= len(read & inside)
        others = (name for name in read - inside if name not in pair.tensors)
        if node.op_type in ELEMENTWISE and read & inside and next(others, None) is None:
            taken.append(node)
            inside |= set(node.output)
            unseen += sum(pair.readers[name] for name in node.output)
        if not unseen:
            break
    return taken


def _still_read(pair: PairedGraph, output: str, nodes: Sequence[onnx.NodeProto]) -> list[str]:
    unread = {name: pair.readers[name] for name in (output, *(n.output[0] for n in nodes))}
    for name in (name for node in nodes for name in set(reads(node)) & set(unread)):
        unread[name] -= 1
    return [name for name, readers in unread.items() if readers]


def solve_shift(first: Floats, excess: Callable[[Floats], Floats]) -> Floats:
    """Return the shift of each channel, (channels,), at which there is no `excess` behind.

    `excess` gives by how much the means behind the activation are too large with a shift. The search
    is the secant method from no shift and `first`.
    """
    before: Floats = np.zeros_like(first)
    now, over = first, excess(before)
    for _ in range(STEPS):
        last, over = over, excess(now)
        moved = now - before
        slope = np.divide(over - last, moved, out=np.ones_like(now), where=moved != 0)
        before, now = now, now - over / np.clip(slope, *SLOPES)
    return now

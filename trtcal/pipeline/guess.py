"""A first `trtcal.toml`, read from a model and its data: what is guessed is marked, with the reason.

The file that `trtcal init` writes is what `trtcal run MODEL --data ...` does without one.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from trtcal.check.data_check import check_data
from trtcal.check.preprocessing import NORMAL, UNIT, settings_of
from trtcal.check.samples import ImageInput, find_image_input
from trtcal.config import (
    FILE,
    Config,
    DataConfig,
    ImagesConfig,
    are_annotations,
    parse_config,
    read_section,
)
from trtcal.data import Dataset, open_dataset
from trtcal.data.dataset import batch_for
from trtcal.data.images import CSV, find_images, image_labels
from trtcal.errors import InputError
from trtcal.evaluate.collectors import read_task
from trtcal.evaluate.replay import carry
from trtcal.evaluate.variants import open_variant
from trtcal.model import Model

SEEN = 64  # images whose sizes are looked at
EDGE = 0.875  # of the shorter side that a classifier sees: 224 of 256
BATCH = 8
CHECKS = 3  # of the data, each with what the one before changed
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
    """A configuration in the making: its lines, and what was guessed for which reason."""

    lines: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)

    def section(self, name: str) -> None:
        """Begin a table."""
        self.lines += ["", f"[{name}]"]

    def add(self, key: str, value: Any, guessed: str = "", seen: str = "") -> None:
        """Set a key; `guessed` is why it is a guess, `seen` what it was read from."""
        text = f"{key} = {_toml(value)}"
        if guessed:
            self.guesses.append(f"{text}: {guessed}")
        about = f"guessed: {guessed}" if guessed else seen
        self.lines.append(f"{text}  # {about}" if about else text)

    @property
    def text(self) -> str:
        """The file."""
        return "\n".join(self.lines) + "\n"


def draft_config(model: Model, sources: Sources, folder: Path) -> Draft:
    """Return a configuration for a model and data, with paths from a folder.

    `InputError` if the data do not fit the model however images are prepared.
    """
    draft = Draft(
        ["# Written by trtcal. Check the lines marked `guessed`; docs/configuration.md explains"]
    )
    draft.lines += ["# all keys.", "", f"model = {_path(model.source or model.path, folder)}"]
    if sources.output is not None:
        draft.lines.append(f"output = {_path(sources.output, folder)}")
    labels, why = _labels(sources if sources.test is None else sources.to_calibrate)
    images = _images(model, sources.data, labels)
    dataset = open_dataset(sources.data, model, images.config, labels, DataConfig())
    _add_task(draft, model, dataset, sources.choices)
    if limits := sources.choices.limits:
        draft.add("limits", list(map(str, limits)))
    else:
        draft.lines.append(
            '# limits = ["top1 >= -1.0", "int8_macs >= 80%"]  # default: the limits of the task'
        )
    images.add_to(draft)
    draft.section("calibration")
    draft.lines.append(f"data = {_path(sources.data, folder)}")
    _add_labels(draft, labels, why, folder)
    draft.section("evaluation")
    if sources.test is None:
        draft.lines.append(
            "# data = ...  # without test data, a part of the calibration data is held back"
        )
    else:
        draft.lines.append(f"data = {_path(sources.test, folder)}")
        _add_labels(draft, *_labels(Sources(sources.test, labels=sources.labels)), folder)
    chosen = sources.choices.evaluation
    if chosen.batch != Config().evaluation.batch:
        draft.add("batch", chosen.batch)
    if chosen.metric is not None:
        draft.lines.append(f"metric = {_path(chosen.metric, folder)}")
    draft.section("build")
    if sources.targets:
        draft.add("targets", list(sources.targets))
    else:
        draft.add("targets", list(TARGETS), "the GPU is not given")
    return draft


def guess_config(model: Model, sources: Sources, folder: Path) -> tuple[Config, Draft]:
    """Return the configuration of a draft, and the draft."""
    draft = draft_config(model, sources, folder)
    return parse_config(draft.text, folder / FILE), draft


def _path(path: Path, folder: Path) -> str:
    near = os.path.relpath(path, folder)
    is_far = near.startswith("..") and path.is_absolute()
    return json.dumps(str(path) if is_far else Path(near).as_posix())


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_toml(v)}' for k, v in value.items())} }}"
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


def _add_labels(draft: Draft, labels: str | None, why: str, folder: Path) -> None:
    if are_annotations(labels):
        draft.lines.append(f"labels = {_path(Path(str(labels)), folder)}")
    elif labels is not None:
        draft.add("labels", labels, why)


def _add_task(draft: Draft, model: Model, dataset: Dataset, choices: Config) -> None:
    """Write the task of each output, one for all where they are the same, with why it is guessed."""
    reference, data = open_variant(model.path), carry(model, dataset, {})
    user = (choices.task, choices.outputs)
    task, _ = read_task(reference, data, batch_for(model, BATCH), *user)
    for guess in task.guesses:
        draft.guesses.append(guess)
        draft.lines.append(f"# guessed: {guess}")
    named = {*task.by_name.values()}
    is_whole = len(named) == 1 and len(task.by_name) == len(model.outputs)
    draft.add("task", named.pop() if is_whole else task.by_name)
    if choices.outputs:
        draft.add("outputs", list(choices.outputs))


@dataclass(frozen=True)
class Images:
    """Keys of [images], with what is guessed of them; none where the data are no image files."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> ImagesConfig | None:
        """The preprocessing."""
        return read_section(ImagesConfig, dict(self.keys)) if self.keys else None

    def add_to(self, draft: Draft) -> None:
        """Write the section."""
        if self.keys:
            draft.section("images")
            for name, value in self.keys.items():
                draft.add(name, value, self.why.get(name, ""))


def _images(model: Model, data: Path, labels: str | None) -> Images:
    files = find_images(data)[0] if data.is_dir() else []
    if not files:
        return Images()
    image = find_image_input(model)
    if image is None:
        raise InputError(
            f"{data} contains images, but no input of the model has the shape of an image",
            "give arrays named after its inputs: an .npz, or a folder of .npy files",
        )
    spec = next(spec for spec in model.inputs if spec.name == image.name)
    channels, *size = _sizes(image, spec.shape)
    base = NORMAL if len(model.outputs) == 1 and len(model.outputs[0].shape) == 2 else UNIT
    first = {
        "channels": "gray" if channels == 1 else "RGB",
        "layout": "NHWC" if image.channels_last else "NCHW",
        **_cuts(_seen(data, files), size, base is NORMAL),
        **settings_of(base.name, int(channels)),
    }
    changes = _preprocessing_changes(model, data, labels, first)
    return Images(first | changes, dict(_reasons(first, changes, base.text)))


def _sizes(image: ImageInput, shape: Sequence[int | str]) -> tuple[int | str, int | str, int | str]:
    _, a, b, c = shape
    return (c, a, b) if image.channels_last else (a, b, c)


def _seen(folder: Path, files: Sequence[str]) -> tuple[tuple[int, int], bool]:
    """Return the height and width that most images have, and whether all that were seen have it."""
    sizes = Counter[tuple[int, int]]()
    for file in files[:: -(-len(files) // SEEN)]:
        try:
            with Image.open(folder / file) as image:
                sizes[image.height, image.width] += 1
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(
                f"image {folder / file} cannot be read: {error}", "remove it from the folder"
            ) from error
    return sizes.most_common(1)[0][0], len(sizes) == 1


def _cuts(
    seen: tuple[tuple[int, int], bool], size: Sequence[int | str], is_classifier: bool
) -> dict[str, Any]:
    """Return how images get the size that a model takes: a classifier sees the middle of them."""
    usual, is_only = seen
    height, width = (
        needed if isinstance(needed, int) else max(32, had // 32 * 32)
        for needed, had in zip(size, usual, strict=True)
    )
    if is_only and usual == (height, width):
        return {}
    if is_classifier and min(usual) > max(height, width):
        return {"resize": round(min(height, width) / EDGE), "crop": [height, width]}
    return {"resize": [height, width]}


def _preprocessing_changes(
    model: Model, data: Path, labels: str | None, first: dict[str, Any]
) -> dict[str, Any]:
    """Return the keys that the check of data would change, also after it changed others."""
    changes = dict[str, Any]()
    for _ in range(CHECKS):
        config = read_section(ImagesConfig, first | changes)
        issues = check_data(model, open_dataset(data, model, config, labels)).issues
        changed = {name: value for issue in issues for name, value in issue.settings.items()}
        if not changed or (first | changes | changed) == (first | changes):
            break
        changes |= changed
    return changes


def _reasons(
    first: Mapping[str, Any], changes: Mapping[str, Any], usual: str
) -> Iterator[tuple[str, str]]:
    for name in ("resize", "crop"):
        if name in first:
            yield name, "the images do not have the size of the model input"
    for name in ("channels", "scale"):
        if name in changes:
            yield name, "the model gives the best answers with it"
        elif name == "scale" or first[name] != "gray":
            yield (
                name,
                "usual, and the data do not contradict it" + f" ({usual})" * (name == "scale"),
            )

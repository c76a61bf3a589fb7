"""One run of the digits sample, and one signed bundle of it, for all tests of bundles."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tests.conftest import SAMPLES
from tests.fixtures.shared import made_once
from trtcal.backends.registry import BACKENDS
from trtcal.config import parse_config
from trtcal.data import open_dataset
from trtcal.documents import FILES, digest_file, files_in
from trtcal.documents.digests import record_of
from trtcal.model import load_model
from trtcal.pipeline.job import run
from trtcal.runs.bundle.building import Request, make_bundle
from trtcal.runs.bundle.signing import read_signer

TARGETS = ["cpu", "sm89"] if BACKENDS["tensorrt-rtx"].availability().works else ["cpu"]
VARIANT = "int8-percentile"
CONFIG = f"""
model = "{SAMPLES}/digits/digits.onnx"
limits = ["top1 >= -5.0"]
[calibration]
data = "{SAMPLES}/digits/calibration.npz"
methods = ["percentile"]
[evaluation]
data = "{SAMPLES}/digits/test.npz"
layer_samples = 4
[build]
targets = {json.dumps(TARGETS)}
fp16 = false
[cost.tags]
team = "vision"
"""


@dataclass(frozen=True)
class Keys:
    """Files of a private key and its public key."""

    private: Path
    public: Path


def write_keys(folder: Path, curve=None, passphrase: bytes | None = None) -> Keys:
    """Write a pair of keys, on P-256 unless another curve is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(curve or ec.SECP256R1())
    how = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    keys = Keys(folder / "key.pem", folder / "public.pem")
    keys.private.write_bytes(private)
    keys.public.write_bytes(public)
    return keys


def forge_record(folder: Path) -> None:
    """Record the files of a run as they are now, as somebody who can write there would."""
    files = {name: digest_file(folder / name) for name in files_in(folder) if name != FILES}
    (folder / FILES).write_bytes(record_of(files))


@pytest.fixture(scope="session")
def keys(tmp_path_factory) -> Keys:
    folder = made_once(tmp_path_factory, "keys", write_keys)
    return Keys(folder / "key.pem", folder / "public.pem")


@pytest.fixture(scope="session")
def made_run(tmp_path_factory) -> Path:
    """The folder of a run; whoever changes it copies it first."""

    def make(place):
        (place / "trtcal.toml").write_text(CONFIG)
        run(parse_config(CONFIG, place / "trtcal.toml"))

    place = made_once(tmp_path_factory, "run", make)
    return next(place.glob("*/run.json")).parent


@pytest.fixture(scope="session")
def request_of(made_run, keys):
    """Return what makes a request of a bundle of that run, signed."""
    model = load_model(SAMPLES / "digits" / "digits.onnx")
    data = open_dataset(SAMPLES / "digits" / "test.npz", model, None, None)

    def request(**given) -> Request:
        signed = {"signer": read_signer(keys.private), **given}
        return Request(**{"run": made_run, "variant": VARIANT, "data": data, **signed})

    return request


@pytest.fixture(scope="session")
def made_bundle(request_of, tmp_path_factory) -> Path:
    """The folder of a signed bundle; whoever changes it copies it first."""
    place = made_once(
        tmp_path_factory, "bundle", lambda folder: make_bundle(request_of(), folder / "bundle")
    )
    return place / "bundle"

"""Checks a bundle before anything of it is loaded: one file, for Python's library and `cryptography`.

    python verify_bundle.py bundle/ --public-key public.pem --device

On a device this file stands alone: it imports nothing of trtcal. Take it from the installation, never
from the bundle: a verifier inside what it verifies proves nothing. What runs foreign code is done in
child processes: the driver is asked in one, and an engine is loaded in another, after everything else
held. A bundle is untrusted: sizes, counts and depth are bounded, and names stay inside its folder.

Sources: DSSE 1.0.2, protocol.md; in-toto Statement v1; the plan's header as the sample `sampleEngines`
of TensorRT prints it; the header of TensorRT-RTX as seen in engines of version 1.7.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import hashlib
import io
import json
import os
import platform
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

MANIFEST, SIGNATURE = "manifest.json", "signature.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:trtcal:bundle:v1"
PAYLOAD = "application/vnd.in-toto+json"
PRIVATE = "is a private key, and the public key is needed"
NO_KEY = "the bundle is signed, but no public key is given to check the signature"
KEY_VARIABLE = "TRTCAL_PUBLIC_KEY"

JSON_BYTES, GOLDEN_BYTES = 32 << 20, 4 << 30
FILES, SIGNATURES, DEPTH = 10_000, 16, 50
BLOCK = 1 << 20
PROBE_S, SELF_TEST_S = 30.0, 600.0

HOLDS, UNCHECKED, REBUILD, REFUSED = "holds", "not checked", "rebuild", "refused"
WARNED = "warning"
VERDICTS = {HOLDS: "READY", REBUILD: "REBUILD RECOMMENDED", REFUSED: "REFUSED"}
ORDER = (HOLDS, REBUILD, REFUSED)
"""From best to worst: the place is the exit status."""
Manifest = Mapping[str, Any]
Digests = Mapping[str, str]
"""File -> SHA-256 of its bytes, in hexadecimal."""


class RefusedError(ValueError):
    """Why a bundle is refused, in one sentence."""


@dataclass(frozen=True)
class Check:
    """What was checked, its state, and what was found."""

    what: str
    state: str
    found: str


@dataclass(frozen=True)
class Device:
    """What an engine is to run on; `cuda` is the CUDA that its driver supports, such as "12.4".

    `target` is its compute capability as `sm89`, None without a GPU, and `missing` says why then.
    """

    name: str = "CPU"
    target: str | None = None
    cuda: str | None = None
    platform: str | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Options:
    """What to check besides digests and headers, and what to accept.

    `device` is the one to hold the engines against: True asks the driver of this machine. `tier` is
    the class of devices that saved outputs are of.
    """

    public_key: Path | None = None
    allow_unsigned: bool = False
    device: bool | Device = False
    self_test: bool = True
    save_outputs: Path | None = None
    tier: str | None = None


@dataclass(frozen=True)
class Result:
    """Every check in order, and what the bundle says of itself as far as it can be believed."""

    checks: tuple[Check, ...]
    manifest: Manifest = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The worst state of a check that was made."""
        states = (check.state for check in self.checks if check.state in ORDER)
        return max(states, key=ORDER.index, default=HOLDS)

    @property
    def verdict(self) -> str:
        """READY, REBUILD RECOMMENDED or REFUSED, with warnings, what was not checked, the reason."""
        word = VERDICTS[self.state]
        if self.state == HOLDS:
            left = [check.found for check in self.checks if check.state in (UNCHECKED, WARNED)]
            return f"{word}, but {'; '.join(left)}" if left else word
        return f"{word}: {next(check.found for check in self.checks if check.state == self.state)}"

    @property
    def status(self) -> int:
        """The exit status."""
        return ORDER.index(self.state)

    def to_document(self) -> dict[str, Any]:
        """Return the result as JSON."""
        checks = [vars(check) for check in self.checks]
        return {"state": VERDICTS[self.state], "verdict": self.verdict, "checks": checks}


def verify(folder: Path, options: Options | None = None) -> Result:
    """Check a bundle's signature, files, headers, and if wanted the device; then test its outputs.

    An engine is loaded only if everything before held. Never raises for what is in the folder.
    """
    options = options or Options()
    checks: list[Check] = []
    manifest: Manifest = {}
    try:
        manifest, digests = open_bundle(folder, options, checks)
        checks += _verdict(manifest["verdict"])
        checks += [_header(folder, engine) for engine in manifest["engines"]]
        checks += _run(folder, manifest, digests, options)
    except RefusedError as error:
        checks.append(Check("bundle", REFUSED, str(error)))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        problem = f"{MANIFEST} has a missing or wrong field: {shown(repr(error))}"
        checks.append(Check(MANIFEST, REFUSED, problem))
    except OSError as error:
        problem = f"{shown(error.filename or folder)} cannot be read: {error.strerror}"
        checks.append(Check("bundle", REFUSED, problem))
    return Result(tuple(checks), manifest)


def open_bundle(folder: Path, options: Options, checks: list[Check]) -> tuple[Manifest, Digests]:
    """Return the manifest's predicate once signature and every file hold; else `RefusedError`.

    With it come the digests that it has of the files, and its own: what is loaded later has to be that.
    """
    if not folder.is_dir():
        raise RefusedError(f"{folder} is not a folder")
    envelope = _envelope(_read(folder / SIGNATURE, JSON_BYTES))
    payload = _decoded(envelope["payload"], "payload")
    if envelope["payloadType"] != PAYLOAD:
        raise RefusedError(f"{SIGNATURE} signs something other than an in-toto Statement")
    checks.append(_signature(envelope, payload, options))
    if _read(folder / MANIFEST, JSON_BYTES) != payload:
        raise RefusedError(f"{MANIFEST} differs from the content of {SIGNATURE}")
    statement = _json(payload, MANIFEST)
    if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
        raise RefusedError(f"{MANIFEST} is not a bundle format that this verifier knows")
    checks.append(_files(folder, statement))
    manifest: Manifest = statement["predicate"]
    digests = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    _check_named(manifest, digests)
    return manifest, {**digests, MANIFEST: hashlib.sha256(payload).hexdigest()}


def _envelope(data: bytes) -> Manifest:
    """Return the signed envelope; one with a digest has exactly the bytes that follow from it.

    Older ones, and those of other tools, have DSSE's own fields alone.
    """
    envelope = _json(data, SIGNATURE)
    body = {key: envelope.get(key) for key in ("payloadType", "payload", "signatures")}
    plain = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    sealed = {**body, "digest": f"sha256:{hashlib.sha256(plain).hexdigest()}"}
    if len(envelope) > len(body) and data != json.dumps(sealed, indent=2).encode() + b"\n":
        raise RefusedError(f"{SIGNATURE} was changed: its digest differs")
    return envelope


def _verdict(verdict: Manifest) -> Iterator[Check]:
    """Yield a warning if the run's verdict, or a limit on this variant, was against shipping it."""
    if not is_for_shipping(verdict):
        what = f"{verdict['word']}, on {verdict['variant']}: {verdict['sentence']}"
        yield Check("verdict", WARNED, f"it was made despite the verdict {shown(what)}")


def is_for_shipping(verdict: Manifest) -> bool:
    """Whether a run's verdict is to ship, and no limit is broken for the variant of a bundle."""
    return bool(verdict["word"].startswith("SHIP") and verdict["limits_of_this"] != "broken")


def pae(kind: str, payload: bytes) -> bytes:
    """Return what is signed of a payload: DSSE's pre-authentication encoding."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def shown(text: object) -> str:
    """Return text of others without control and direction characters, at most 500 of them."""
    plain = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(text)[:500])
    return plain.encode("utf-8", "backslashreplace").decode()


def _signature(envelope: Manifest, payload: bytes, options: Options) -> Check:
    """Return the check of the signature; `RefusedError` if it does not hold, or can't be checked."""
    signatures = envelope["signatures"]
    if len(signatures) > SIGNATURES:
        raise RefusedError(f"{SIGNATURE} has more than {SIGNATURES} signatures")
    if options.public_key is None:
        if signatures and not options.allow_unsigned:
            raise RefusedError(NO_KEY)
        what = "its signature is not checked" if signatures else "it is not signed"
        more = "digests detect accidental changes, but do not prove who made it"
        return Check("signature", UNCHECKED, f"{what}: {more}")
    if not signatures:
        raise RefusedError("a public key is given, but the bundle is not signed")
    pairs = [(each["keyid"], _decoded(each["sig"], "signature")) for each in signatures]
    if not _is_signed(options.public_key, pairs, pae(PAYLOAD, payload)):
        raise RefusedError("no signature of the bundle matches the given public key")
    return Check("signature", HOLDS, f"signed by the key in {options.public_key}")


def _is_signed(path: Path, signatures: Sequence[tuple[str, bytes]], data: bytes) -> bool:
    """Whether one of the signatures is of the public key in a file, which it has to name."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        what = "the signature was not checked, because `cryptography` is not installed"
        raise RefusedError(what) from None
    try:
        pem = _read(Path(os.path.realpath(path)), JSON_BYTES)
        if b"PRIVATE KEY-----" in pem:
            raise RefusedError(f"{path} {PRIVATE}")
        key = load_pem_public_key(pem)
    except (ValueError, OSError, TypeError) as error:
        raise RefusedError(f"the public key {path} cannot be read: {shown(error)}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RefusedError(f"the public key {path} is not an EC key on P-256")
    for signature in (signature for name, signature in signatures if name == key_name(key)):
        with suppress(InvalidSignature):
            key.verify(signature, data, ec.ECDSA(SHA256()))
            return True
    return False


def key_name(public: Any) -> str:
    """Return the digest of a public key, by which signatures name it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _decoded(text: str, what: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise RefusedError(f"the {what} in {SIGNATURE} is not base64") from None
    if base64.b64encode(data).decode() != text:
        raise RefusedError(f"the {what} in {SIGNATURE} is not canonical base64")
    return data


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data, object_pairs_hook=_object, parse_constant=_no_constant)
        _check_depth(value)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{name} is not the JSON of a bundle: {shown(error)}") from None
    if not isinstance(value, dict):
        raise RefusedError(f"{name} is not the JSON of a bundle: it is not an object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > DEPTH:
        raise ValueError(f"it is nested more than {DEPTH} deep")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (dict, list)):
            _check_depth(item, depth + 1)


def _open(path: Path) -> io.BufferedReader:
    """Open a regular file that is no link; `RefusedError` if it is something else."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RefusedError(f"{shown(path)} is not a regular file")
    return os.fdopen(handle, "rb")


def _read(path: Path, most: int) -> bytes:
    with _open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise RefusedError(f"{shown(path)} has more than {most >> 20} MiB")
    return data


def _files(folder: Path, statement: Manifest) -> Check:
    """Return the check that the files are those of the manifest, byte for byte, and no others."""
    subjects, sizes = statement["subject"], statement["predicate"]["sizes"]
    if len(subjects) > FILES:
        raise RefusedError(f"{MANIFEST} names more than {FILES} files")
    expected = {_contained(subject["name"]): subject["digest"]["sha256"] for subject in subjects}
    if len(expected) < len(subjects):
        raise RefusedError(f"{MANIFEST} names a file twice")
    present = set(islice(_files_of(folder), FILES + 3)) - {MANIFEST, SIGNATURE}
    if len(present) > FILES:
        raise RefusedError(f"{shown(folder)} has more than {FILES} files")
    for name in sorted(present ^ set(expected)):
        where = f"is in the folder but not in {MANIFEST}" if name in present else "is missing"
        raise RefusedError(f"{shown(name)} {where}")
    for name, digest in sorted(expected.items()):
        _check_file(folder / name, name, sizes[name], digest)
    return Check("files", HOLDS, f"all {len(expected)} match {MANIFEST}")


def _contained(name: str) -> str:
    parts = name.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\\" in name or not name.isprintable():
        what = f"{MANIFEST} names {shown(name)!r}, which is not a path inside the bundle"
        raise RefusedError(what)
    return name


def _files_of(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield the files of a folder, relative to it; `RefusedError` at links and special files."""
    if prefix.count("/") > DEPTH:
        raise RefusedError(f"folders are nested more than {DEPTH} deep")
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            name = prefix + entry.name
            if number > FILES:
                raise RefusedError(f"{shown(prefix or folder)} has more than {FILES} entries")
            if entry.is_dir(follow_symlinks=False):
                yield from _files_of(Path(entry.path), f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                yield name
            else:
                raise RefusedError(f"{shown(name)} is a link or a special file")


def _check_file(path: Path, name: str, size: int, expected: str) -> None:
    digest = hashlib.sha256()
    with _open(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise RefusedError(f"{name} has {actual} bytes, not {size}: cut or changed")
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise RefusedError(f"{name} was changed: its digest differs")


def _check_named(manifest: Manifest, digests: Digests) -> None:
    """`RefusedError` if the manifest speaks of a file that it has no digest of, or tests nothing."""
    engines, golden = manifest["engines"], manifest["golden"]
    for name in [*(engine["file"] for engine in engines), golden["file"]]:
        if name not in digests:
            raise RefusedError(f"{MANIFEST} has no digest of {shown(name)}")
    tolerances = golden["tolerances"].values()
    bounded = all(0 <= tolerance < float("inf") for tolerance in tolerances)
    if not engines or not tolerances or not bounded or golden["samples"] < 1:
        what = f"{MANIFEST} names no engine, or its golden outputs have infinite tolerances"
        raise RefusedError(what)


HEADER = 64
PLAN, RTX = b"ftrt", b"vtrt"
MAGIC = {"tensorrt": PLAN, "tensorrt-rtx": RTX}
PACKAGES = (*MAGIC, "onnxruntime")
"""What engines are of, each a Python package of that name too."""


def _header(folder: Path, engine: Manifest) -> Check:
    """Return the check of an engine's first bytes: magic, size and version, where they are known."""
    name, product = engine["file"], engine["product"]
    with _open(folder / name) as file:
        head, size = file.read(HEADER), os.fstat(file.fileno()).st_size
    if head.hex() != engine["header"]:
        raise RefusedError(f"{name} does not begin as {MANIFEST} says")
    if product not in PACKAGES:
        raise RefusedError(f"{name} is of {shown(product)!r}, which this verifier does not know")
    if product not in MAGIC:
        return Check("header", HOLDS, f"{name} is ONNX, of {size} bytes")
    if len(head) < HEADER or head[:4] != MAGIC[product]:
        what = f"{name} is not an engine of {shown(product)}: it begins with {head[:4]!r}"
        raise RefusedError(what)
    if product == "tensorrt-rtx" and int.from_bytes(head[16:24], "little") != size:
        stated = int.from_bytes(head[16:24], "little")
        raise RefusedError(f"{name} is cut: its header says {stated} bytes, it has {size}")
    built = ".".join(map(str, head[24:28]))
    if not _same_version(head[24:28], engine["version"]):
        raise RefusedError(f"{name} is of version {built}, not {shown(engine['version'])}")
    return Check("header", HOLDS, f"{name} is of {product} {built}, of {size} bytes")


def _same_version(head: bytes, text: str) -> bool:
    """Whether four bytes are a version's numbers; of the build number the lowest byte stands there."""
    numbers = [int(part) & 0xFF for part in text.split(".")[:4] if part.isdigit()]
    return len(numbers) >= 3 and list(head[: len(numbers)]) == numbers


def fit(engine: Manifest, device: Device) -> Check:
    """Return whether an engine loads on a device, by what its manifest says: nothing is loaded."""
    target = engine["target"]
    if engine["product"] == "onnxruntime":
        return Check("device", HOLDS, f"the engine for {target} runs on any CPU")
    if device.target is None:
        why = device.missing or "it has no GPU"
        return Check("device", REFUSED, f"{why}; the engine needs {target}")
    fitting = HOLDS, f"the engine for {target} is for {device.name}"
    fits = [*_misfits(engine, device), fitting]
    return Check("device", *max(fits, key=lambda fit: ORDER.index(fit[0])))


def _misfits(engine: Manifest, device: Device) -> Iterator[tuple[str, str]]:
    """Yield what differs between a GPU and that of the engine, each with the state that follows.

    A driver is new enough if its CUDA has the same major version.
    """
    here, capabilities = f"{device.name} ({device.target})", engine["capabilities"]
    if device.target in capabilities:
        if engine["gpu"] not in (None, here):
            built = f"built on {engine['gpu']}, but this is {here}"
            yield REBUILD, f"{built}: its tactics are not chosen for this GPU"
    elif _is_portable_to(engine, device.target):
        yield REBUILD, f"the portable engine loads on {here} but is not built for it"
    else:
        built = ", ".join(capabilities or engine["portable_to"])
        yield REFUSED, f"built for {built}, but this is {here}"
    built, machine = engine["platform"], device.platform
    if None not in (built, machine) and built != machine:
        state = REFUSED if engine["product"] == "tensorrt" else REBUILD
        yield state, f"built on {built}, but {device.name} is {machine}"
    least, cuda = engine["smallest_driver"], device.cuda
    if least is not None and cuda is not None and _major(cuda) < _major(least["cuda"]):
        needed = f"CUDA {least['cuda']} needs driver {least['linux']}"
        yield REFUSED, f"its driver supports CUDA {cuda}, but {needed}"


def _major(cuda: str) -> int:
    return int(cuda.split(".")[0])


def _is_portable_to(engine: Manifest, target: str | None) -> bool:
    """Whether a portable engine loads on a GPU: one that it names, or later than its `at_least`."""
    least = engine["at_least"]
    is_later = least is not None and _number(target) >= _number(least)
    return target in engine["portable_to"] or is_later


def _number(target: str | None) -> int:
    digits = (target or "")[2:]
    return int(digits) if digits.isdigit() else 0


def choose(engines: Sequence[Manifest], device: Device) -> tuple[Manifest, Check]:
    """Return the engine that suits a device best, and how it fits; the CPU's where there is no GPU."""
    of_gpu = [engine for engine in engines if engine["product"] != "onnxruntime"]
    of_cpu = [engine for engine in engines if engine["product"] == "onnxruntime"]
    candidates = (of_gpu or of_cpu) if device.target else (of_cpu or of_gpu)
    if not candidates:
        raise RefusedError("the bundle has no engine")
    pairs = [(engine, fit(engine, device)) for engine in candidates]
    return min(pairs, key=lambda pair: ORDER.index(pair[1].state))


def _runtime(engine: Manifest) -> Check:
    product, built = shown(engine["product"]), shown(engine["version"])
    try:
        here = version(product)
    except PackageNotFoundError:
        return Check("version", UNCHECKED, f"the Python package {product} {built} is not installed")
    if here == built:
        return Check("version", HOLDS, f"{product} {here} is the one that built it")
    reason = f"built by {product} {built}, but {here} is installed"
    return Check("version", REBUILD if product == "onnxruntime" else REFUSED, reason)


def _lacking(engine: Manifest) -> str:
    packages = ["numpy", *([] if engine["product"] == "onnxruntime" else ["polygraphy"])]
    return ", ".join(name for name in packages if find_spec(name) is None)


def _run(folder: Path, manifest: Manifest, digests: Digests, options: Options) -> Iterator[Check]:
    """Yield the checks of device and version, and the self-test if nothing before is refused."""
    engines, device = manifest["engines"], Device(platform=platform.machine())
    if options.device is False:
        engine = next((engine for engine in engines if engine["product"] == "onnxruntime"), None)
    else:
        device = find_device() if options.device is True else options.device
        engine, check = choose(engines, device)
        yield check
        if check.state == REFUSED:
            return
    if engine is None:
        how = "`trtcal bundle verify --device` runs the engine for this machine"
        yield Check("self-test", UNCHECKED, f"no engine was run; {how}")
        return
    runtime = _runtime(engine)
    yield runtime
    if runtime.state == REFUSED:
        return
    if engine["plugins"]:
        needed = shown(", ".join(engine["plugins"]))
        yield Check("plug-ins", UNCHECKED, f"it needs the plug-ins {needed}")
    lacking = _lacking(engine)
    if lacking or runtime.state == UNCHECKED or not options.self_test:
        why = f", because {lacking} is not installed" if lacking else ""
        yield Check("self-test", UNCHECKED, f"its outputs were not tested{why}, and none are saved")
    else:
        options = replace(options, device=device)
        yield _self_test(folder, manifest["golden"], digests, engine, options)


def _self_test(
    folder: Path, golden: Manifest, digests: Digests, engine: Manifest, options: Options
) -> Check:
    device: Any = options.device
    request = {
        "product": engine["product"],
        "engine": [str(folder.absolute() / engine["file"]), digests[engine["file"]]],
        "golden": [str(folder.absolute() / golden["file"]), digests[golden["file"]]],
        "tolerances": golden["tolerances"],
        "inputs": golden["inputs"],
        "samples": golden["samples"],
        "save": options.save_outputs and str(options.save_outputs.absolute()),
        "about": {
            "manifest": digests[MANIFEST],
            "tier": options.tier or device.name,
            "device": vars(device),
            "engine": {key: engine[key] for key in ("target", "product", "version")},
        },
    }
    answer = _child("self-test", request, SELF_TEST_S)
    if answer.get("lacking"):
        reason = f"its outputs were not tested, because {shown(answer['lacking'])} is not installed"
        return Check("self-test", UNCHECKED, reason)
    if answer.get("problem"):
        return Check("self-test", REFUSED, f"{engine['file']}: {shown(answer['problem'])}")
    return Check("self-test", HOLDS, f"{golden['samples']} golden inputs give the expected outputs")


def _child(task: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """Run one of `TASKS` in a process of its own, in an empty folder; a crash is an answer too."""
    with tempfile.TemporaryDirectory(prefix="trtcal-") as place:
        try:
            done = subprocess.run(  # noqa: S603  # our own interpreter and file
                [sys.executable, "-I", "-B", os.path.abspath(__file__), "--child", task],
                input=json.dumps(request).encode(),
                capture_output=True,
                timeout=limit_s,
                cwd=place,
                check=False,
            )
            answer = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            return {"problem": f"it took longer than {limit_s:g} s"}
        except (ValueError, IndexError):
            return {
                "problem": f"the process that loads it ended with exit status {done.returncode}"
            }
    return answer if isinstance(answer, dict) else {"problem": "its answer is not a JSON object"}


def find_device() -> Device:
    """Return this machine's first GPU, or a CPU with why there is none; its driver may crash."""
    answer = _child("probe", {}, PROBE_S)
    here = platform.machine()
    if answer.get("problem"):
        return Device(platform=here, missing=str(answer["problem"]))
    return Device(answer["name"], answer["target"], answer["cuda"], here)


MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h


def _probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the driver for its first device; may crash this process."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"problem": "there is no NVIDIA driver on this machine"}
    supported, device, major, minor = (ctypes.c_int() for _ in range(4))
    name = ctypes.create_string_buffer(256)
    for call, arguments in (
        ("cuInit", (0,)),
        ("cuDriverGetVersion", (ctypes.byref(supported),)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDeviceGetName", (name, len(name), device)),
        ("cuDeviceGetAttribute", (ctypes.byref(major), MAJOR, device)),
        ("cuDeviceGetAttribute", (ctypes.byref(minor), MINOR, device)),
    ):
        if code := getattr(cuda, call)(*arguments):
            return {"problem": f"no CUDA device can be opened: error {code} of {call}"}
    return {
        "name": name.value.decode(errors="replace"),
        "target": f"sm{major.value}{minor.value}",
        "cuda": f"{supported.value // 1000}.{supported.value % 1000 // 10}",
    }


def _test(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load an engine, run the golden inputs and compare; what it raises is the problem."""
    import numpy as np

    engine, packed = _believed(*request["engine"]), io.BytesIO(_believed(*request["golden"]))
    if sum(member.file_size for member in zipfile.ZipFile(packed).infolist()) > GOLDEN_BYTES:
        raise ValueError(f"the golden inputs expand to more than {GOLDEN_BYTES >> 20} MiB")
    golden = np.load(packed, allow_pickle=False)
    is_onnx = request["product"] == "onnxruntime"
    run = _onnxruntime(engine) if is_onnx else _tensorrt(engine, request)
    results: dict[str, Any] = {}
    problem = None
    for sample in range(request["samples"]):
        names = enumerate(request["inputs"])
        outputs = run({name: golden[f"input.{place}.{sample}"] for place, name in names})
        for place, (name, tolerance) in enumerate(request["tolerances"].items()):
            key = f"output.{place}.{sample}"
            results[key] = np.array(outputs[name])  # the runtime may use its buffer again
            pair = results[key], golden[key]
            problem = problem or _differs(*pair, tolerance, f"{name} of {sample}")
    if request["save"]:
        _save(Path(request["save"]), {**results, "about": np.array(json.dumps(request["about"]))})
    return {"problem": problem}


def _believed(path: str, digest: str) -> bytes:
    """Return the bytes of a file once they are those that were checked; only they are used."""
    with _open(Path(path)) as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{path} was changed while it was checked")
    return data


def _differs(output: Any, expected: Any, tolerance: float, what: str) -> str | None:
    import numpy as np

    if output.shape != expected.shape or output.dtype != expected.dtype:
        here, there = (f"{array.dtype}{list(array.shape)}" for array in (output, expected))
        return f"{what} is {here}, not {there}"
    if np.allclose(output, expected, rtol=0.0, atol=tolerance, equal_nan=True):
        return None
    most = float(np.nanmax(np.abs(output.astype("f8") - expected.astype("f8"))))
    return f"{what} differs by {most:.4g}, but only {tolerance:.4g} is allowed"


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    import numpy as np

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("xb") as file:
            np.savez_compressed(file, **arrays)
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _onnxruntime(engine: bytes) -> Any:
    """Return what runs an ONNX engine on one thread, by exact products and as it was quantized."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(
        engine,
        sess_options=options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["WeightBiasQuantization"],
    )
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds))))  # noqa: B905  # Python 3.8


def _tensorrt(engine: bytes, request: Mapping[str, Any]) -> Any:
    """Return what runs an engine of TensorRT by Polygraphy; not yet tried beside a GPU."""
    if request["product"] == "tensorrt-rtx":
        os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"
    from polygraphy.backend.trt import EngineFromBytes, TrtRunner
    from polygraphy.cuda import wrapper

    try:
        wrapper()
    except Exception as error:  # it has exceptions of its own
        raise ImportError(f"CUDA's runtime: {error}") from error
    runner = TrtRunner(EngineFromBytes(engine))
    runner.activate()
    return lambda feeds: runner.infer(dict(feeds))


TASKS = {"probe": _probe, "self-test": _test}


def _serve(task: str) -> int:
    """In a child process: do a task, and print its answer as the last line."""
    try:
        answer = TASKS[task](json.load(sys.stdin))
    except ImportError as error:
        answer = {"problem": None, "lacking": str(error)}
    except Exception as error:  # runtimes raise nearly anything about an engine
        answer = {"problem": f"{type(error).__name__}: {error}"}
    print(flush=True)
    print(json.dumps(answer), flush=True)
    return 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check a bundle of trtcal before you load it.")
    parser.add_argument("bundle", type=Path, nargs="?", default=Path("bundle"))
    key = os.environ.get(KEY_VARIABLE)
    parser.add_argument("--public-key", type=Path, default=Path(key) if key else None)
    parser.add_argument("--allow-unsigned", action="store_true")
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--no-self-test", action="store_true")
    parser.add_argument("--save-outputs", type=Path)
    parser.add_argument("--tier")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=tuple(TASKS), help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Check a bundle, print what was found, and return the status: 0, 1 or 2."""
    arguments = _arguments(words)
    if arguments.child:
        return _serve(arguments.child)
    accepted = arguments.public_key, arguments.allow_unsigned, arguments.device
    outputs = arguments.save_outputs, arguments.tier
    result = verify(arguments.bundle, Options(*accepted, not arguments.no_self_test, *outputs))
    if arguments.json:
        print(json.dumps(result.to_document(), indent=2))
        return result.status
    for check in result.checks:
        print(shown(f"{check.what}: {check.state}: {check.found}"))
    print(shown(result.verdict))
    return result.status


if __name__ == "__main__":
    sys.exit(main())

"""A Dockerfile whose image checks a bundle on each start, before it serves: `docker/`.

The verifier in the image is the one of the trtcal that made the bundle. The bundle itself is mounted,
and the public key too: what was swapped since then is refused, whoever swapped it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from trtcal.backends.targets import version_of
from trtcal.documents import write_text
from trtcal.errors import InputError
from trtcal.runs.bundle import verifying
from trtcal.runs.bundle.building import DOCKER, TRITON, Draft
from trtcal.runs.bundle.verifying import KEY_VARIABLE

VERIFIER = "verify_bundle.py"
VERSION = re.compile(r"[0-9][0-9A-Za-z.+]*")
SCRIPT = f"""#!/bin/sh
# Starts a command only if the bundle holds. ACCEPT=1 starts it where a rebuild is recommended, too.
python3 "${{VERIFIER:-/opt/trtcal/{VERIFIER}}}" "${{BUNDLE:-/bundle}}" --device
status=$?
if [ "$status" -gt "${{ACCEPT:-0}}" ]; then exit "$status"; fi
exec "$@"
"""


def export_docker(draft: Draft) -> Sequence[str]:
    """Write the Dockerfile, the script that it starts with, and a copy of the verifier."""
    place = draft.folder / DOCKER
    place.mkdir()
    shutil.copyfile(verifying.__file__, place / VERIFIER)
    write_text(place / "check.sh", SCRIPT)
    write_text(place / "Dockerfile", "\n".join(_lines(draft)) + "\n")
    return []


def _lines(draft: Draft) -> Iterator[str]:
    python = _plain(".".join(draft.run.measured.python.split(".")[:2]))
    yield "# docker build -t checked docker/"
    key = " -v $PWD/public.pem:/keys/public.pem:ro" if draft.request.signer else ""
    yield f"# docker run -v $PWD:/bundle:ro{key} checked COMMAND"
    if (draft.folder / TRITON).exists():
        yield "# To serve by Triton give its image: --build-arg BASE=nvcr.io/nvidia/tritonserver:TAG"
    yield f"ARG BASE=python:{python}-slim"
    yield "FROM ${BASE}"
    pins = " ".join(f"{name}=={_plain(version)}" for name, version in _pins(draft).items())
    yield f"RUN pip install --no-cache-dir {pins}"
    yield f"COPY {VERIFIER} check.sh /opt/trtcal/"
    if draft.request.signer:
        yield f"ENV {KEY_VARIABLE}=/keys/public.pem"
    yield 'ENTRYPOINT ["/bin/sh", "/opt/trtcal/check.sh"]'
    if (draft.folder / TRITON).exists():
        yield f'CMD ["tritonserver", "--model-repository=/bundle/{Path(TRITON)}"]'


def _plain(version: str) -> str:
    """Return a version; `InputError` if it is something that a shell would read otherwise."""
    if not VERSION.fullmatch(version):
        raise InputError(f"{version!r} is not a package version", "run it again: `trtcal run`")
    return version


def _pins(draft: Draft) -> dict[str, str]:
    """Return the packages that check and run the engines, each of the version that was there."""
    engines = {entry["product"]: entry["version"] for entry, _ in draft.engines}
    names = ["numpy", *(["cryptography"] if draft.request.signer else [])]
    names += ["polygraphy"] if set(engines) - {"onnxruntime"} else []
    versions = {name: version_of(name) for name in names}
    return {**{name: version for name, version in versions.items() if version}, **engines}

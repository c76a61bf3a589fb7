"""Write the digests of base images behind their tags in docker/Dockerfile*: `make pin`.

Each line `ARG NAME=HOST/REPOSITORY:TAG` asks the registry HOST which digest the tag has today (OCI
distribution specification, "Checking if content exists in the registry"). If a registry does not
answer, a line says so, no file is changed, and the exit status is 3.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.release.lock import ROOT

IMAGE = re.compile(
    r"^(ARG \w+=)(?P<host>[\w.:-]+)/(?P<repository>[\w./-]+):(?P<tag>[\w.-]+)(@sha256:\w+)?$",
    re.MULTILINE,
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LISTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
HOSTS = {"docker.io": "registry-1.docker.io"}


def main(files: Sequence[Path] = ()) -> int:
    """Replace the digests in all files, or in none; return the exit status."""
    texts = {}
    for file in files or sorted((ROOT / "docker").glob("Dockerfile*")):
        try:
            texts[file] = IMAGE.sub(pinned, file.read_text())
        except (OSError, ValueError) as error:
            print(f"pin: no digest for {file.name}: {error}; nothing is changed")
            return 3
    for file, text in texts.items():
        file.write_text(text)
        print(*(f"pin: {image[0]}" for image in IMAGE.finditer(text)), sep="\n")
    return 0


def pinned(image: re.Match[str]) -> str:
    """Return a line with the digest that the registry has for its tag."""
    name = f"{image['host']}/{image['repository']}:{image['tag']}"
    return f"{image[1]}{name}@{digest(image['host'], image['repository'], image['tag'])}"


def digest(host: str, repository: str, tag: str) -> str:
    """Return the digest of a tag; `OSError` or `ValueError` without one."""
    scheme = "http" if host.startswith("127.0.0.1:") else "https"
    url = f"{scheme}://{HOSTS.get(host, host)}/v2/{repository}/manifests/{tag}"
    try:
        answer = head(url)
    except HTTPError as error:
        if error.code != 401:
            raise
        answer = head(url, token(error.headers.get("WWW-Authenticate", "")))
    if not DIGEST.fullmatch(answer):
        raise ValueError(f"{host} names no digest of {repository}:{tag}")
    return answer


def head(url: str, bearer: str = "") -> str:
    """Return the digest that a registry names for a manifest."""
    headers = {"Accept": ", ".join(LISTS)} | (
        {"Authorization": f"Bearer {bearer}"} if bearer else {}
    )
    with urlopen(Request(url, headers=headers, method="HEAD"), timeout=20) as response:  # noqa: S310
        return str(response.headers.get("Docker-Content-Digest", ""))


def token(challenge: str) -> str:
    """Return a token for everybody from the service that a registry names."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not fields.get("realm", "").startswith(("https://", "http://127.0.0.1:")):
        raise ValueError("the registry asks for a password")
    query = urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    with urlopen(f"{fields['realm']}?{query}", timeout=20) as response:  # noqa: S310
        answer = json.load(response)
    return str(answer.get("token") or answer.get("access_token"))


if __name__ == "__main__":
    sys.exit(main())

"""Where a store lies: a folder, `s3://bucket/prefix`, or `memory://NAME` in this process for tests."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, urlsplit

from trtcal.errors import InputError, ResourceError, TrtcalError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, MemoryStore, ObjectStore

FORMS = "a folder, s3://bucket/prefix, or memory://name"
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
ENDPOINT = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?(?:/[\w./-]*)?")
REGION = re.compile(r"[\w-]{0,64}", re.ASCII)
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
SEGMENT = re.compile(r"(?!\.{1,2}$)[\w.+=@-]+")
CREDENTIALS = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if it has one, AWS_SESSION_TOKEN"
CONNECT_S, REQUEST_S, RETRIES, RETRY_S = 5, 120, 3, 60

_memories: dict[str, MemoryStore] = {}


@dataclass(frozen=True)
class Location:
    """A place for objects: how it is shown, how it is reached, and its folder if it is one."""

    shown: str
    objects: ObjectStore
    folder: Path | None = None

    def find(self, path: str) -> ObjectMeta | None:
        """Return what is known of an object without reading it, None if there is none."""
        import obstore

        with suppress(FileNotFoundError), explaining(self.shown):
            return obstore.head(self.objects, path)
        return None

    def get(self, path: str, most: int) -> bytes | None:
        """Return an object's bytes, None if there is none; `InputError` over `most` bytes."""
        import obstore

        with suppress(FileNotFoundError), explaining(self.shown):
            answer = obstore.get(self.objects, path)
            if answer.meta["size"] > most:
                raise InputError(f"{self.shown}/{path} has more than {most} bytes")
            return bytes(answer.bytes())
        return None

    def put(self, path: str, data: bytes, replace: bool = False) -> bool:
        """Write a small object, in place of another one only on `replace`; return whether it did."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        mode: Literal["create", "overwrite"] = "overwrite" if replace else "create"
        with suppress(AlreadyExistsError), explaining(self.shown):
            obstore.put(self.objects, path, data, mode=mode, use_multipart=False)
            return True
        return False

    def delete(self, path: str) -> None:
        """Delete an object; one that is gone already is no error."""
        import obstore

        with suppress(FileNotFoundError), explaining(self.shown):
            obstore.delete(self.objects, path)

    def listed(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield all objects whose names begin so, in their order."""
        import obstore

        with explaining(self.shown):
            for page in obstore.list(self.objects, prefix, chunk_size=1000):
                yield from page


def open_location(url: str, base: Path = Path(), make: bool = False) -> Location:
    """Return the place that a URL or a folder names; a relative folder is taken from `base` on.

    `make` makes a folder that is not there. `InputError` if it is none that is known, a folder is
    missing, or a URL has secrets in it: credentials come from the environment.
    """
    try:
        import obstore
    except ImportError as error:
        raise InputError(
            "the artifact store needs the package obstore", "pip install 'trtcal[store]'"
        ) from error
    if "://" not in url:
        return _folder(base / url, make)
    address = _split(url)
    if address.scheme == "file" and not address.netloc:
        return _folder(Path(address.path), make)
    if address.scheme == "memory":
        memory = _memories.setdefault(address.netloc, obstore.store.MemoryStore())
        return Location(f"memory://{address.netloc}", memory)
    if address.scheme == "s3":
        return _bucket(address)
    raise InputError(f"a store cannot be at {address.scheme}://", f"give {FORMS}")


def _split(url: str) -> SplitResult:
    """Split a URL; one that may hold a secret is refused without being shown."""
    try:
        address = urlsplit(url)
    except ValueError:
        raise InputError("the store's URL cannot be read", f"give {FORMS}") from None
    if "@" in address.netloc or address.query or address.fragment:
        raise InputError(
            "the URL of the store has a user, a query or a fragment, which may contain secrets",
            CREDENTIALS,
        )
    return address


def _folder(folder: Path, make: bool) -> Location:
    from obstore.store import LocalStore

    if not make and not folder.is_dir():
        raise InputError(f"there is no store at {folder}: no such folder", "check --store")
    with explaining(str(folder)):
        return Location(str(folder), LocalStore(folder.absolute(), mkdir=make), folder)


def _bucket(url: SplitResult) -> Location:
    """Return a bucket; region, endpoint and credentials are read from the environment."""
    from obstore.store import S3Store

    prefix = url.path.strip("/")
    segments = prefix.split("/") if prefix else []
    if not BUCKET.fullmatch(url.netloc) or not all(map(SEGMENT.fullmatch, segments)):
        raise InputError(
            f"{url.geturl()} is not a bucket and a prefix",
            "use the form s3://my-bucket/some/prefix",
        )
    shown = f"s3://{'/'.join([url.netloc, *segments])}"
    with explaining(shown):
        bucket_store = S3Store(
            url.netloc,
            prefix=prefix or None,
            client_options=_client(),
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
        )
    return Location(shown, bucket_store)


def _client() -> ClientConfig:
    """Return the bounds of a request; plain HTTP only to this machine, or where the user allows it."""
    endpoint = _endpoint()
    bounds: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=REQUEST_S),
    }
    if endpoint is None or endpoint.scheme == "https":
        return bounds
    host = str(endpoint.hostname)
    if not is_loopback(host) and os.environ.get("AWS_ALLOW_HTTP", "").lower() != "true":
        raise InputError(
            f"the endpoint on {host} is plain HTTP: others on the network can read and change the data",
            "give an endpoint with https://, or set AWS_ALLOW_HTTP=true",
        )
    return {**bounds, "allow_http": True}


def _endpoint() -> SplitResult | None:
    """Return the endpoint that the environment names; `InputError` if it, or the region, is malformed.

    obstore panics at such.
    """
    for name in REGIONS:
        if not REGION.fullmatch(os.environ.get(name, "")):
            raise InputError(f"{name} is not the name of a region", "use the form eu-central-1")
    variable = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if variable is None:
        return None
    if not ENDPOINT.fullmatch(os.environ[variable]):
        raise InputError(
            f"{variable} is not the address of a server", "use the form https://host:9000"
        )
    return urlsplit(os.environ[variable])


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def explaining(where: str) -> Iterator[None]:
    """Turn what a store's client raises into one error that names the place.

    What is not there stays a `FileNotFoundError`, what is there already an `AlreadyExistsError`, for
    callers to whom that is an answer.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError:
        raise
    except (BaseError, OSError) as error:
        text = str(error)
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
            raise
        raise _explained(where, text) from None  # the client's own text may hold headers
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3's, which no module exports
            raise
        raise InputError(
            f"{where}: the access failed", f"check all AWS_* variables: {CREDENTIALS}"
        ) from None


def _explained(where: str, text: str) -> TrtcalError:
    number, code = _found(r"os error (\d+)", text), _found(r"<Code>(\w+)</Code>", text)
    status = _found(r"status code: (\d{3})", text)
    if number:
        why = f"{where}: {os.strerror(int(number))}"
        return ResourceError(why, "free disk space, or check the folder and its permissions")
    if code == "NoSuchBucket":
        return InputError(f"{where}: the bucket does not exist", "make it, or check --store")
    if status in ("401", "403"):
        return InputError(f"{where}: access is denied ({code or status})", CREDENTIALS)
    if status:
        return ResourceError(f"{where}: the server answers {code or status}", "try again later")
    if "metadata" in text or "169.254" in text or "Credential" in text:
        return InputError(f"{where}: no credentials were found", CREDENTIALS)
    return ResourceError(
        f"{where} cannot be reached", "check the network, AWS_REGION and AWS_ENDPOINT_URL"
    )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""

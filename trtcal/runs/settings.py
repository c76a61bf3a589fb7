"""What a run can be made again from: `settings.json`, its configuration, and the pass scripts it ran.

Paths in the settings are relative to the run's folder; scripts of preparation passes are copied into
`passes/` by their digest, so that they are there when the originals have changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from trtcal.config import Config, config_of_table, script_in
from trtcal.documents import Document, Sealed, digest_file, parsing, write_bytes
from trtcal.documents.bounds import MB, read_bytes
from trtcal.errors import InputError
from trtcal.limits import Limit

SETTINGS = "settings.json"
SCRIPTS = "passes"
SCRIPT_BYTES = 4 * MB


@dataclass(frozen=True)
class Settings(Sealed, kind="settings", command="trtcal run"):
    """A run's configuration as the tables of a `trtcal.toml`, and its pass scripts by their digests."""

    config: Document
    passes: tuple[str, ...]


def write_settings(place: Path, config: Config, folder: Path) -> None:
    """Write what a run is made from into `place`, which becomes the run's folder `folder`."""
    scripts = [script_in(script) or (script, "") for script in config.prepare.passes]
    digests = []
    for path, function in scripts:
        name = f"{digest_file(path).partition(':')[2]}.py"
        write_bytes(place / SCRIPTS / name, read_bytes(path, SCRIPT_BYTES))
        digests.append(f"{name}:{function}".rstrip(":"))
    Settings(to_table(config, folder), tuple(digests)).write(place / SETTINGS)


def read_settings(folder: Path) -> Config:
    """Return the configuration of a run, with the pass scripts that it kept; they are not trusted.

    `InputError` if the run has none, or something in it was changed.
    """
    path = folder / SETTINGS
    if not path.is_file():
        raise InputError(f"{folder} has no {SETTINGS}", "run it again with this trtcal")
    settings = Settings.read(path)
    config = parsing(path, lambda: config_of_table(settings.config, path))
    scripts = tuple(_script(folder, script) for script in settings.passes)
    config = replace(config, prepare=replace(config.prepare, passes=scripts))
    return replace(config, untrusted=tuple(config.scripts.values()))


def _script(folder: Path, text: str) -> Path:
    name, _, function = text.partition(":")
    path = folder / SCRIPTS / Path(name).name
    if not path.is_file() or digest_file(path) != f"sha256:{path.stem}":
        raise InputError(f"{path} is missing or was changed", "run it again")
    return Path(f"{path.absolute()}:{function}".rstrip(":"))


def to_table(config: Any, folder: Path) -> Document:
    """Return a section of a configuration as the TOML table of it, with paths from `folder` on."""
    return dict(_items(config, folder))


def _items(section: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    for item in fields(section):
        value = getattr(section, item.name)
        if item.metadata and value is not None and value != () and value != {}:
            yield item.metadata["name"] or item.name, _plain(value, folder)


def _plain(value: Any, folder: Path) -> Any:
    if isinstance(value, Path):
        return os.path.relpath(value, folder)
    if is_dataclass(value) and not isinstance(value, (type, Limit)):
        return to_table(value, folder)
    if isinstance(value, dict):
        return {name: _plain(item, folder) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item, folder) for item in value]
    return str(value) if isinstance(value, Limit) else value

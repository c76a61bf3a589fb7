"""`trtcal upgrade`."""

from __future__ import annotations

from pathlib import Path

from trtcal.cli.options import JsonOptions, argument
from trtcal.cli.output import say


class Upgrade(JsonOptions, example="trtcal upgrade reports/digits"):
    """Convert what an older trtcal wrote to what this one reads.

    A PATH is a trtcal.toml, a document, the folder of a run, a history, or a folder of all these.
    Digests that other documents of the folder name are renewed. Signed bundles are left as they
    are, and verify as before; a store keeps what was pushed: upgrade the run that was pulled.
    """

    paths: tuple[Path, ...] = argument()

    def _run(self) -> None:
        from trtcal.runs.upgrade import upgrade

        changed = [str(file) for path in self.paths for file in upgrade(path)]
        lines = [*(f"converted {file}" for file in changed), f"{len(changed)} files converted"]
        self.present({"converted": changed}, lambda: say(*lines))


command = Upgrade.command()

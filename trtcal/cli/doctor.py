"""`trtcal doctor`."""

from __future__ import annotations

from typing import Any

from trtcal import __version__
from trtcal.cli.options import JsonOptions
from trtcal.cli.output import Columns, print_table, say


class Doctor(JsonOptions, example="trtcal doctor --json"):
    """Show which backends and calibrators work here, and how to get what is missing."""

    def _run(self) -> None:
        import calibrators
        from trtcal.backends.registry import BACKENDS
        from trtcal.backends.targets import machine, packages

        states = {name: backend.availability() for name, backend in BACKENDS.items()}
        document = {
            "trtcal": __version__,
            "machine": machine(),
            "packages": packages(),
            "backends": {name: vars(state) for name, state in states.items()},
            "calibrators": calibrators.names(),
        }
        self.present(document, lambda: _show(document))


command = Doctor.command()


def _show(document: dict[str, Any]) -> None:
    columns: Columns = {
        "backend": "{0}",
        "state": lambda item: "works" if item[1]["works"] else "missing",
        "version": lambda item: item[1]["version"] or "-",
        "missing": "{1[missing]}",
        "how to get it": "{1[hint]}",
    }
    print_table([*document["backends"].items()], columns, f"trtcal {__version__}")
    say("calibrators: " + ", ".join(document["calibrators"]))
    found = document["packages"].items()
    say("packages: " + ", ".join(f"{name} {version or '-'}" for name, version in found))

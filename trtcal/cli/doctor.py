"""`trtcal doctor`."""

from __future__ import annotations

import click

from trtcal import __version__
from trtcal.cli.output import json_option, print_json, print_table, say


@click.command(epilog="Example: trtcal doctor --json")
@json_option
def command(as_json: bool) -> None:
    """Show which backends and calibrators work here, and how to get what is missing."""
    import calibrators
    from trtcal.backends.registry import BACKENDS
    from trtcal.backends.targets import machine, packages

    states = {name: backend.availability() for name, backend in BACKENDS.items()}
    if as_json:
        print_json(
            {
                "trtcal": __version__,
                "machine": machine(),
                "packages": packages(),
                "backends": {name: vars(state) for name, state in states.items()},
                "calibrators": calibrators.names(),
            }
        )
        return
    rows = [
        (
            name,
            "works" if state.works else "missing",
            state.version or "-",
            state.missing or "",
            state.hint or "",
        )
        for name, state in states.items()
    ]
    print_table(("backend", "state", "version", "missing", "how to get it"), rows,
                f"trtcal {__version__}")  # fmt: skip
    say("calibrators: " + ", ".join(calibrators.names()))
    say("packages: " + ", ".join(f"{name} {found or '-'}" for name, found in packages().items()))

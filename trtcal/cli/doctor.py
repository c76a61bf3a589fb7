"""`trtcal doctor`."""

from __future__ import annotations

from typing import Any

from trtcal.cli.options import JsonOptions
from trtcal.cli.output import Columns, print_table, say
from trtcal.errors import __version__
from trtcal.extensions import DEVICES, entry_points


class Doctor(JsonOptions, example="trtcal doctor --json"):
    """Show which backends, targets and calibrators work on this machine, and how to get the rest."""

    def _run(self) -> None:
        import calibrators
        from trtcal.backends.cuda import find_device
        from trtcal.backends.registry import BACKENDS, targets_here
        from trtcal.backends.targets import machine, packages
        from trtcal.evidence.gpus import GPUS

        here = targets_here()
        states = {name: backend.availability() for name, backend in BACKENDS.items()}
        document = {
            "trtcal": __version__,
            "machine": machine(),
            "packages": packages(),
            "backends": {name: vars(state) for name, state in states.items()},
            "cuda": vars(find_device()),
            "targets": {
                target: {"gpus": list(GPUS.get(target, ())), "backend": here.get(target)}
                for target in dict.fromkeys([*here, *GPUS])
            },
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
    say(f"CUDA device: {_device(document['cuda'])}")
    columns = {
        "target": "{0}",
        "GPUs by name": lambda item: " ".join(item[1]["gpus"]),
        "built on this machine by": lambda item: (
            item[1]["backend"] or "- (TensorRT on the GPU's machine)"
        ),
    }
    print_table(document["targets"].items(), columns, "--target")
    if entry_points(DEVICES):
        say("devices: `trtcal device list` shows the machines where engines are built by ssh")
    say("calibrators: " + ", ".join(document["calibrators"]))
    packages = document["packages"].items()
    say("packages: " + ", ".join(f"{name} {version or '-'}" for name, version in packages))


def _device(cuda: dict[str, str | None]) -> str:
    """Return the device that TensorRT would build for, or why none can be opened and what to do."""
    if cuda["missing"]:
        return f"{cuda['missing']} ({cuda['hint']})"
    return f"{cuda['name']}, with a driver that supports CUDA {cuda['cuda']}"

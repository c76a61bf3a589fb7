"""`trtcal init`."""

from __future__ import annotations

from pathlib import Path

from trtcal.cli.options import GivenOptions, argument, option
from trtcal.cli.output import say
from trtcal.config import FILE
from trtcal.documents.streams import command_line
from trtcal.errors import InputError


class Init(GivenOptions, example="trtcal init model.onnx --data images/ --test test/"):
    """Write a trtcal.toml for MODEL from the model and its data: layout, sizes, task, labels.

    Guessed lines are marked, with the reason. `trtcal run` then does what the file says.
    """

    model: Path | None = argument()
    output: Path = option("File to write.", "-o", default=Path(FILE))
    force: bool = option("Overwrite the file if it exists.")

    def _run(self) -> None:
        from trtcal.documents import write_text

        if self.output.exists() and not self.force:
            hint = "give --force to overwrite it, or another -o"
            raise InputError(f"{self.output} already exists", hint)
        _, draft = self.guess(self.model or _only_model(Path()), self.output.parent)
        write_text(self.output, draft.text)
        say(f"wrote {self.output}")
        named = [] if self.output == Path(FILE) else [self.output]
        say(f"next: {command_line('run', *named)}")


def _only_model(folder: Path) -> Path:
    models = sorted(folder.glob("*.onnx"))
    if len(models) != 1:
        count = f"{len(models) or 'no'} .onnx file{'s' * bool(models)}"
        raise InputError(f"this folder has {count}", "name one: trtcal init MODEL.onnx --data DATA")
    return models[0]


command = Init.command()

"""`trtcal verify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import say
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.runs.verify import Check

KEY_VARIABLE = "TRTCAL_PUBLIC_KEY"


class Verify(JsonOptions, example="trtcal verify reports/digits"):
    """Recompute the digests of runs, bundles, reports (HTML or JSON) and documents.

    It says for content, files and signature which digests were checked, names each that does not
    match and each file that trtcal did not write. The status is 1 if a digest does not match.
    """

    paths: tuple[Path, ...] = argument()
    public_key: Path | None = option(
        f"Public key of a bundle's signer, a PEM file.  [default: ${KEY_VARIABLE}]",
        envvar=KEY_VARIABLE,
    )

    def _run(self) -> None:
        from trtcal.runs.verify import verify

        checks = [check for path in self.paths for check in verify(path, self.public_key)]
        broken = [check for check in checks if not check.holds]

        def show() -> None:
            say(*(f"{check.part}: {check.what}: {check.problem}" for check in broken))
            say(*_summary(checks))

        self.present([vars(check) for check in checks], show)
        if broken:
            checked = sum(check.unchecked is None for check in checks)
            hint = "make the file again with the command that wrote it, or get the original"
            raise GateFailed(f"{len(broken)} of {checked} digests do not match", hint)


def _summary(checks: Sequence[Check]) -> Iterator[str]:
    for part in dict.fromkeys(check.part for check in checks):
        group = [check for check in checks if check.part == part]
        checked = [check.holds for check in group if check.unchecked is None]
        if checked:
            yield f"{part}: {sum(checked)} of {len(checked)} digests match"
        for reason in dict.fromkeys(check.unchecked for check in group if check.unchecked):
            names = ", ".join(check.what for check in group if check.unchecked == reason)
            yield f"{part}: {names} not checked: {reason}"


command = Verify.command()

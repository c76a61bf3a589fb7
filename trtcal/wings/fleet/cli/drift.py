"""`trtcal bundle drift`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import Columns, print_table
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.stats import Interval

AGREEMENT_PERCENT = 95.0


class Drift(JsonOptions, example="trtcal bundle drift bundle outputs/t4.npz outputs/l4.npz"):
    """Compare OUTPUTS that devices saved with the golden outputs of BUNDLE, by tier of device.

    `trtcal bundle verify --device --save-outputs` saves OUTPUTS. The status is 1 if a tier agrees
    on too few golden inputs, or on fewer than the other tiers.
    """

    bundle: Path = argument()
    outputs: tuple[Path, ...] = argument()
    least: float = option(
        "Percent of the golden inputs on which the outputs must agree.",
        "--least",
        least=0,
        default=AGREEMENT_PERCENT,
    )

    def _run(self) -> None:
        from trtcal.wings.fleet.drift import drift

        tiers = drift(self.bundle, self.outputs, self.least)
        document = [tier.to_document() for tier in tiers]
        self.present(document, lambda: print_table(tiers, COLUMNS, "agreement by tier"))
        alerts = [f"{tier.name}: {tier.alert}" for tier in tiers if tier.alert]
        if alerts:
            hint = (
                "compare that device layer by layer; `trtcal build` makes it an engine from "
                "the bundle's model/"
            )
            raise GateFailed("; ".join(alerts), hint)


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{interval.value:.1f} ({interval.low:.1f} to {interval.high:.1f})"


COLUMNS: Columns = {
    "tier": "{name}",
    "devices": "{devices}",
    "agree % (95 %)": lambda tier: _interval(tier.agreement),
    "within tolerance": "{within} of {inputs}",
    "largest / tolerance": "{largest:.2f}",
    "points below rest (95 %)": lambda tier: _interval(tier.below),
    "state": lambda tier: "alert" if tier.alert else "fine",
}

command = Drift.command()

"""What this wing does after a run: costs in the report, limits on them, and the export to MLflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtcal.documents import Document, to_fields
from trtcal.limits import Judgement, Limit
from trtcal.runs.follower import Follower
from trtcal.runs.history import Entry
from trtcal.wings.fleet.costs import meter_of_run
from trtcal.wings.fleet.prices import PriceTable, judge_costs, load_prices, named_price, with_costs


class CostFollower(Follower):
    """Adds what the variants of a run cost."""

    name = "costs"

    def check(self) -> None:
        """Read the table of prices."""
        self._table()

    def _table(self) -> PriceTable | None:
        prices = self.config.cost.prices
        return load_prices(prices) if prices else None

    def complete(self, report: Document) -> Document:
        """Return the report with costs, at the price that the configuration names."""
        settings = self.config.report
        if settings.price_per_hour is None:
            return with_costs(report, self._table())
        price = named_price(settings.price_per_hour, settings.currency)
        return with_costs(report, price=price)

    def judge(self, limits: Sequence[Limit], report: Document) -> Sequence[Judgement]:
        """Return the judged limits on costs."""
        return judge_costs(limits, report)

    @staticmethod
    def meter(report: Document) -> Document:
        """Return what the costs follow from."""
        return to_fields(meter_of_run(report))


class MlflowFollower(Follower):
    """Sends runs to MLflow."""

    name = "mlflow"

    @staticmethod
    def export(entries: Sequence[Entry], address: str, advance: Callable[[int], None]) -> int:
        """Send runs to a tracking server or a database."""
        from trtcal.wings.fleet.mlflow import send_to_mlflow

        return send_to_mlflow(entries, address, advance)

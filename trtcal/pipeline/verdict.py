"""The verdict of a report, as Python and notebooks show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtcal.documents import Document
from trtcal.documents.overview import NEUTRAL, Overview, Shown
from trtcal.limits import COLUMNS, TONES, Judgement


@dataclass(frozen=True)
class Verdict(Shown):
    """The word, the variant that it is about, the sentence with its numbers, and the warnings."""

    word: str
    sentence: str
    variant: str | None
    reasons: tuple[str, ...]
    limits: tuple[Judgement, ...]

    @classmethod
    def of(cls, report: Document) -> Verdict:
        """Return the verdict in a report's document."""
        document = report["measured"]["verdict"]
        limits = tuple(map(Judgement.from_document, document["limits"]))
        return cls(
            document["word"],
            document["sentence"],
            document["variant"],
            tuple(document["reasons"]),
            limits,
        )

    def overview(self, page: Path | None = None) -> Overview:
        """Return the answer, the warnings and the limits; `page` is the report."""
        title, tone = f"{self.word}: {self.sentence}", TONES.get(self.word, NEUTRAL)
        return Overview(title, self.reasons, self.limits, COLUMNS, "-", page, tone)

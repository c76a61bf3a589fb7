"""The verdict of a report, as Python and notebooks show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtcal.documents.overview import NEUTRAL, Overview, Shown
from trtcal.limits import TONES


@dataclass(frozen=True)
class Verdict(Shown):
    """The word, the sentence with its numbers, the variant that it is about, and the warnings."""

    word: str
    sentence: str
    variant: str | None
    reasons: tuple[str, ...]

    def overview(self, page: Path | None = None) -> Overview:
        """Return the answer and the warnings; `page` is the report."""
        tone = TONES.get(self.word, NEUTRAL)
        return Overview(f"{self.word}: {self.sentence}", self.reasons, page=page, tone=tone)

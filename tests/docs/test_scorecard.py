"""The scorecard: the page is what the code gives, and a wrong finding counts."""

from collections import defaultdict

from benchmarks.scorecard import LOGS, PAGE, Score, labels_of, page, score_log
from trtcal.evidence.log.recognition import CATEGORIES


def test_the_page_shows_what_log_finds_today():
    *_, table = page("trtcal log")
    assert table in PAGE.read_text(), "python -m benchmarks.scorecard --write"


def test_a_wrong_label_counts_as_missed_and_false(tmp_path):
    card = defaultdict(Score)
    log = tmp_path / "wrong.built.log"
    log.write_text(
        "[W] [TRT] Detected layernorm nodes in FP16.\t\t# fallback\nnothing\t\t# error !\n"
    )
    score_log(log, tmp_path, card)
    assert (card["fallback"], card["error"]) == (Score(missed=1), Score(missed=1))
    assert card["the cause comes first"] == Score(false=1)
    assert sum(score.false for score in card.values()) == 2


def test_each_label_is_a_category():

    labels = [label for path in LOGS.glob("*.log") for _, label in labels_of(path) if label]
    words = {word for label in labels for word in label.split()[0].rstrip("?").split("|")}
    assert words <= {*CATEGORIES, "build"}

"""The rules of the tests themselves."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
WORDS = {path: path.read_text() for path in FILES if path != Path(__file__)}


def places(pattern, paths=FILES):
    """Return file and line of each match of a pattern in tests."""
    return [
        f"{path.relative_to(TESTS)}:{text[: match.start()].count(chr(10)) + 1}"
        for path, text in WORDS.items()
        if path in paths
        for match in re.finditer(pattern, text, re.MULTILINE)
    ]


def test_no_test_holds_a_clock():
    """What takes how long is a question of benchmarks; `make fuzz` times what it reads."""
    tests = [path for path in FILES if path.name.startswith("test_")]
    assert places(r"\b(perf_counter|process_time|thread_time)\b(?!=)", tests) == []
    assert places(r"timeout=([1-9]?\d|1\d\d|2\d\d)\b", tests) == []


def test_no_test_imports_another_one():
    assert places(r"^\s*(from|import) tests[.\w]*\btest_\w+") == []


def test_the_root_has_the_tests_of_the_house_alone():
    own = {"api", "architecture", "docs", "patches", "style", "tests", "without_wings"}
    assert {path.stem for path in TESTS.glob("test_*.py")} == {f"test_{name}" for name in own}

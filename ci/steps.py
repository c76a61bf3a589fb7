"""What the steps of action.yml need besides trtcal: facts of a run, and the comment.

    python steps.py history CONFIG      path of the history that `trtcal run CONFIG` writes
    python steps.py candidate STATE     path of the model that the verdict is about
    python steps.py model CONFIG        path of its FP32 model
    python steps.py write STATE         write comment.md, and print outputs of the step
    python steps.py post STATE          write the comment of the pull request, or change it

STATE is the folder that the action keeps its files in.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

COMMANDS = {"run": "trtcal run", "history": "trtcal history check", "ab": "trtcal ab"}
GOOD = ("SHIP", "SHIP WITH CARE")
VERDICTS = (*GOOD, "DO NOT SHIP", "INCONCLUSIVE")
ERROR_LINES, CONFIG_LINES, LINE_LENGTH = 12, 60, 300
COMMENT_LENGTH = 65_000  # a comment holds 65,536 characters
TIMEOUT_S = 30
NO_BASELINE = "not run: no good push has left a baseline yet"


def report_of(state: Path) -> dict[str, Any]:
    """Return the report of a run, {} if it has none."""
    path = state / "run" / "report.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def verdict_of(report: dict[str, Any]) -> str:
    """Return the word of the verdict, empty if there is none."""
    word = report["measured"]["verdict"]["word"] if report else ""
    return word if word in VERDICTS else ""


def history_of(config: Path) -> Path:
    """Return the path of the history of a configuration or of a model."""
    from trtcal.config import read_config
    from trtcal.runs.history import default_path

    own = read_config(config).history if config.suffix == ".toml" else None
    return own or default_path()


def candidate_of(state: Path) -> Path | None:
    """Return the file of the verdict's variant, None if it has none."""
    report = report_of(state)
    variant = report["measured"]["verdict"]["variant"] if report else None
    folder = state / "run" / "models"
    return next((file for file in folder.glob("*.onnx") if file.stem == variant), None)


def model_of(source: Path) -> Path | None:
    """Return the FP32 model of a configuration; a model is its own."""
    from trtcal.config import read_config

    return read_config(source).model if source.suffix == ".toml" else source


def statuses_of(state: Path) -> dict[str, int]:
    """Return the exit status of each command that ran."""
    files = {name: state / f"{name}.status" for name in COMMANDS}
    return {name: int(file.read_text()) for name, file in files.items() if file.is_file()}


def is_good(report: dict[str, Any], statuses: dict[str, int]) -> bool:
    """Whether a run may become the baseline: all of it ended well, and nothing is undecided."""
    words = [verdict_of(report)]
    words += (
        [test["verdict"]["word"] for test in report["measured"]["tests"].values()] if report else []
    )
    return "run" in statuses and not any(statuses.values()) and all(word in GOOD for word in words)


def outputs_of(state: Path) -> dict[str, str]:
    """Return the outputs of the step: the verdict, the first status but 0, and if it is good."""
    report, statuses = report_of(state), statuses_of(state)
    failed = [status for status in statuses.values() if status]
    status = failed[0] if failed else 0 if statuses else 1
    good = str(is_good(report, statuses)).lower()
    return {"verdict": verdict_of(report), "status": str(status), "good": good}


def plain(text: str) -> Iterator[str]:
    """Yield the lines of any text as an indented block of code, which nothing in it can end."""
    for line in re.split(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+", text.strip()):
        shown = "".join(
            letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line
        )
        yield f"    {shown[:LINE_LENGTH]}"


def checks_of(state: Path) -> Iterator[str]:
    """Yield a row for each command, and the last lines that a failed one printed to standard error."""
    statuses = statuses_of(state)
    is_first = not any((state / "baseline").iterdir())
    yield from ("| Check | Result |", "| --- | --- |")
    for name, command in COMMANDS.items():
        result = NO_BASELINE if is_first and name == "ab" else "not run"
        if name in statuses:
            status = statuses[name]
            result = f"**failed** with exit status {status}" if status else "passed"
        about = " (A: base branch, B: this change)" if name == "ab" else ""
        yield f"| `{command}`{about} | {result} |"
    yield from ("", *findings_of(report_of(state)))
    if os.environ.get("REDACT") != "true":
        for name in (name for name, status in statuses.items() if status):
            lines = (
                (state / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
            )
            shown = [line for line in lines if re.match("error:|hint:", line)] or lines
            yield from (f"`{COMMANDS[name]}`:", "", *plain("\n".join(shown[-ERROR_LINES:])), "")


def findings_of(report: dict[str, Any]) -> Iterator[str]:
    """Yield a line with the number of findings of each kind, in all builds together."""
    counts = Counter[str]()
    for build in report["measured"]["builds"].values() if report else ():
        counts.update((build.get("diagnosis") or {}).get("kinds") or {})
    parts = (f"{count} `{re.sub(r'[^a-z0-9_]', '', kind)}`" for kind, count in counts.most_common())
    if report:
        yield from (f"Findings: {', '.join(parts) or 'none'}.", "")


def changes_of(before: Path, now: Path) -> Iterator[str]:
    """Yield the lines of a configuration that changed, if there were both."""
    if not (before.is_file() and now.is_file()):
        return
    texts = [
        file.read_text(encoding="utf-8", errors="replace").splitlines() for file in (before, now)
    ]
    lines = [*unified_diff(*texts, "base branch", "this change", lineterm="", n=1)]
    if lines:
        yield from ("<details><summary>The configuration changed</summary>", "")
        yield from (*plain("\n".join(lines[:CONFIG_LINES])), "", "</details>", "")


def comment_of(state: Path) -> str:
    """Return the comment: a mark by which it is recognized, the checks, and the report."""
    name, status = os.environ["NAME"], outputs_of(state)["status"]
    page = state / "report.md"
    head = [mark_of(name), f"**trtcal, {name}: {'passed' if status == '0' else 'failed'}**", ""]
    config = Path(os.environ.get("CONFIG") or "trtcal.toml")
    changes = (
        []
        if os.environ.get("REDACT") == "true"
        else changes_of(state / "baseline/config.toml", config)
    )
    body = page.read_text(encoding="utf-8") if page.is_file() else "There is no report.\n"
    return "\n".join([*head, *checks_of(state), *changes, body])[:COMMENT_LENGTH]


def mark_of(name: str) -> str:
    """Return the first line of a comment; a name has letters, digits, `.`, `_` and `-` only."""
    return f"<!-- trtcal {name.replace('--', '-')} -->"


def write(state: Path) -> None:
    """Write comment.md, and print outputs of the step."""
    (state / "comment.md").write_text(comment_of(state), encoding="utf-8")
    for name, value in outputs_of(state).items():
        print(f"{name}={value}")


def ask(path: str, method: str = "GET", body: object = None) -> Any:
    """Return what GitHub's REST API answers."""
    url = f"{os.environ['GITHUB_API_URL']}/{path}"
    headers = {
        "Authorization": f"Bearer {os.environ['TOKEN']}",
        "Accept": "application/vnd.github+json",
        "Content-Type": "application/json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 (the runner's)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return json.load(answer)


def is_own(comment: dict[str, Any], login: str | None, mark: str) -> bool:
    """Whether a comment is one that this action wrote: others may write its mark too."""
    user = comment.get("user") or {}
    own = user.get("login") == login if login else user.get("type") == "Bot"
    return own and (comment.get("body") or "").startswith(mark)


def comments_of(issue: str) -> Iterator[dict[str, Any]]:
    """Yield the comments of a pull request, a page at a time."""
    number, page = 1, [{}]
    while page:
        page = ask(f"{issue}/comments?per_page=100&page={number}")
        yield from page
        number += 1


def login_of() -> str | None:
    """Return whose token it is; None for that of a workflow, which may not ask."""
    try:
        return str(ask("user")["login"])
    except urllib.error.HTTPError:
        return None


def put(state: Path) -> None:
    """Change the comment that an earlier run left, or write the first one."""
    text = (state / "comment.md").read_text(encoding="utf-8")
    repository = f"repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    issue, mark, login = (
        f"{repository}/{int(os.environ['NUMBER'])}",
        text.partition("\n")[0],
        login_of(),
    )
    for comment in comments_of(issue):
        if is_own(comment, login, mark):
            ask(f"{repository}/comments/{int(comment['id'])}", "PATCH", {"body": text})
            return
    ask(f"{issue}/comments", "POST", {"body": text})


def post(state: Path) -> None:
    """Put the comment; a token that may not write and a server that does not answer are warnings."""
    try:
        put(state)
    except urllib.error.HTTPError as error:
        why = (
            "the token may not write: a fork's never may"
            if error.code in (401, 403, 404)
            else "see above"
        )
        print(f"::warning title=trtcal::no comment: GitHub answered {error.code} ({why})")
    except (OSError, ValueError) as error:
        print(f"::warning title=trtcal::no comment: {type(error).__name__}")


def show(fact: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a function that prints a fact, or nothing for None."""
    return lambda path: print(fact(path) or "")


ACTIONS = {
    "history": show(history_of),
    "candidate": show(candidate_of),
    "model": show(model_of),
    "write": write,
    "post": post,
}

if __name__ == "__main__":
    ACTIONS[sys.argv[1]](Path(sys.argv[2]))

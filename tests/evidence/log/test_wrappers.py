"""The findings of a log are those of the bare one, whatever stands around its lines."""

import io
import json
import random

import pytest

from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from tests.fixtures.wrapped import log
from trtcal.evidence.log.files import portions
from trtcal.evidence.log.reader import Live
from trtcal.evidence.log.summary import LogWriter


def prefixed(prefix):
    return lambda lines: "".join(f"{prefix}{line}\n" for line in lines).encode()


def docker(lines):
    out = []
    for line in lines:
        pieces = [line[at : at + 90] for at in range(0, len(line), 90)] or [""]
        pieces[-1] += "\n"
        out += [
            {"log": one, "stream": "stderr", "time": "2031-03-04T05:06:07.1Z"} for one in pieces
        ]
    return "".join(json.dumps(one) + "\n" for one in out).encode()


def kubernetes(lines):
    out = []
    for line in lines:
        pieces = [line[at : at + 90] for at in range(0, len(line), 90)] or [""]
        for number, piece in enumerate(pieces, 1):
            mark = "F" if number == len(pieces) else "P"
            out.append(f"2031-03-04T05:06:07.123456789Z stdout {mark} {piece}\n")
    return "".join(out).encode()


def journal_json(lines):
    entries = (
        {"MESSAGE": list(line.encode()) if "\x1b" in line else line, "_PID": "12", "PRIORITY": "6"}
        for line in lines
    )
    return "".join(json.dumps(one) + "\n" for one in entries).encode()


def gitlab(lines):
    begun = "section_start:1930000000:build\r\x1b[0K"
    head = "2031-03-04T05:06:07.123456Z 00O "
    out = [f"{head}{begun}"]
    for line in lines:
        out.append(f"{head}{line[:50]}")
        if line[50:]:
            out.append(f"{head[:-1]}+{line[50:]}")
    return "".join(f"{line}\n" for line in out).encode()


def github(lines):
    head = "2031-03-04T05:06:07.1234567Z "
    text = "".join(f"{head}{line}\n" for line in ["##[group]Run make", *lines, "##[endgroup]"])
    return b"\xef\xbb\xbf" + text.encode()


def coloured_compose(lines):
    return "".join(f"\x1b[36mbuilder-1  | \x1b[0m{line}\n" for line in lines).encode()


def windows(lines):
    return "".join(f"{line}\r\n" for line in lines).encode()


def coloured(lines):
    return "".join(f"\x1b[32m{line}\x1b[0m\n" for line in lines).encode()


def stacked(*wrappers):
    def wrap(lines):
        data = b""
        for wrapper in wrappers:
            data = wrapper(lines)
            lines = data.decode().split("\n")[:-1]
        return data

    return wrap


compose = prefixed("builder-1  | ")
WRAPPERS = {
    "docker": docker,
    "kubernetes": kubernetes,
    "compose": compose,
    "coloured compose": coloured_compose,
    "journald": prefixed("Mar  4 05:06:07 gpu-7 trtexec[1234]: "),
    "journald iso": prefixed("2031-03-04T05:06:07+0100 gpu-7 python3[1234]: "),
    "journald json": journal_json,
    "gitlab": gitlab,
    "github": github,
    "github client": prefixed("build\tRun make\t2031-03-04T05:06:07.1234567Z "),
    "azure": prefixed("2031-03-04T05:06:07.1234567Z "),
    "torchrun": prefixed("[default0]:"),
    "rank": prefixed("[rank3]: "),
    "slurm": prefixed("0: "),
    "mpirun": prefixed("[1,0]<stderr>:"),
    "ray": prefixed("(Worker pid=123, ip=10.0.0.7) "),
    "pods": prefixed("[pod/build-7f/main] "),
    "ts": prefixed("Mar 04 05:06:07 "),
    "ts -s": prefixed("00:01:07 "),
    "ts %F": prefixed("2031-03-04 05:06:07 "),
    "ts brackets": prefixed("[2031-03-04T05:06:07.123Z] "),
    "ts seconds": prefixed("1930000000.123456 "),
    "windows": windows,
    "colours": coloured,
    "rank in compose": stacked(prefixed("[rank0]: "), compose),
    "slurm in docker": stacked(prefixed("0: "), windows, docker),
    "kubernetes in ts": stacked(kubernetes, prefixed("Mar 04 05:06:07 ")),
    "colours in github": stacked(coloured, github),
    "compose in journald json": stacked(coloured_compose, journal_json),
    "ts in torchrun in gitlab": stacked(prefixed("05:06:07 "), prefixed("[default1]:"), gitlab),
}
# They add lines of their own, or break lines up.
OTHER_NUMBERS = ("docker", "kubernetes", "gitlab", "github")


def read(data):
    pieces = io.BytesIO()
    LogWriter("x", pieces.write).write(portions([data]))
    return json.loads(pieces.getvalue())


def facts(document, with_lines):
    events = document["events"]
    for event in events:
        event.pop("repeats", None)
        if not with_lines:
            del event["line"]
    for finding in document["summary"]["findings"]:
        if not with_lines:
            for name in ("first_line", "last_line", "follows"):
                finding.pop(name, None)
    return events, document["layers"], document["summary"]


@SLOW
@each("seed", range(22))
@each("name", WRAPPERS)
def test_the_findings_are_those_of_the_bare_log(name, seed):
    lines = log(seed)
    with_lines = not any(word in name for word in OTHER_NUMBERS)
    bare = read("".join(f"{line}\n" for line in lines).encode())
    wrapped = read(WRAPPERS[name](lines))
    assert facts(wrapped, with_lines) == facts(bare, with_lines)
    assert len(bare["events"]) > 30


def test_interleaved_processes_keep_their_own_lines():
    first, second = log(0), log(8)
    names = {"[rank0]: ": first, "[rank1]: ": second}
    waiting = [(name, iter(lines)) for name, lines in names.items()]
    chooser = random.Random(0)  # noqa: S311
    out = []
    while waiting:
        place = chooser.randrange(len(waiting))
        name, lines = waiting[place]
        line = next(lines, None)
        if line is None:
            del waiting[place]
        else:
            out.append(name + line)
    document = read("".join(f"{line}\n" for line in out).encode())
    found = sorted(event["message"] for event in document["events"])
    apart = [read("".join(f"{line}\n" for line in lines).encode()) for lines in (first, second)]
    assert found == sorted(event["message"] for one in apart for event in one["events"])
    assert document["lines"] == len(out)
    for event in document["events"]:
        assert event["message"].partition("\n")[0] in out[event["line"] - 1]


def test_one_line_in_a_form_is_no_wrapper():
    lines = ['{"log": "x"}', "builder-1  | x", "[rank0]: x", "0: x", *["[V] quiet"] * 20]
    text = "\n".join([*lines, "[W] Odd thing", "[rank0]: 1", ""])
    assert read(text.encode())["events"][-1]["message"] == "Odd thing\n[rank0]: 1"


def test_errors_that_begin_with_their_number_are_no_labels_of_slurm():
    text = "10: Could not find any implementation for node a.\n" * 9
    events = read(text.encode())["events"]
    assert [event["code"] for event in events] == [10] * 9


@pytest.mark.parametrize("name", ["docker", "kubernetes", "gitlab"])
def test_a_line_cut_at_the_end_of_the_log_is_read(name):
    data = WRAPPERS[name](["[V] x"] * 9 + ["[W] Odd " + "thing " * 40 + "end"])
    cut = data[: data.rfind(b"\n", 0, -1) + 1]
    assert read(cut)["events"][0]["message"].startswith("Odd thing thing")


@each("name", WRAPPERS)
def test_a_wrapped_log_is_followed_line_by_line(name):
    lines = log(1)
    found = []
    live = Live(lambda one, line: found.append(one.event.message))
    counts = []
    for line in WRAPPERS[name](lines).split(b"\n")[:-1]:
        live.read(line)
        live.read(b"")
        counts.append(len(found))
    live.close()
    assert len(set(counts)) > 20

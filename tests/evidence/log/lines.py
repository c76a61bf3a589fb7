"""Events of lines that a test writes down."""

from trtcal.evidence.log.reader import events_of


def parse_lines(lines):
    """Yield the events of texts or bytes, of which each may hold several lines."""
    return events_of(map(_in_bytes, lines))


def _in_bytes(item):
    raw = item.encode("utf-8", "backslashreplace") if isinstance(item, str) else item
    return raw or b"\n"

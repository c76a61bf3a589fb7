"""The page of exit statuses, from the tree of errors."""

from collections.abc import Iterator

from tests.docs.reference.markdown import prose, table
from trtcal import errors
from trtcal.cli.main import DEFECT
from trtcal.errors import TrtcalError

PAGE = """\
# Exit statuses

Every command ends with one of these. An error is one sentence on standard
error, and a hint that says what to do.

{table}
From Python, an error is an exception of the class above; each is a
`trtcal.TrtcalError` with `message` and `hint`.

Where an error cannot be explained, `TRTCAL_DEBUG=1` shows where in trtcal it was raised.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page."""
    rows = [("0", "", "The work is done, and no limit is broken.")]
    rows += [
        (str(one.exit_status), f"`{one.__name__}`", prose((one.__doc__ or "").split("\n\n")[0]))
        for one in classes()
    ]
    rows.insert(-1, (str(DEFECT), "", "A defect of trtcal."))
    yield "exit-statuses.md", PAGE.format(table=table(["status", "exception", "meaning"], rows))


def classes() -> list[type[TrtcalError]]:
    """Return the classes of errors in the order of their exit statuses."""
    found = (one for one in vars(errors).values() if _is_error(one))
    return sorted(found, key=lambda one: one.exit_status)


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, TrtcalError) and one is not TrtcalError

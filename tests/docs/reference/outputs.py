"""The page of outputs: what trtcal takes those of public exports for, as the code reads them."""

from collections.abc import Iterator

from tests.docs.reference.markdown import cell, table
from tests.fixtures.outputs import EXPORTS, Export
from trtcal.evaluate.clues import CLUES
from trtcal.evaluate.tasks import SUGGESTED, TASK_OF, default_limits

PAGE = """\
# Outputs and their tasks

Every output of a network has its own task; `--task OUTPUT=TASK` chooses another one. This page has
outputs as public exports have them, what trtcal takes each for, and the clue that decides. A limit in
brackets is a suggestion and decides nothing.

{outputs}
## Clues

The strongest clue decides, and of equal strength the first one: 5 is stated by you or the exporter, 4
seen in values and types, 3 named, 2 shaped so, 1 what an output is without evidence, 0 what else it
could be.

{clues}"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page."""
    outputs = table(
        ["export", "output", "last operator", "task", "default limit", "because"],
        (row for export in EXPORTS for row in _rows(export)),
    )
    clues = [(str(clue.strength), TASK_OF[clue.kind], cell(clue.says)) for clue in CLUES]
    clues = table(["strength", "task", "seen"], clues)
    yield "outputs.md", PAGE.format(outputs=outputs, clues=clues)


def _rows(export: Export) -> Iterator[tuple[str, ...]]:
    task, arrays = export.task(), export.arrays()
    why = {guess.partition(" is ")[0]: guess.partition(": ")[2] for guess in task.guesses}
    for name, rows in arrays.items():
        kind = task.kinds.get(name, "boxes" if name in task.by_name else "")
        shape = f"`{name}` {rows.dtype}[{', '.join(['n', *map(str, rows.shape[1:])])}]"
        limit = ", ".join(default_limits({name: kind})) or (f"({SUGGESTED})" if kind else "")
        because = why[name].partition(" (else")[0]
        operator = export.operators.get(name, "")
        yield (
            cell(export.what),
            cell(shape),
            operator,
            TASK_OF.get(kind, "none"),
            limit,
            cell(because),
        )

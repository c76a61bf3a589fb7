"""Run every command with `--json`, and write docs/schemas: `python -m tests.docs.schemas --write`."""

import sys

from tests.docs.reference.schemas import write_schemas

if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write_schemas()

"""One recording in a process of its own, so that it can be ended: ``python -m tracelens.tune.child JSON CMD...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tracelens.errors import TracelensError
from tracelens.record.launcher import RecordOptions, run


def main(arguments: list[str]) -> int:
    """Record as the options say; the command's own exit code, or that of the error."""
    options = json.loads(arguments[0])
    try:
        return run(RecordOptions(
            command=tuple(arguments[1:]), out=Path(options["out"]), set=tuple(options["set"]),
            stop_after=options["stop_after"], probe=options["probe"], trace=options["trace"], stacks=False,
        ))  # fmt: skip
    except TracelensError as error:
        print(f"tracelens: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m converter` and `convert`: the same program."""

import os
import sys

from converter.signals import leave_at_once


def start() -> None:
    """Run the command line; until it is imported there is nothing that an interrupt would have to clean up."""
    leave_at_once()
    _open_streams()
    from converter.cli import main

    main()


def _open_streams() -> None:
    """Open the standard streams that were closed, lest files take their numbers and what is said go into them."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


if __name__ == "__main__":
    start()

"""`python -m converter` and `convert`: the same program."""

from converter.signals import leave_at_once


def start() -> None:
    """Run the command line; until it is imported there is nothing that an interrupt would have to clean up."""
    leave_at_once()
    from converter.cli import main

    main()


if __name__ == "__main__":
    start()

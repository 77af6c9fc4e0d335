"""Try hostile inputs: `python -m fuzz [KIND ...] [--seconds N] [--runs N] [--seed N]`, in the folder `tests`."""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))  # the checkout, whatever is installed
sys.dont_write_bytecode = True  # nothing is written that is not the target's own doing

KINDS = {"headers": "Headers", "indexes": "Indexes", "maps": "Maps", "pickles": "Pickles"}


def load(kind: str) -> type:
    """Import a target, and the package with it."""
    return getattr(importlib.import_module(f"fuzz.{kind}"), KINDS[kind])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", choices=[*KINDS, []], metavar="KIND", help=f"of {', '.join(KINDS)}; default: all"
    )
    parser.add_argument("--seconds", type=float, default=0, help="for each kind; default 60 if --runs is not given")
    parser.add_argument("--runs", type=int, default=0, help="executions of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["atheris", "plain"], help="default: atheris where it is installed")
    parser.add_argument("--stop", action="store_true", help="end at the first find")
    parser.add_argument("--keep", type=Path, help="a folder for what is found")
    found = parser.parse_args(arguments)
    if not found.runs and not found.seconds:
        found.seconds = 60
    if found.engine is None:
        found.engine = "atheris" if importlib.util.find_spec("atheris") else "plain"
    return found


def run(kind: str, options: argparse.Namespace) -> int:
    """Try one kind in this process."""
    from fuzz import engine

    target = engine.instrumented(lambda: load(kind)) if options.engine == "atheris" else load(kind)
    from fuzz.guard import Guard

    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None) as name:
        folder, corpus = Path(name) / "work", Path(name) / "corpus"
        folder.mkdir()
        corpus.mkdir()
        guard = Guard()
        job = engine.Run(target(guard, folder), options.seed, options.runs, options.seconds, options.keep, options.stop)
        guard.limit()
        if options.engine == "atheris":
            engine.guided(job, options.seed, corpus)
        engine.plain(job)
        print(job.summary(), flush=True)
        return 1 if job.finds else 0


def main() -> int:
    options = parse()
    if len(options.kinds) == 1:
        return run(options.kinds[0], options)
    given = [a for a in sys.argv[1:] if a not in KINDS]
    codes = [subprocess.call([sys.executable, "-m", "fuzz", kind, *given]) for kind in options.kinds or KINDS]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

"""The command line: arguments, exit codes, progress. Everything else is the library's."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from converter import __version__
from converter.errors import ConvertError, Problem, UsageError
from converter.folding import closest, visible
from converter.options import Size, settings
from converter.signals import Interrupted, ending, too_late
from converter.verbs import check_command, inspect_command, maps_command, stub_command

if TYPE_CHECKING:
    from converter.report import Report
    from converter.run import Plan

LINES = 60  # lines of problems that are shown
MAIN_HELP = """Convert the checkpoint INPUT by a map into OUTPUT.

            \b
            convert --map maps/gpt2.yaml in.safetensors out.safetensors
            convert --map llama --reverse local/ hf/ --max-shard-size 5GB

            INPUT is a .safetensors file, a directory with an index or one file, or an index file. OUTPUT is a
            .safetensors file, or with --max-shard-size a directory. Nothing is written unless every check holds.

            \b
            Other commands (convert COMMAND --help):
            inspect PATH     names, dtypes, shapes and byte ranges of a checkpoint
            check MAP...     all that can be known of maps without a checkpoint
            stub             a small checkpoint made from a map alone
            maps             the maps that ship with the package

            Exit codes: 0 done, 1 the checkpoint does not fit the map, 2 the map or the command line is wrong, 3
            reading or writing failed, 130 interrupted.
            """


@click.command(
    "convert",
    help=MAIN_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "allow_extra_args": True},
)
@click.option("--map", "map_name", metavar="MAP", required=True, help="A map file, or the name of a shipped map.")
@click.option("--reverse", is_flag=True, help="Convert in the other direction.")
@click.option("--dry-run", is_flag=True, help="Print the plan and check headers; write nothing.")
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="Give a size or param its value.")
@click.option("--config", metavar="FILE", help="config.json (default: the one beside the input).")
@click.option("--dtype", metavar="DTYPE", help="Cast floating tensors; a rule's own dtype wins.")
@click.option("--untie", is_flag=True, help="A tied tensor that is present is one of its own.")
@click.option("--tied", type=click.Choice(["omit", "copy"]), help="Leave tied tensors out (default), or store copies.")
@click.option("--allow-overflow", is_flag=True, help="Let values pass that do not fit their new dtype.")
@click.option(
    "--unmatched", type=click.Choice(["error", "drop", "keep"]), help="Tensors that no rule names (default: error)."
)
@click.option("--max-shard-size", type=Size(), help="Write a directory of shards with its index.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--verify", is_flag=True, help="Read the output back and prove it.")
@click.option("--root", metavar="NAME", help="Which state dict of a wrapped pickle.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Threads (default: one for each core, at most 4).")
@click.option("--memory", type=Size(), default="256MiB", show_default=True, help="Memory for buffers.")
@click.option("--report", "report_file", metavar="FILE", help="Write the fate of every name to FILE.json or FILE.html.")
@click.option("--quiet", is_flag=True, help="Print problems only.")
@click.version_option(__version__, prog_name="convert")
@click.argument("input_path", metavar="INPUT")
@click.argument("output_path", metavar="OUTPUT", required=False)
@click.pass_context
def convert_command(context: click.Context, /, **options: Any) -> None:
    """Run the main job."""
    from converter.run import load_rules, make_settings, plan_open
    from converter.writing import Job, check_output

    o = options
    if context.args:
        raise UsageError(
            f"{2 + len(context.args)} paths are given, one INPUT and one OUTPUT are taken "
            "(the files of one checkpoint are given as their folder, which has an index)"
        )
    if o["report_file"] is not None and Path(o["report_file"]).suffix not in (".json", ".html"):
        raise UsageError(f"--report {o['report_file']}: reports are written as .json or .html")
    if o["output_path"] is None and not o["dry_run"]:
        raise UsageError("OUTPUT is missing (only --dry-run does without)")
    found = make_settings(
        o["input_path"],
        settings(o["sets"]),
        o["config"],
        o["dtype"],
        o["untie"],
        o["tied"],
        o["unmatched"],
        o["allow_overflow"],
    )
    rules = load_rules(o["map_name"], found, o["reverse"])
    from converter.formats import open_checkpoint

    with open_checkpoint(o["input_path"], o["root"]) as checkpoint:
        job = Job(o["output_path"] or "", o["max_shard_size"], o["force"], o["verify"], o["jobs"], o["memory"])
        files = [f.path for f in checkpoint.header.files]
        if o["output_path"] is not None:
            check_output(job, files)
        if o["report_file"] is not None:
            kept = [*files, o["map_name"], o["config"] or "", o["output_path"] or "", *beside(o["input_path"])]
            check_report(Path(o["report_file"]), kept)
        plan = plan_open(checkpoint, rules, found)
        for note in plan.notes:
            _say(f"note: {note}", o["quiet"])
        _run(plan, checkpoint, job, o)


def _run(plan: Plan, checkpoint: Any, job: Any, o: dict[str, Any]) -> None:
    from dataclasses import replace

    from converter.report import make_report
    from converter.writing import check_room, raise_problems, write

    try:
        if o["dry_run"] and not o["quiet"]:
            click.echo(str(plan))
        raise_problems(plan)
        if o["dry_run"]:
            check_room(plan, job)
            if o["report_file"] is not None:
                _save(make_report(plan), o["report_file"])
            return
        with _progress(plan.output_bytes, o["quiet"]) as advance:
            report = write(plan, checkpoint, replace(job, progress=advance))
            too_late()
    except ConvertError as e:
        if e.report is not None:
            _save(e.report, o["report_file"])
            e.summary = e.report.summary()  # type: ignore[attr-defined]
        raise
    _save(report, o["report_file"])
    if not o["quiet"]:
        for line in report.lines():
            if not line.startswith("note: "):
                click.echo(line)
        if report.verified:
            click.echo(f"verified: {report.verified}")
            click.echo(
                f"sha256: {report.checksum}" + (f" of the sums of {n} files" if (n := len(report.files)) > 1 else "")
            )
        click.echo(report.summary())


def beside(input_path: str) -> list[str]:
    """Files of a checkpoint that are no weights: its index and config."""
    from converter.formats import folder_of

    folder = folder_of(input_path)
    return [input_path, str(folder / "config.json"), *map(str, folder.glob("*.index.json"))]


def check_report(report: Path, kept: list[str]) -> None:
    """Refuse a report that could not be written, or that would take the place of a file of this run."""
    if report.is_dir() or not report.resolve().parent.is_dir():
        what = "is a folder" if report.is_dir() else "its folder is not there"
        raise UsageError(Problem(f"cannot write the report: {what}", "usage", str(report)))
    for other in kept:
        same = Path(other).exists() and report.exists() and report.samefile(other)
        if other and (same or Path(other).resolve() == report.resolve()):
            raise UsageError(Problem(f"the report would take the place of {other}", "usage", str(report)))


def _text(report: Report, file: str) -> str:
    if Path(file).suffix == ".json":
        return report.to_json() + "\n"
    from converter.html import to_html

    return to_html(report)


def _save(report: Report, file: str | None) -> None:
    if file is not None:
        try:
            Path(file).write_text(_text(report, file), encoding="utf-8")
        except OSError as e:
            from converter.errors import FormatError

            raise FormatError(Problem(f"cannot write the report: {e.strerror}", "report", file)) from None


def _say(text: str, quiet: bool = False) -> None:
    if not quiet:
        click.echo(visible(text), err=True)


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a bar with bytes, rate and time left on a terminal, and nothing in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("convert", total=total)
        yield lambda n: bar.advance(task, n)


VERBS: dict[str, click.Command] = {
    "inspect": inspect_command,
    "check": check_command,
    "stub": stub_command,
    "maps": maps_command,
}


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    if argv is None:
        gc.disable()  # a short-lived process that makes many objects and no cycles worth collecting
    try:
        with ending(restore=argv is not None):
            code = _main(sys.argv[1:] if argv is None else argv)
    except Interrupted as e:
        _tell("; ".join(["interrupted", *getattr(e, "__notes__", ())]))
        code = e.exit_code
    if argv is None:
        _flush()
    sys.exit(code)


def _main(arguments: list[str]) -> int:
    """Run a command and tell what was wrong; returns the exit code."""
    verb = arguments[0] if arguments and arguments[0] in VERBS else None
    command = VERBS[verb] if verb is not None else convert_command
    try:
        command.main(
            arguments[1:] if verb is not None else arguments,
            prog_name=f"convert {verb}" if verb else "convert",
            standalone_mode=False,
        )
    except click.ClickException as e:
        e.show()
        near = closest(arguments[0], VERBS) if verb is None and arguments else None
        if near is not None and "--map" not in arguments:
            _tell(f"did you mean: convert {near}?")
        return 2
    except click.exceptions.Exit as e:
        return e.exit_code
    except ConvertError as e:
        _show(e)
        return e.exit_code
    except BrokenPipeError:
        return 3
    except OSError as e:  # the package turns those of files into its own; what is left are the standard streams
        _tell(f"cannot write what there is to say: {(e.strerror or str(e)).lower()}")
        return 3
    except MemoryError:
        _tell("out of memory")
        return 3
    return 0


def _tell(text: str) -> None:
    """Write a line to stderr, if it can be written to."""
    with suppress(OSError):
        click.echo(text, err=True)


def _flush() -> None:
    """Write out what is held back, here, where nobody is bothered if that fails, and not when the interpreter ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _show(error: ConvertError) -> None:
    from converter.verify import folded

    for line in folded(error.problems, LINES):
        _tell(line)
    summary = getattr(error, "summary", None)
    if summary:
        _tell(f"nothing was written: {summary}")

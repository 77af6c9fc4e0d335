"""The small commands: inspect, check, stub, maps."""

from __future__ import annotations

import json

import click

from converter.errors import ConvertError, Problem, UsageError
from converter.folding import visible
from converter.options import Size, settings


@click.command("inspect")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", metavar="NAME", help="Which state dict of a wrapped pickle.")
@click.argument("path")
def inspect_command(path: str, as_json: bool, root: str | None) -> None:
    """Print names, dtypes, shapes and byte ranges of a checkpoint."""
    from converter.formats import open_checkpoint

    with open_checkpoint(path, root) as checkpoint:
        header = checkpoint.header
    starts = [f.data_start for f in header.files]
    rows = [(e, [e.start - starts[e.file], e.stop - starts[e.file]]) for e in header.tensors.values()]
    if as_json:
        tensors = [
            {"name": e.name, "dtype": e.dtype, "shape": list(e.shape), "data_offsets": offsets} for e, offsets in rows
        ]
        click.echo(json.dumps({"tensors": tensors, "metadata": dict(header.metadata)}, ensure_ascii=False, indent=1))
        return
    for note in header.notes:
        click.echo(f"note: {visible(note)}", err=True)
    table = [("name", "dtype", "shape", "bytes", "data offsets")]
    table += [(e.name, e.dtype, str(list(e.shape)), str(e.spec.nbytes), f"{a}..{b}") for e, (a, b) in rows]
    widths = [max(len(r[k]) for r in table) for k in range(4)]
    for r in table:
        click.echo(
            f"{visible(r[0]):<{widths[0]}}  {r[1]:<{widths[1]}}  {r[2]:<{widths[2]}}  {r[3]:>{widths[3]}}  {r[4]}"
        )
    for key, value in header.metadata.items():
        click.echo(visible(f"metadata: {key} = {value}"))
    from converter.report import size

    many = len({f.path for f in header.files})
    files = f"{many} {'file' if many == 1 else 'files'}"
    click.echo(f"{len(rows)} tensors, {size(sum(e.spec.nbytes for e, _ in rows))} in {files}")


@click.command("check")
@click.argument("maps", nargs=-1, required=True)
def check_command(maps: tuple[str, ...]) -> None:
    """Say all that can be known of maps without a checkpoint: schema, names, ops, what is one-way."""
    from converter.checking import check_map

    problems: list[Problem] = []
    for name in maps:
        try:
            for line in check_map(name):
                click.echo(line)
        except ConvertError as e:
            problems += e.problems
    if problems:
        raise UsageError(problems)


@click.command("stub")
@click.option("--map", "map_name", metavar="MAP", required=True, help="A map file, or the name of a shipped map.")
@click.option("--side", default="from", show_default=True, help="from, to, or the name of a side of the map.")
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="Another size than that of the map's example.")
@click.option("--max-shard-size", type=Size(), help="Write a directory of shards with its index.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.argument("output")
def stub_command(
    map_name: str, side: str, sets: tuple[str, ...], max_shard_size: int | None, force: bool, output: str
) -> None:
    """Write a small checkpoint of one layout, made from the map alone."""
    from converter.checking import example_values
    from converter.formats import check_target
    from converter.mapfile import load_map, read_map
    from converter.stub import write_stub

    check_target(output, max_shard_size is not None, force, [])
    given = settings(sets)
    rules = load_map(read_map(map_name), example_values(read_map(map_name), given))
    words = {"from": 0, "to": 1, rules.sides[0]: 0, rules.sides[1]: 1}
    if side not in words:
        raise UsageError(f"--side {side}: the sides of this map are {' and '.join(dict.fromkeys(words))}")
    from converter.settings import Settings
    from converter.unknowns import check_settings

    check_settings(rules, Settings(set=given))
    write_stub(rules, words[side], output, given, force, max_shard_size)
    from converter.formats import open_checkpoint

    with open_checkpoint(output) as checkpoint:
        count = len(checkpoint.header.tensors)
    shown = f"{count} {'tensor' if count == 1 else 'tensors'}"
    click.echo(f"{output}: {shown} of the '{rules.sides[words[side]]}' side of {rules.name}")


@click.command("maps")
@click.argument("words", nargs=-1)
def maps_command(words: tuple[str, ...]) -> None:
    """List the maps that ship with the package, or those that have all WORDS in their name or description."""
    import shutil
    import sys
    import textwrap

    from converter.mapfile import read_source, shipped_maps

    maps = shipped_maps()
    about = {name: str(((node := read_source(name).node.get("about")) and node.value) or "") for name in maps}
    shown = [n for n in maps if all(w.lower() in f"{n} {about[n]}".lower() for w in words)]
    if not shown:
        raise UsageError(f"no map has {' and '.join(words)} in its name or description")
    width = max(map(len, shown)) + 2
    read_by_people = sys.stdout.isatty()  # in a pipe, a line is a map
    folder = ""
    for name in sorted(shown, key=lambda n: (n.rpartition("/")[0], n)):
        if read_by_people and name.rpartition("/")[0] != folder:
            click.echo()
        folder = name.rpartition("/")[0]
        room = max(30, shutil.get_terminal_size().columns - width - 1)
        for j, line in enumerate((textwrap.wrap(about[name], room) if read_by_people else [about[name]]) or [""]):
            click.echo(f"{'' if j else name:<{width}}{line}".rstrip())

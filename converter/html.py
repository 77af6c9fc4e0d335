"""The report of a run as one HTML page: summary, problems, and the fate of every name. It loads nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from converter.folding import visible
from converter.report import Report

OPEN = 40  # rows of a table that is shown without a click
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font: 13px/1.4 ui-monospace, monospace; margin: .5rem 0 1.5rem }
th, td { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top; border-bottom: 1px solid #ddd }
summary { cursor: pointer; font-weight: 600 }
.bad { color: #b00020 }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p{% if problems %} class="bad"{% endif %}>{{ summary }}</p>
{% for line in notes %}<p>{{ line }}</p>
{% endfor %}{% for name, head, rows in tables %}<details{% if rows | length <= shown %} open{% endif %}>
<summary>{{ name }} ({{ rows | length }})</summary>
<table>
<tr>{% for h in head %}<th>{{ h }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
</details>
{% endfor %}</body>
</html>
"""

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def to_html(report: Report) -> str:
    """Write a report as HTML; whatever stands in a name is shown as text."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(_PAGE).render(
        title=visible(f"{report.map}: {report.direction}"),
        summary=report.summary(),
        problems=bool(report.problems),
        notes=[visible(n) for n in (report.verified, *report.notes) if n],
        tables=[t for t in _tables(report) if t[2]],
        shown=OPEN,
    )


def _tables(report: Report) -> Iterator[Table]:
    yield _table("problems", ("",), [(p,) for p in report.problems])
    for name in ("missing", "unexpected", "shape_mismatch"):
        yield _table(name, ("name", "reason"), [(f.name, f.reason) for f in getattr(report, name)])
    for name in ("dropped", "kept", "absent", "untied", "filled"):
        yield _table(name, ("name",), [(n,) for n in getattr(report, name)])
    tied = [(t.name, t.of, f"{t.alias[0]} of {t.alias[1]}" if t.alias else "") for t in report.tied]
    yield _table("tied", ("name", "is", "alias"), tied)
    cast = [(c.name, c.source, c.dtype, c.to, c.overflow or "", c.underflow or "") for c in report.cast]
    yield _table("cast", ("name", "source", "from", "to", "overflow", "underflow"), cast)
    yield _table("assumed", ("size", "value"), report.assumed)
    yield _table("stripped", ("text", "names", ""), report.stripped)
    loaded = [(x.source, x.destination, _ops(x.ops), x.dtype, list(x.shape)) for x in report.loaded]
    yield _table("loaded", ("source", "destination", "ops", "dtype", "shape"), loaded)
    yield _table("files", ("name", "bytes", "SHA-256"), [(f.name, f.bytes, f.sha256) for f in report.files])


def _table(name: str, head: tuple[str, ...], rows: Iterable[Iterable[Any]]) -> Table:
    return name.replace("_", " "), head, [tuple(visible(str(cell)) for cell in row) for row in rows]


def _ops(ops: Iterable[Any]) -> str:
    return ", ".join(op if isinstance(op, str) else ", ".join(f"{k}: {v}" for k, v in op.items()) for op in ops)

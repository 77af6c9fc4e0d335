"""Maps as attacks: each is refused in one short message with its line, soon, and in bounded memory.

All of them run one after the other in one child process whose address space is bounded; what hangs is ended there.
`python tests/test_hostile_maps.py` prints the table: what it was, exit code, seconds of CPU, memory so far, and what was said.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from converter import (
    braces,
    budget,
    build,
    counting,
    dims,
    document,
    expressions,
    facts,
    including,
    names,
    naming,
    readers,
    regexes,
    ruledoc,
    yamltree,
)
from converter.ops import base

SPACE = 2 << 30  # bytes of address space
PEAK = 400 << 20  # bytes of memory that all of them together may have taken at most
HEAD = "version: 1\nname: m\n"
RULE = "rules: [{from: 'a.{i}', to: 'b.{i}', shape: d}]\n"
ONE = "rules: [{from: a, to: b, shape: d}]\n"
BIG = "9" * 18
CHAIN = 2500


def levels(word, start, count=12):
    lines = [f"a0: &a0 {start}"] + [f"a{k}: &a{k} {word % ', '.join([f'*a{k - 1}'] * 10)}" for k in range(1, count)]
    return "\n".join(lines) + "\n"


def rules(lines):
    return "rules:\n" + "".join(f"  - {line}\n" for line in lines)


def jinja(expression, params="n: 2", flags=()):
    return f"params: {{{params}}}\nrules: [{{from: 'x{expression}', to: b}}]\n", 2, "4: ", flags


def size(expression):
    return f"rules: [{{from: a, to: b, shape: '{expression}'}}]\n", 2, "3: "


def when(expression):
    return (
        f"params: {{n: 2, l: [1, 2]}}\nindices: {{i: n}}\nrules: [{{from: 'a.{{i}}', to: 'b.{{i}}', when: \"{expression}\"}}]\n",
        (1, 2),
        "5: ",
    )


def op(text, code=(1, 2), shape="d"):
    return f"rules: [{{from: a, to: b, shape: {shape}, ops: [{text}]}}]\n", code, "3: "


# name: (map, exit code, what is said, flags, verb); the map has two lines before its own. The input holds `a` of [4]
# and `h.0.w` of [2, 2].
ATTACKS = {
    # YAML
    "alias bomb of lists": (levels("[%s]", "[x, x, x, x, x, x, x, x, x, x]"), 2, "aliases"),
    "alias bomb of mappings": (
        "\n".join(
            ["a0: &a0 {x: 1}"]
            + [f"a{k}: &a{k} {{{', '.join(f'k{j}: *a{k - 1}' for j in range(10))}}}" for k in range(1, 12)]
        )
        + "\n",
        2,
        "aliases",
    ),
    "aliases of a long text": (f"about: &t {'x' * 900_000}\n" + rules(["{from: *t, to: *t}"] * 9_000), 2, ": "),
    "aliases of a text just short enough": (
        f"about: &t {'x' * 9_000}\n" + rules([f"{{from: *t, to: b{k}}}" for k in range(9_000)]),
        2,
        ": ",
    ),
    "an alias of itself": ("rules: &r [*r]\n", 2, "3: "),
    "deep flow": ("x: " + "[" * 50_000, 2, "nesting"),
    "deep block": ("".join(" " * k + "a:\n" for k in range(2_000)), 2, "nesting"),
    "deeper than maps are": ("x: " + "[" * 41 + "]" * 41 + "\n", 2, "3: the YAML is nested more than 40"),
    "a tag that runs": ("about: !!python/object/apply:os.system ['true']\n" + ONE, 2, "3: tag"),
    "a tag of binary": ("about: !!binary aGk=\n" + ONE, 2, "3: tag"),
    "a duplicate key": ("about: x\n" + ONE + "about: y\n", 2, "5: duplicate key 'about' (first at line 3)"),
    "a merge key": ("about: &x {a: 1}\nsides: {<<: *x}\n" + ONE, 2, "4: "),
    **{
        f"the scalar {s}": (f"{ONE}about: {s}\n", 2, f"4: YAML reads {s} as ")
        for s in ("no", "010", "1:30", "~", "on", "0x10", "1_000", "2024-01-01", ".INF", "Yes")
    },
    "the scalar 1e3": (f"{ONE}example: {{n: 1e3}}\n", (1, 2), "", (), "check"),
    "the scalar .inf": (f"{ONE}example: {{d: .inf}}\n", (1, 2), ": ", (), "stub"),
    "a size that is .nan": ("rules: [{from: a, to: b, shape: [.nan]}]\n", 2, "3: "),
    "a text of megabytes": (f"about: {'x' * 3_900_000}\n{ONE}", 2, "3: "),
    "a name of megabytes": (f"rules: [{{from: {'x' * 3_900_000}, to: b}}]\n", 2, "3: "),
    "a key of megabytes": (f"rules: [{{{'x' * 3_900_000}: b}}]\n", 2, "3: "),
    "a text beyond the limit": ("about: " + "x" * 4_100_000, 2, ":1: "),
    "a line of commas": ("rules: [" + "a," * 70_000 + "]\n", 2, "40000 values"),
    "rules by the ten thousand": (
        rules(f"{{from: a{k}, to: b{k}}}" for k in range(30_000)),
        2,
        "1: the map has 180006",
    ),
    "as many rules as fit": (rules(f"{{from: a{k}, to: b{k}}}" for k in range(13_000)), 1, "missing"),
    "as many broken rules as fit": (
        rules(f"{{from: a{k}, t: b{k}}}" for k in range(13_000)),
        2,
        "3: ".replace("3", "4"),
    ),
    "NUL": ("about: \0\n" + ONE, 2, "3: "),
    # Jinja2
    "jinja loop": ("rules: [{from: '{% for i in range(999999999) %}x{% endfor %}', to: b}]\n", 2, "3: "),
    "jinja macro": ("rules: [{from: '{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}', to: b}]\n", 2, "3: "),
    "jinja range": jinja("{{ range(999999999) }}"),
    "jinja list of range": jinja("{{ range(999999999)|list }}"),
    "jinja power": jinja("{{ 9**9**9**9 }}"),
    "jinja text times": jinja("{{ ''x'' * 999999999 }}"),
    "jinja list times": jinja("{{ [0] * 999999999 }}"),
    "jinja format": jinja("{{ ''%999999999d'' % 1 }}"),
    "jinja format method": jinja("{{ ''{:999999999}''.format(1) }}"),
    "jinja center": jinja("{{ ''x''|center(999999999) }}"),
    "jinja indent": jinja("{{ ''x''|indent(999999999) }}"),
    "jinja class": jinja("{{ ''''.__class__.__mro__ }}"),
    "jinja class by item": jinja("{{ ''''[''__class__''] }}"),
    "jinja globals": jinja("{{ cycler.__init__.__globals__ }}"),
    "jinja attr filter": jinja("{{ ''''|attr(''__class__'') }}"),
    "jinja namespace": jinja("{{ namespace(a=1) }}"),
    "jinja self": jinja("{{ self }}"),
    "jinja include": jinja("{{ include }}"),
    "jinja division by zero": jinja("{{ 1 // 0 }}"),
    "jinja product of thousands of digits": jinja("{{ " + "9" * 4000 + " * " + "9" * 4000 + " }}"),
    "jinja chain of products": jinja("{{ " + "*".join(["n"] * 2000) + " }}", params=f"n: {BIG}"),
    "jinja number as a size": (
        f"params: {{n: {BIG}}}\nrules: [{{from: a, to: b, shape: '{{{{ n * n * n * n }}}}'}}]\n",
        2,
        "4: ",
    ),
    "jinja brackets": jinja("{{ " + "(" * 2000 + "n" + ")" * 2000 + " }}"),
    "jinja long sum": jinja("{{ " + "+".join(["n"] * 3000) + " }}"),
    "jinja text added to itself": jinja("{{ " + "~".join(["n"] * 1500) + " }}", params="n: '" + "x" * 9000 + "'"),
    "jinja in very many texts": (
        "params: {n: 2}\n" + rules(f"{{from: 'a{k}.{{{{ n }}}}', to: b{k}}}" for k in range(9_000)),
        2,
        ": ",
    ),
    # expressions and sizes
    "a size of brackets": size("(" * 400 + "d" + ")" * 400),
    "a size of a long sum": size("+".join(["d"] * 490)),
    "a size of a long product": size("*".join(["d"] * 490)),
    "a size of sums multiplied": size("*".join(["(a+b+c+e+f+g+h)"] * 60)),
    "a size of a huge power": size("*".join(["(a+1)"] * 160)),
    "a size of huge numbers multiplied": size("*".join([BIG] * 50) + "*d"),
    "a huge number": size("9" * 400),
    "a number of thousands of digits": size("9" * 5000),
    "a shape of a thousand axes": ("rules: [{from: a, to: b, shape: " + "'" + "d " * 1000 + "'}]\n", (1, 2), "3: "),
    "a shape whose product passes 2^63": (
        "rules: [{to: b, shape: [4611686018427387904, 4], fill: zeros, dtype: int8}, {from: a, to: c}]\n",
        (1, 2),
        "3: ",
    ),
    "a shape of eighteen digits": (
        f"rules: [{{to: b, shape: [{BIG}, 9], fill: zeros, dtype: float64}}, {{from: a, to: c}}]\n",
        1,
        "3: b: would be F64",
    ),
    "a negative size": ("rules: [{from: a, to: b, shape: [-4]}]\n", 2, "3: "),
    "a size that becomes negative": (
        "params: {n: {expr: d - 9}}\n" + "rules: [{from: a, to: b, shape: d, ops: [{pad: {dim: 0, to: n}}]}]\n",
        1,
        "4: ",
    ),
    "a condition by zero": when("i // 0"),
    "a condition by a huge product": when("*".join([BIG] * 30)),
    "a condition of a power": when("9**9**9"),
    "a condition of a call": when("().__class__"),
    "a condition of a list times": when("[0] * 99999999"),
    "a condition of a shift": when("1 << 999999999"),
    "a condition of a comprehension": when("[x for x in l]"),
    "a condition of brackets": when("(" * 300 + "i" + ")" * 300),
    "a condition of nots": when("not " * 240 + "i"),
    "a condition of a long text": when("'" + "x" * 5000 + "' == i"),
    "params in a chain": (
        "params:\n" + "".join(f"  p{k}: {{expr: p{k + 1}}}\n" for k in range(CHAIN)) + f"  p{CHAIN}: 1\n" + ONE,
        (0, 1),
        "",
    ),
    "params in a circle": (
        "params: {x: {expr: y + 1}, y: {expr: x + 1}}\nrules: [{from: a, to: b, shape: d, ops: [{pad: {dim: 0, to: x}}]}]\n",
        1,
        "4: ",
    ),
    "a list of a billion": ("params: {l: {default: 1, each: 1000000000}}\n" + ONE, 1, "3: each"),
    "a list over a billion": ("params: {l: {expr: i, over: i}}\nindices: {i: 1000000000}\n" + ONE, 1, ": "),
    # counts
    "a count of a billion": ("indices: {i: 1000000000}\n" + RULE, 1, "out of all proportion"),
    "a count of a billion set": ("indices: {i: n}\n" + RULE, 1, "1000000000", ("--set", "n=1000000000")),
    "a count of a million set": ("indices: {i: n}\n" + RULE, 1, "1000000", ("--set", "n=1000000")),
    "a count of a million set, twice": (
        "indices: {i: n}\nrules: [{from: 'a.{i}', to: 'b.{i}'}, {from: 'c.{i}', to: 'd.{i}'}]\n",
        1,
        "1000000",
        ("--set", "n=1000000"),
    ),
    "a count of a million set, optional": (
        "indices: {i: n}\nrules: [{from: 'a.{i}', to: 'b.{i}', optional: true}, {from: a, to: b}]\n",
        1,
        "1000000",
        ("--set", "n=1000000"),
    ),
    "a count of a million set, with a condition": (
        "indices: {i: n}\nrules: [{from: 'a.{i}', to: 'b.{i}', when: 'i >= 0'}]\n",
        1,
        ": ",
        ("--set", "n=1000000"),
    ),
    "a count of a million set, stacked": (
        "indices: {i: n}\nrules: [{from: 'a.{i}', to: b, ops: [{stack: i}]}]\n",
        1,
        "1000000",
        ("--set", "n=1000000"),
    ),
    "a count of a million set, gathered of one": (
        "indices: {i: n}\nrules: [{from: a, to: 'b.{i}', ops: [{replicate: i}], shape: d}]\n",
        1,
        ": ",
        ("--set", "n=100000000"),
    ),
    "a set of thousands of digits": ("indices: {i: n}\n" + RULE, (1, 2), "", ("--set", "n=" + "9" * 5000)),
    "a set of four hundred digits": ("indices: {i: n}\n" + RULE, (1, 2), "", ("--set", "n=" + "9" * 400)),
    "a set of 2^63": ("indices: {i: n}\n" + RULE, (1, 2), "", ("--set", "n=9223372036854775808")),
    "a product of counts": (
        "indices: {i: 1000, j: 1000, k: 1000}\nrules: [{from: 'a.{i}.{j}.{k}', to: 'b.{i}.{j}.{k}'}]\n",
        1,
        "4: ",
    ),
    "a product of counts filled": (
        "indices: {i: 1000, j: 1000, k: 1000}\nrules: [{to: 'b.{i}.{j}.{k}', shape: '2', fill: zeros, dtype: int8}, {from: a, to: c}]\n",
        1,
        "4: ",
    ),
    "a product of counts replicated": (
        "indices: {i: 1000, j: 1000, k: 1000}\nrules: [{from: a, to: 'b.{i}.{j}.{k}', ops: [{replicate: i}, {replicate: j}, {replicate: k}]}]\n",
        1,
        "4: ",
    ),
    "a product just below the limit": (
        "indices: {i: 999, j: 999}\nrules: [{from: 'a.{i}.{j}', to: 'b.{i}.{j}'}]\n",
        1,
        "4: ",
    ),
    "a product just below the limit filled": (
        "indices: {i: 1000, j: 30}\nrules: [{to: 'b.{i}.{j}', shape: '2', fill: zeros, dtype: int8}, {from: a, to: c}, {from: h.0.w, to: w}]\n",
        0,
        "",
    ),
    "counts that depend on each other in a circle": (
        "params: {f: [1]}\nindices: {i: 'f[j]', j: 'f[i]'}\nrules: [{from: 'a.{i}.{j}', to: 'b.{i}.{j}'}]\n",
        (1, 2),
        ": ",
    ),
    "counts that all depend on all before": (
        "params: {f: [0]}\nindices: {i0: 1"
        + "".join(f", i{k}: '{'+'.join(f'f[i{j}]' for j in range(k))}'" for k in range(1, 26))
        + "}\nrules: [{from: 'a."
        + ".".join(f"{{i{k}}}" for k in range(26))
        + "', to: 'b."
        + ".".join(f"{{i{k}}}" for k in range(26))
        + "'}]\n",
        (1, 2),
        ": ",
    ),
    "labels by the ten thousand, squared": (
        "indices: {a: &l ["
        + ", ".join(f"x{k}" for k in range(10_000))
        + "], b: *l}\nrules: [{from: 'a.{a}.{b}', to: 'b.{a}.{b}'}]\n",
        (1, 2),
        "4: ",
    ),
    "labels that touch": (
        "indices: {a: &l ["
        + ", ".join(f"x{k}" for k in range(300))
        + "], b: *l}\nrules: [{from: 'a.{a}{b}', to: 'b.{a}{b}'}]\n",
        (1, 2),
        "4: ",
    ),
    "labels by the ten thousand in every rule": (
        "indices: {a: ["
        + ", ".join(f"x{k}" for k in range(10_000))
        + "]}\n"
        + rules(f"{{from: 'a{k}.{{a}}', to: 'b{k}.{{a}}'}}" for k in range(9_000)),
        (1, 2),
        ": ",
    ),
    "underscored labels": (
        "indices: {a: [" + ", ".join(f"x.{k}" for k in range(12_000)) + "]}\nrules: [{from: 'a.{a}', to: 'b.{a:_}'}]\n",
        1,
        "",
    ),
    "the same label at the end": (
        "indices: {a: ["
        + ", ".join(f"x{k}" for k in range(12_000))
        + ", x7]}\nrules: [{from: 'a.{a}', to: 'b.{a}'}]\n",
        2,
        "3: ",
    ),
    # names
    "numbers with digits between": (
        "indices: {"
        + ", ".join(f"i{k}: n{k}" for k in range(30))
        + "}\nrules: [{from: '"
        + "1".join(f"{{i{k}}}" for k in range(30))
        + "', to: '"
        + "x".join(f"{{i{k}}}" for k in range(30))
        + "'}]\n",
        (1, 2),
        "4: ",
        (),
        "ones",
    ),
    "a polynomial of huge counts": (
        "indices: {a: 20000, b: 20000, c: 20000, e: 20000}\nrules: [{from: 'x.{a+20000*b+400000000*c+8000000000000*e}', to: 'y.{a}.{b}.{c}.{e}'}]\n",
        (1, 2),
        ": ",
    ),
    "a polynomial that is ambiguous far out": (
        "indices: {a: 20000, b: 20000, c: 20000}\nrules: [{from: 'x.{3*a+7*b+400000000*c}', to: 'y.{a}.{b}.{c}'}]\n",
        (1, 2),
        ": ",
    ),
    "a polynomial of huge coefficients": (
        f"indices: {{a: 3, b: 3}}\nrules: [{{from: 'x.{{{BIG}*a+{BIG}*9*b}}', to: 'y.{{a}}.{{b}}'}}]\n",
        (1, 2),
        ": ",
    ),
    "a polynomial of sums multiplied": (
        "indices: {i: 3}\nrules: [{from: 'x.{i+" + "*".join(["(a+b+c+e+f)"] * 60) + "}', to: 'y.{i}'}]\n",
        (1, 2),
        "4: ",
    ),
    "a name of a thousand holes": (
        "indices: {i: 3}\nrules: [{from: '" + "{i}." * 1000 + "', to: 'y.{i}'}]\n",
        (1, 2),
        "4: ",
    ),
    "groups of spellings": (
        "".join(f"{'  ' * k}rules:\n{'  ' * k}- from: {{any: [a, b]}}\n{'  ' * k}  to: x\n" for k in range(18))
        + f"{'  ' * 18}rules: [{{from: q, to: q}}]\n",
        2,
        ": ",
    ),
    "groups of long prefixes": (
        "rules:\n"
        + "- from: "
        + "p" * 9000
        + "\n  to: x\n  rules:\n"
        + "".join(f"  - {{from: a{k}, to: b{k}}}\n" for k in range(12_000)),
        2,
        ": ",
    ),
    "spellings by the ten thousand": (
        "rules: [{from: {any: [" + ", ".join(f"a{k}" for k in range(35_000)) + "]}, to: b}]\n",
        2,
        "3: ",
    ),
    "prefixes to strip by the ten thousand": (
        "strip: {from: [" + ", ".join(f"p{k}." for k in range(35_000)) + "]}\n" + ONE,
        2,
        "3: ",
    ),
    "drops by the ten thousand": (
        "drop: {from: [" + ", ".join(f"'p{k}.{{i}}'" for k in range(35_000)) + "]}\nindices: {i: n}\n" + ONE,
        (0, 1, 2),
        "",
    ),
    "patterns to drop by the ten thousand": (
        "drop: {from: [" + ", ".join(f"{{match: p{k}}}" for k in range(19_000)) + "]}\n" + ONE,
        2,
        "3: ",
    ),
    # patterns
    "a pattern that backtracks": ("rules: [{match: '(a+)+$', to: b, reverse: {match: b, to: a}}]\n", (0, 1, 2), ""),
    "a pattern of counted repeats": (
        "rules: [{match: '((a{1,100}){1,100}){1,100}', to: b, reverse: {match: b, to: a}}]\n",
        2,
        "3: ",
    ),
    "a pattern of huge counts": (
        "rules: [{match: 'a{1000000000}', to: b, reverse: {match: b, to: a}}]\n",
        1,
        "3: matches no",
    ),
    "a pattern of many counts": (
        "rules: [{match: '" + "(x{0,900})" * 90 + "', to: b, reverse: {match: b, to: a}}]\n",
        (1, 2),
        "3: ",
    ),
    "a pattern that looks behind": ("rules: [{match: '(?<=a)b', to: b}]\n", 2, "3: "),
    "a pattern with a back-reference": ("rules: [{match: '(a)\\1', to: b}]\n", 2, "3: "),
    "a pattern of brackets": (
        "rules: [{match: '" + "(" * 2000 + "a" + ")" * 2000 + "', to: b, reverse: {match: b, to: a}}]\n",
        2,
        "3: ",
    ),
    "a pattern of a thousand groups": (
        "rules: [{match: '" + "".join(f"(?P<g{k}>a)" for k in range(1000)) + "', to: b, reverse: {match: b, to: a}}]\n",
        (1, 2),
        "3: ",
    ),
    "a name that grows": (
        "rules: [{match: '(?P<x>.+)', to: '" + "{x}" * 3000 + "', reverse: {match: '(?P<x>.+)', to: '{x}'}}]\n",
        2,
        "3: ",
    ),
    "renames by the ten thousand": (rules(f"{{match: 'p{k}', to: q{k}}}" for k in range(12_000)), 2, ": "),
    # ops
    "rearrange of a thousand axes": op(
        "'" + " ".join(f"a{k}" for k in range(1000)) + " -> " + " ".join(f"a{k}" for k in reversed(range(1000))) + "'"
    ),
    "rearrange of one axis into hundreds": op(
        "'(" + " ".join(f"a{k}" for k in range(300)) + ") -> " + " ".join(f"a{k}" for k in range(300)) + "'"
    ),
    "rearrange of brackets": op("'" + "(" * 5000 + "'"),
    "rearrange of huge numbers": op("'(99999999999999999999 a) -> a 99999999999999999999'"),
    "transpose of ten thousand axes": op("{transpose: [" + ", ".join(map(str, range(10_000))) + "]}"),
    "order of ten thousand parts": op("{order: {dim: 0, to: [" + ", ".join(map(str, range(35_000))) + "]}}"),
    "split of ten thousand parts": op("{split: {dim: 0, sizes: [" + ", ".join(["1"] * 35_000) + "]}}"),
    "pad to eighteen digits": op(f"{{pad: {{dim: 0, to: {BIG}}}}}, {{pad: {{dim: 0, to: 9{BIG}}}}}"),
    "pad beyond 2^63": op("{pad: {dim: 0, to: 9223372036854775807}}"),
    "pad to a product": op(f"{{pad: {{dim: 0, to: {BIG}*d}}}}"),
    "multiply by infinity": op("{multiply: .inf}", 2),
    "multiply by a text": op("{multiply: 'x' * 9}", 2),
    "add a huge number": op("{add: " + "9" * 400 + "}", 2),
    "an axis of eighteen digits": op(f"{{concat: {BIG}}}"),
    "ops by the ten thousand": op(", ".join(["transpose"] * 35_000), shape="d d"),
    "pads by the thousand": op(", ".join(f"{{pad: {{dim: 0, to: {k + 5}}}}}" for k in range(3_000))),
    # ties and conditions
    "ties in a chain": (
        rules(
            ["{from: a, to: a}"]
            + [f"{{from: t{k}, to: t{k}, tied: {f't{k - 1}' if k else 'a'}}}" for k in range(CHAIN)]
        ),
        (0, 1),
        "",
    ),
    "ties in a circle": (rules(f"{{from: t{k}, to: t{k}, tied: t{(k + 1) % CHAIN}}}" for k in range(CHAIN)), 2, ": "),
    "ties to nothing": (rules(f"{{from: t{k}, to: t{k}, tied: nobody{k}}}" for k in range(CHAIN)), 2, ": "),
    "presence in a chain": (
        rules(
            ["{from: a, to: a}"]
            + [f"{{from: t{k}, to: t{k}, with: {f't{k - 1}' if k else 'a'}}}" for k in range(CHAIN)]
        ),
        (0, 1),
        "",
    ),
    "likes by the thousand": (
        rules(
            ["{from: a, to: a}"] + [f"{{to: t{k}, shape: [], fill: zeros, dtype: {{like: a}}}}" for k in range(CHAIN)]
        ),
        (0, 1),
        "",
    ),
    # the rest
    "published by the ten thousand": (
        ONE + "published: {" + ", ".join(f"m{k}: {{d: {k}}}" for k in range(12_000)) + "}\n",
        0,
        "",
        (),
        "check",
    ),
    "names that are not known by the thousand": (
        ONE + "example: {" + ", ".join(f"m{k}: {k}" for k in range(12_000)) + "}\n",
        2,
        "4: ",
        (),
        "check",
    ),
    "sizes that are not known by the thousand": (
        rules(f"{{from: a{k}, to: b{k}, when: 'nothing{k} > 1'}}" for k in range(CHAIN)),
        2,
        ": ",
    ),
    "a stub of terabytes": (ONE + f"example: {{d: {10**13}}}\n", (1, 3), ": ", (), "stub"),
    "a stub beyond 2^63": (
        f"rules: [{{from: a, to: b, shape: d d}}]\nexample: {{d: {2**62}}}\n",
        (1, 2, 3),
        ": ",
        (),
        "stub",
    ),
    "a stub of a million": ("indices: {i: n}\n" + RULE + "example: {n: 900000, d: 1}\n", 1, ": ", (), "stub"),
    "a numbering of a billion": (
        "indices: {i: n, j: m}\nrules: [{from: 'a.{n*j+i}', to: 'b.{i}.{j}'}]\nexample: {n: 1000000000, m: 1000000000}\n",
        (0, 1),
        "",
        (),
        "check",
    ),
    "an include of a device": ("include: /dev/zero\n" + ONE, 2, "3: "),
    "an include from above": ("include: ../../etc/passwd.yaml\n" + ONE, 2, "3: "),
    "an include of itself": ("include: m.yaml\n" + ONE, 2, "3: "),
    "includes by the thousand": ("include: [" + ", ".join(["part.yaml"] * 9_000) + "]\n" + ONE, 2, "3: "),
    "includes that double": ("include: part0.yaml\n" + ONE, 2, ": "),
}


def files(folder):
    """Write what the attacks need: inputs, and files to include."""
    from lab import arr, write

    write(folder / "in.safetensors", {"a": arr(4), "h.0.w": arr(2, 2)})
    write(folder / "ones.safetensors", {"1" * 60: arr(1), "a": arr(1)})
    (folder / "part.yaml").write_text("version: 1\nfragment: true\nrules: [{from: p, to: p}]\n")
    for k in range(9):
        text = "version: 1\nfragment: true\nrules:\n" + f"  - {{from: x., to: x., include: part{k + 1}.yaml}}\n" * 9
        (folder / f"part{k}.yaml").write_text(text)
    (folder / "part9.yaml").write_text("version: 1\nfragment: true\nrules: [{from: p, to: p}]\n")


def attack(folder, name):
    """Run one attack in this process; gives what came of it."""
    from lab import TooLongError, run

    text, _, _, flags, verb = (*ATTACKS[name], (), "")[:5] if len(ATTACKS[name]) < 5 else ATTACKS[name]
    (folder / "m.yaml").write_text(HEAD + text)
    source = folder / ("ones.safetensors" if verb == "ones" else "in.safetensors")
    arguments = ["--map", folder / "m.yaml", *flags, "--dry-run", source]
    if verb == "check":
        arguments = ["check", folder / "m.yaml", *flags]
    if verb == "stub":
        arguments = ["stub", "--map", folder / "m.yaml", *flags, folder / "stub.safetensors"]
    begun = time.process_time()
    try:
        code, _, err = run(*arguments)
    except TooLongError as e:
        code, err = "hangs", str(e)
    except MemoryError as e:
        code, err = "memory", str(e)
    except Exception as e:
        code, err = "traceback", f"{type(e).__name__}: {e}"
    took = time.process_time() - begun
    (folder / "stub.safetensors").unlink(missing_ok=True)
    err = err.replace(f"{folder}/", "")
    return {"name": name, "code": code, "err": err[:2000], "long": len(err), "took": took, "peak": peak()}


def peak():
    """Give the most memory that this program has had; `getrusage` would count what the process was before `exec`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def child(names):
    """Run attacks in a bounded process, a line of JSON each."""
    sys.path.insert(0, str(Path(__file__).parent))
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files(folder)
        for n in names or ATTACKS:
            print(json.dumps(attack(folder, n)), flush=True)


@pytest.fixture(scope="module")
def results():
    run = subprocess.run([sys.executable, __file__, "--child"], capture_output=True, text=True, timeout=900)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    return {r["name"]: r for r in found} | {"": {"err": run.stderr[-2000:]}}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_ends_in_a_short_message(results, name):
    assert name in results, f"the process ended before: {results['']['err']}"
    r = results[name]
    _, code, says, *_ = ATTACKS[name]
    assert r["code"] in (code if isinstance(code, tuple) else (code,)), r
    assert says in r["err"], r
    assert r["long"] < 20_000, r
    if r["code"] == 2 and says:
        assert r["err"].startswith(("m.yaml:", "part")), r


LIMITS = [
    (yamltree.MAX_TEXT, yamltree.MAX_SCALAR),
    (yamltree.MAX_NODES, yamltree.MAX_DEPTH),
    (yamltree.MAX_MARKS,),
    (including.MAX_INCLUDES, including.MAX_WAY),
    (expressions.MAX_LENGTH, expressions.MAX_DEPTH, "63 bits"),
    (dims.MAX_TERMS, dims.MAX_DEGREE),
    (names.MAX_NAME, names.MAX_HOLES, ruledoc.MAX_SPELLINGS),
    (readers.MAX_LABEL, names.MAX_COMBINATIONS),
    (naming.MAX_SPELLED,),
    (names.MAX_COMBINATIONS,),
    (build.MAX_PATTERNS, regexes.MAX_PATTERN, regexes.MAX_RENAMED),
    (document.MAX_STRIPS, document.MAX_DROPS),
    (ruledoc.MAX_OPS, base.MAX_PARTS),
    (braces.MAX_TEXTS, braces.MAX_LENGTH, braces.MAX_RESULT),
    (facts.MAX_ITEMS,),
    (facts.MAX_STEPS,),
    (budget.MAX_NAMES,),
    (f"{budget.MAX_MISSING:,} and two for each tensor of the input",),
    (counting.SLACK,),
    ("63 bits",),
]


def test_the_docs_have_every_limit():
    section = (Path(__file__).parent.parent / "docs/language.md").read_text().partition("\n## Limits\n")[2]
    rows = [line.split("|")[2].strip() for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert rows[1:] == ["; ".join(n if isinstance(n, str) else f"{n:,}" for n in row) for row in LIMITS]


def test_memory_is_bounded(results):
    peak = max((r["peak"], r["name"]) for r in results.values() if "peak" in r)
    assert peak[0] < PEAK, peak


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        process = subprocess.Popen(
            [sys.executable, __file__, "--child", *sys.argv[1:]], stdout=subprocess.PIPE, text=True
        )
        for line in process.stdout:
            r = json.loads(line)
            _, code, says, *_ = ATTACKS[r["name"]]
            ok = r["code"] in (code if isinstance(code, tuple) else (code,)) and says in r["err"]
            mark = "ok " if ok else "BAD"
            print(
                f"{mark} {r['name']:45} {r['code']!s:6} {r['took']:6.2f} s {r['peak'] >> 20:5} MiB {r['long']:7} {r['err'][:160]!r}",
                flush=True,
            )
        sys.exit(process.wait())

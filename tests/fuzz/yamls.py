"""Maps as trees and as text: what rules are made of, and what has hurt before."""

import json
from random import Random
from typing import Any

import yaml

KEYS = [
    "version", "name", "about", "sides", "params", "indices", "strip", "drop", "rest", "dtype", "example", "published",
    "rules", "from", "to", "shape", "ops", "when", "with", "without", "optional", "tied", "untied", "fill", "match",
    "reverse", "any", "like", "config", "expr", "default", "each", "dim", "over", "sizes", "include", "<<", "value",
]  # fmt: skip
NAMES = [
    "a", "a.{i}", "a.{i}.w", "b.{i}", "b.{j}", "{i}", "{p}", "x.{p}", "a.{i+1}", "{2*i+j}", "{n-1-i}", "a.{i:02}",
    "{p:_}", "h.{i}.e.{j}", "c", "w", "", "a.{", "a.}", "{i}{j}", "{i}{p}", "{i*j}", "{0}", "{i//2}", "{-i}", "{n*i+j}",
    "{__class__}", "{i.real}", "{i:03d}", "__metadata__", "q", "k", "v", "é.{i}", "\u202e", "a.{i}1{j}", "{m}", "a.0",
]  # fmt: skip
EXPRESSIONS = [
    "n", "d", "2*d", "d*d", "n+1", "q+2*k", "n // 2", "n % 3", "d // n", "1", "0", "8", "l[i]", "l[0]", "i == 0", "i in [0, 2]",
    "i >= 1", "l[i] == 'full'", "not i", "n if d else 1", "a.b", "f(x)", "n**n", "[n]*9", "'x'*9", "1/0", "1 // 0",
    "9223372036854775807 + 1", "9223372036854775807*9223372036854775807", "-1", "n - 5", "true", "None", "x[:1]",
    "(" * 60 + "n" + ")" * 60, "+".join(["n"] * 60), "l", "i", "p == 'x'", "'a' < 1", "l[l[0]]", "lambda: 1", "n;n",
]  # fmt: skip
SHAPES = ["d", "d d", "n d", "2*d", "3*d d", "q d", "[]", "", "d 2*d", "_x", "_x d", "9", "0", "-1", "d-1", "d+", "4611686018427387904 4",
          "d*d*d*d*d*d", "x y z", "p", "l", "i", "e f g h"]  # fmt: skip
OPS: list[Any] = [
    "transpose", {"transpose": [1, 0]}, {"transpose": [0, 2, 1]}, {"transpose": [0, 0]}, "(a b) c -> (b a) c",
    "(h two x) d -> (h x two) d", "a b -> b a", "a (b 2) -> (2 b) a", "a -> a 1", "(a b c) d -> a b c d", "a -> b",
    {"concat": 0}, {"concat": 1}, {"concat": {"dim": 0, "over": "i"}}, {"split": {"dim": 0, "sizes": ["d", "d"]}},
    {"split": {"dim": 0, "over": "p"}}, {"split": {"dim": -1, "sizes": ["n", 1]}}, {"stack": "i"},
    {"stack": {"over": "j", "dim": 1}}, {"unstack": "i"}, {"unstack": {"over": "i", "dim": 1}}, {"add": 1},
    {"add": "1 / d"}, {"multiply": 0}, {"multiply": "2 / n"}, "exp", "log", {"pad": {"dim": 0, "to": 16}},
    {"pad": {"dim": 0, "to": "d + 4", "value": 1}}, {"trim": {"dim": 0, "to": 2}},
    {"trim": {"dim": 0, "to": 2, "fill": 0}}, "replicate", {"replicate": "i"}, "same", {"same": "j"},
    {"order": {"dim": 0, "to": [1, 0]}}, {"order": {"dim": 0, "to": [0, 0]}}, {"dequantize": {"block": [2, 2]}},
    {"multiply": ".inf"}, {"add": float("nan")}, {"pad": {"dim": 9, "to": 1}}, {}, None, 7, {"stack": None},
]  # fmt: skip
SCALARS: list[Any] = [
    None, True, False, 0, 1, 2, -1, 3, 8, 40, 10**6, 2**62, 2**63 - 1, 2**63, 10**30, 0.5, float("inf"), "no", "010", "1:30",
    "~", "1e3", "0x10", "2024-01-01", "keep", "error", "drop", "float32", "bf16", "{from: a}", "{{ n }}", "{{ n * n }}",
    "{{ l[0] }}", "{{ ''.__class__ }}", "{{ range(9) }}", "{% for i in l %}x{% endfor %}", "{{ n ~ d }}", "{{ 'x' * 99999 }}",
    "{{ 9999999999 * 9999999999 }}", "{{ n.__init__ }}", "{{ [1,2][0] }}", "x" * 500, "é", "\n", "\x7f", "zeros", "ones",
    "arange", "causal_mask", "1.5", "-.inf", "omit", "copy", ".*", "(?P<x>.+)", r"a\.(?P<i>\d+)", "(a+)+$", "(?=x)", "a{1,1000}",
    "(?P<x>a)(?P<x>b)", "[", "{x}", "{x}{x}", "h.{i}.w", "F8_E4M3", "I64", "BOOL", "C64", "F4",
]  # fmt: skip


# Rules that fit together: `#` is a number of their own.
SOUND: list[Any] = [
    {"from": "s#", "to": "t#", "shape": "d"},
    {"from": "s#.{i}", "to": "t#.{i}", "shape": "d f"},
    {"from": "s#.{i}", "to": "t#.{i+1}", "shape": "3 d", "ops": ["transpose"]},
    {"from": "s#.{2*i+j}", "to": "t#.{i}.{j}", "shape": "f"},
    {"from": "s#.{p}.{i:02}", "to": "t#.{i}.{p:_}", "shape": "d"},
    {"from": "s#.{i}", "to": "t#", "shape": "d f", "ops": [{"stack": "i"}]},
    {"from": "s#", "to": "t#.{i}", "shape": "n d", "ops": [{"unstack": "i"}]},
    {"from": "s#.{i}.{j}", "to": "t#", "shape": "d", "ops": [{"stack": {"over": "j", "dim": 1}}, {"concat": {"dim": 0, "over": "i"}}]},
    {"from": "s#", "to": "t#.{p}", "shape": "2*d", "ops": [{"split": {"dim": 0, "over": "p"}}]},
    {"from": ["s#.q", "s#.k"], "to": "t#", "shape": ["d f", "f f"], "ops": [{"concat": 0}]},
    {"from": "s#.{i}", "to": ["t#.{i}.a", "t#.{i}.b"], "shape": "d+f 2", "ops": [{"split": {"dim": 0, "sizes": ["d", "f"]}}]},
    {"from": "s#", "to": "t#", "shape": "2*d f", "ops": ["(d two) f -> (two d) f"]},
    {"from": [{"name": "s#.q", "shape": "d f", "ops": ["transpose"]}, {"name": "s#.v", "shape": "f d"}], "to": "t#", "ops": [{"concat": 1}]},
    {"from": "s#", "to": "t#", "shape": "d f", "ops": [{"pad": {"dim": 0, "to": "d + 3"}}]},
    {"from": "s#", "to": "t#", "shape": "9 f", "ops": [{"trim": {"dim": 0, "to": 4, "fill": 0}}]},
    {"from": "s#", "to": ["t#.a", "t#.b"], "shape": "d", "ops": ["replicate"]},
    {"from": "s#.{i}", "to": "t#", "shape": "f", "ops": [{"same": "i"}]},
    {"from": "s#", "to": "t#", "shape": "4*f d", "ops": [{"order": {"dim": 0, "to": [2, 0, 3, 1]}}]},
    {"from": "s#", "to": "t#", "shape": "d", "ops": ["exp", {"multiply": "2 / d"}, {"add": -1}]},
    {"to": "t#.{i}", "shape": "d", "fill": "arange", "dtype": "int64"},
    {"from": "s#", "shape": "d d", "fill": "causal_mask", "dtype": "bool", "optional": True},
    {"from": "s#.{i}", "to": "t#.{i}", "shape": "d", "when": "i >= 1"},
    {"from": "s#.{i}", "to": "t#.{i}", "shape": "d", "optional": True},
    {"from": {"any": ["s#.w", "s#.gamma"]}, "to": "t#", "shape": "d", "dtype": {"from": "bfloat16", "to": "float32"}},
    {"from": "u#", "to": "v#", "shape": "d", "tied": "s0"},
    {"from": "s#.{i}.", "to": {"any": ["t#.{i}.", "x#.{i}."]}, "rules": [{"from": "w", "to": "w", "shape": "d"}, {"from": "b", "to": "b", "shape": "f"}]},
    {"from": "s#.{i}.", "to": "t#.{i}.", "optional": True, "rules": [{"from": "{p}", "to": "{p}", "shape": "_x d"}]},
    {"from": "s#.{i}", "to": "t#.{i}", "with": "s0", "shape": "f d", "ops": ["a b -> b a 1"]},
    {"match": r"r#\.(?P<x>.+)", "to": "r#.{x}"},
    {"from": ["s#.{i}.{p}"], "to": "t#.{i}", "shape": "f", "ops": [{"stack": {"over": "p", "dim": 0}}, "p f -> (p f)"]},
]  # fmt: skip


def sound(random: Random, number: int) -> Any:
    """Choose a rule that fits, under names of its own."""
    return json.loads(json.dumps(random.choice(SOUND)).replace("#", str(number)))


def rule(random: Random, depth: int = 0) -> Any:
    """Make a rule, a group or a rename of what comes."""
    what = random.random()
    if what < 0.12 and depth < 3:
        return {
            "from": name(random), "to": name(random),
            "rules": [rule(random, depth + 1) for _ in range(random.randrange(1, 4))],
            **_conditions(random),
        }  # fmt: skip
    if what < 0.2:
        to = {
            "match": random.choice((r"r\.(?P<x>.+)", ".*", r"(?P<x>\w+)\.w", "r")),
            "to": random.choice(("s.{x}", "{x}", "s")),
        }
        return to | ({"reverse": {"match": "s.(?P<x>.+)", "to": "r.{x}"}} if random.random() < 0.2 else {})
    out: dict[str, Any] = {"from": term(random), "to": term(random)}
    if random.random() < 0.15:
        del out[random.choice(("from", "to"))]
        out |= {"fill": random.choice(("zeros", 1, "n", "arange", "causal_mask", -1.5)), "dtype": "float32"}
    if random.random() < 0.7:
        out["shape"] = random.choice(SHAPES)
    if random.random() < 0.5:
        out["ops"] = [random.choice(OPS) for _ in range(random.choice((1, 1, 2, 3)))]
    if random.random() < 0.1:
        out["dtype"] = random.choice(
            ("bfloat16", "float16", "keep", {"from": "float32", "to": "float16"}, {"like": "a"})
        )
    if random.random() < 0.1:
        out["tied"] = random.choice((name(random), {"name": name(random), "to": "copy"}))
    return out | _conditions(random)


def _conditions(random: Random) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if random.random() < 0.1:
        out["when"] = random.choice(EXPRESSIONS)
    if random.random() < 0.1:
        out["optional"] = True
    if random.random() < 0.05:
        out[random.choice(("with", "without"))] = name(random)
    return out


def name(random: Random) -> Any:
    """Make a name, or spellings."""
    if random.random() < 0.06:
        return {"any": random.choices(NAMES, k=random.randrange(1, 4))}
    return random.choice(NAMES[:20]) if random.random() < 0.8 else random.choice(NAMES)


def term(random: Random) -> Any:
    """Make a name, a term or a list of those."""
    what = random.random()
    if what < 0.75:
        return name(random)
    if what < 0.9:
        return [name(random) for _ in range(random.randrange(1, 4))]
    out: dict[str, Any] = {"name": name(random)}
    if random.random() < 0.7:
        out["shape"] = random.choice(SHAPES)
    if random.random() < 0.4:
        out["ops"] = [random.choice(OPS)]
    return out


def whole(random: Random) -> dict[str, Any]:
    """Make a map."""
    rules = [{"from": "s0", "to": "t0", "shape": "d"}]
    rules += [sound(random, k) for k in range(1, random.randrange(2, 7))]
    if random.random() < 0.3:
        rules.append(rule(random))
    out: dict[str, Any] = {"version": 1, "name": "m", "rules": rules}
    out["indices"] = {"i": "n", "j": 2, "p": random.choice((["x", "y"], {"x": "u", "y": "v.w"}))}
    out["example"] = {"n": 2, "d": 4, "f": 3}
    out["params"] = {
        "n": random.choice((2, {"default": 3}, {"config": "n"}, {"expr": "m + 1"})),
        "m": random.choice((1, {"config": ["a", "m"]})),
    }
    if random.random() < 0.1:
        out["indices"]["i"] = random.choice((3, "l[j]", "2*n", [0, 1], ["x", "y"], "m"))
        out["params"]["l"] = random.choice(([1, 2], {"config": "l", "each": 2}, {"default": 3, "each": "n"}))
    for key, values in (
        ("rest", ["keep", "drop", "error"]),
        ("include", ["part.yaml", ["part.yaml", "part.yaml"], "../secret.yaml", "m.yaml", "/etc/passwd", "gpt2", {"file": "part.yaml", "except": ["inc"]}, "not-there.yaml", "shared", "."]),
        ("strip", [{"from": ["model."]}, {"to": ["a."]}]), ("dtype", ["float32", {"to": "bfloat16"}]),
        ("drop", [{"from": ["a.{i}"]}, {"from": [{"match": ".*w"}]}, {"to": ["c"]}]),
    ):  # fmt: skip
        if random.random() < 0.15:
            out[key] = random.choice(values)
    return out


def dump(tree: Any, random: Random) -> str:
    """Write a tree as YAML, in block or in flow style."""
    style = random.choice((False, False, None, True))
    return yaml.dump(tree, Dumper=yaml.CSafeDumper, default_flow_style=style, sort_keys=False, allow_unicode=True)


def graft(tree: Any, random: Random, times: int = 1) -> Any:
    """Change a tree in some places: replace, drop, double or move what stands there."""
    for _ in range(times):
        places = list(_places(tree))
        if not places:
            return random.choice(SCALARS)
        parent, key = random.choice(places)
        what = random.random()
        if what < 0.35:
            parent[key] = random.choice(random.choice((SCALARS, NAMES, EXPRESSIONS, SHAPES, OPS)))
        elif what < 0.5:
            other, at = random.choice(places)
            parent[key] = other[at]
        elif what < 0.6:
            del parent[key]
        elif what < 0.75:
            new = rule(random) if random.random() < 0.5 else random.choice(OPS)
            if isinstance(parent, list):
                parent.insert(key, new)
            else:
                parent[random.choice(KEYS)] = random.choice((new, parent[key], random.choice(SCALARS)))
        elif what < 0.85 and isinstance(parent, list):
            parent.append(parent[key])
        elif what < 0.92 and isinstance(parent, dict):
            parent[random.choice(KEYS)] = parent.pop(key)
        else:
            parent[key] = [parent[key]] if random.random() < 0.5 else {random.choice(KEYS): parent[key]}
        if _too_deep(tree):
            return tree
    return tree


def _places(tree: Any, depth: int = 0) -> Any:
    if depth > 12:
        return
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key], depth + 1)


def _too_deep(tree: Any) -> bool:
    """Whether a tree holds itself or has grown too large to be written."""
    todo, seen = [(tree, 0)], 0
    while todo:
        node, depth = todo.pop()
        seen += 1
        if depth > 60 or seen > 3000:
            return True
        todo += [
            (x, depth + 1)
            for x in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
    return False

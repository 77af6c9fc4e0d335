"""Laws of the shipped maps: whoever adds a map to maps/ has these tests by that alone.

Header round trips need no tensor bytes: a stub's header is planned there and back at the example's sizes and at every
published one. What a map must notice is shown by changing one tensor at a time.
"""

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from lab import run
from test_architectures import PAGE, line

import converter
from converter.checking import check_map, example_values
from converter.errors import MapError
from converter.flow import Chain
from converter.mapfile import data_dir, load_map, read_includes, read_map, read_source, shipped_maps
from converter.planning import make_plan
from converter.rules import Ruleset
from converter.schema import map_schema
from converter.settings import Settings
from converter.spec import Header, TensorEntry, TensorSpec
from converter.steps import Plan
from converter.stub import Stub, invent, stub_settings
from converter.verify import verify

MAPS = shipped_maps()
SCHEMA = json.loads((data_dir("schemas") / "map.schema.json").read_text())
each_map = pytest.mark.parametrize("name", MAPS)
LARGE, SOME = 64, 20  # of a map with more tensors than that, some are changed, one at a time
both_ways = pytest.mark.parametrize("back", [False, True], ids=["forward", "reverse"])


def published() -> list[Any]:
    """Each map with each of its sizes: the example, and what is published."""
    out = []
    for name in MAPS:
        node = read_map(MAPS[name]).plain()
        for label, sizes in {"example": node.get("example", {}), **node.get("published", {})}.items():
            out.append(pytest.param(name, sizes, id=f"{name}-{label}"))
    return out


@cache
def rules_of(name: str, back: bool = False) -> Ruleset:
    node = read_map(MAPS[name])
    rules = load_map(node, example_values(node, {}))
    return rules.reverse() if back else rules


def params_of(rules: Ruleset, sizes: Mapping[str, Any]) -> Settings:
    """What a config.json says: params. All other sizes must follow from the header."""
    return Settings(set={k: v for k, v in sizes.items() if k in rules.params})


def header_of(plan: Plan) -> Header:
    """The header that a plan writes."""
    return replace(Stub(plan.outputs, {}).header, metadata=dict(plan.metadata))


def stub_of(name: str, sizes: Mapping[str, Any], back: bool = False) -> Header:
    """A header of one side: of the `from` side from the map alone, of the `to` side what the map makes of it."""
    return invented(name, json.dumps(sizes), back)


@cache
def invented(name: str, text: str, back: bool) -> Header:
    rules, sizes = rules_of(name), json.loads(text)
    header = invent(rules, stub_settings(rules, sizes)).header
    return header_of(make_plan(rules, header, params_of(rules, sizes))) if back else header


def by_name(specs: Iterable[TensorSpec | TensorEntry]) -> list[tuple[Any, ...]]:
    return sorted(s[:3] for s in specs)


# The map as a document.


def test_there_are_maps():
    assert {"gpt2", "llama", "qwen2", "glassllm"} <= set(MAPS)


def test_the_committed_schema_is_fresh():
    assert map_schema() == SCHEMA, "generate it again: schemas/map.schema.json is written from the ops and the document"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@each_map
def test_a_map_is_valid(name):
    node = read_map(MAPS[name])
    _, files = read_includes(read_source(MAPS[name]))
    errors = [e.message for f in files for e in jsonschema.Draft202012Validator(SCHEMA).iter_errors(f.node.plain())]
    assert not errors
    assert check_map(str(MAPS[name]))
    assert node.get("name").value == name.rpartition("/")[2]
    assert node.get("about").value
    assert set(node.get("sides").value) == {"from", "to"}
    assert MAPS[name].read_text().startswith("# yaml-language-server: $schema=")


@each_map
def test_every_rule_leads_back_or_says_why_not(name):
    rules = rules_of(name)
    one_way = rules.one_way()
    if not one_way:
        back = rules.reverse()
        assert back.side == 1
        assert all(isinstance(r.chain, Chain) for r in back.rules)
        assert back.reverse() == rules
        return
    assert all(reason for _, reason in one_way)
    with pytest.raises(MapError) as caught:
        rules.reverse()
    assert [p.origin for p in caught.value.problems] == [origin for origin, _ in one_way]


@each_map
def test_every_rule_has_shapes(name):
    rules = rules_of(name)
    bare = [str(r.origin) for r in rules.rules if any(t.shape is None for t in (*r.source, *r.target))]
    assert not bare
    assert not rules.regexes, "a regex rename has no shapes, and no stub can be made of it"


@each_map
def test_the_example_has_every_size(name):
    rules = rules_of(name)
    assert rules.example
    specs = invent(rules, stub_settings(rules, {})).specs
    assert specs
    assert len({s.name for s in specs}) == len(specs)
    assert all(isinstance(n, int) and n > 0 for s in specs for n in s.shape)


@each_map
def test_a_map_has_its_row_in_the_list_of_architectures(name):
    assert line(name) in PAGE.read_text(encoding="utf-8").splitlines(), "write it: python tests/test_architectures.py"


# There and back, by headers.


def reads_and_writes_once(plan: Plan) -> None:
    """Every source is read by one step, beside comparisons and ties; every target is written by one."""
    written = Counter(n for step in plan.steps for n in step.target_names())
    assert set(written.values()) == {1}
    assert set(written) == {s.name for s in plan.outputs}
    read = Counter(n for step in plan.steps for n in step.source_names())
    assert set(read) | set(plan.fates.dropped) == set(plan.header.tensors)
    tied = {n for t in plan.fates.tied for n in (t.name, t.of)}  # of the `from` side, which may be the written one
    moving = [s for s in plan.steps if s.kind != "compare" and tied.isdisjoint(s.target_names())]
    moved = Counter(n for step in moving for n in step.source_names())
    assert not {n: k for n, k in moved.items() if k > 1 and n not in tied}
    assert not plan.fates.unexpected
    assert not plan.fates.missing


@pytest.mark.parametrize(("name", "sizes"), published())
def test_headers_go_there_and_back(name, sizes):
    """From the `from` side there, back, and there again: two round trips, and three plans that use everything once."""
    there, stub = rules_of(name), stub_of(name, sizes)
    settings = params_of(there, sizes)
    first = make_plan(there, stub, settings)
    plans = [first]
    if not there.one_way():
        back = make_plan(rules_of(name, back=True), header_of(first), settings)
        plans += [back, make_plan(there, header_of(back), settings)]
        assert by_name(back.outputs) == by_name(stub.tensors.values())
        assert by_name(plans[2].outputs) == by_name(first.outputs)
    for plan in plans:
        assert verify(plan) == ()
        reads_and_writes_once(plan)


# There and back, by data.


def raw(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The tensors of a file as dtype, shape and bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        n: (e["dtype"], tuple(e["shape"]), data[8 + length + e["data_offsets"][0] : 8 + length + e["data_offsets"][1]])
        for n, e in header.items()
    }


def exact(rules: Ruleset) -> bool:
    """Whether a round trip gives every bit again."""
    return all(r.chain.exact for r in rules.rules)


def sets(settings: Settings) -> list[str]:
    return [f"--set={k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in settings.set.items()]


@both_ways
@each_map
def test_data_round_trip(name, back, tmp_path):
    rules = rules_of(name)
    if rules.one_way():
        pytest.skip("a one-way map")
    stub, there, again, once_more = (tmp_path / f"{n}.safetensors" for n in ("stub", "there", "again", "once_more"))
    flags = sets(params_of(rules, rules.example))
    made = run("stub", "--map", name, "--side", "to" if back else "from", stub)
    assert made.code == 0, made.err
    first = run("--map", name, *flags, *(["--reverse"] if back else []), "--verify", stub, there)
    assert first.code == 0, first.err
    second = run("--map", name, *flags, *([] if back else ["--reverse"]), "--verify", there, again)
    assert second.code == 0, second.err
    if exact(rules):
        assert raw(again) == raw(stub)
    else:  # what there is to lose is lost once
        third = run("--map", name, *flags, *(["--reverse"] if back else []), "--verify", again, once_more)
        assert third.code == 0, third.err
        assert raw(once_more) == raw(there)
    values = [data for _, _, data in raw(stub).values()]
    assert any(len(set(data)) > 1 for data in values)


@each_map
def test_data_round_trip_in_python(name, tmp_path):
    rules = rules_of(name)
    if rules.one_way():
        pytest.skip("a one-way map")
    stub, there, again = (tmp_path / f"{n}.safetensors" for n in ("stub", "there", "again"))
    assert run("stub", "--map", name, stub).code == 0
    config = dict(params_of(rules, rules.example).set)
    report = converter.convert(stub, there, map=name, set=config)
    assert {x.source for x in report.loaded} | {t.name for t in report.tied} >= set(raw(stub)) - set(report.dropped)
    converter.plan(there, map=name, set=config, reverse=True).write(again)
    assert raw(again).keys() == raw(stub).keys()
    assert not exact(rules) or raw(again) == raw(stub)


# What must be noticed.


def mutants(header: Header, change: Any) -> Iterator[tuple[str, Header]]:
    """The header with one tensor changed (or taken away): of each kind of name the first and the last, and of many
    kinds some.
    """
    kinds: dict[str, list[str]] = {}
    for name in header.tensors:
        kinds.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    some = list(dict.fromkeys(n for names in kinds.values() for n in (names[0], names[-1])))
    for name in some[:: -(-len(some) // SOME) if len(some) > LARGE else 1]:
        tensors = dict(header.tensors)
        new = change(tensors[name])
        if new is None:
            del tensors[name]
        else:
            tensors[name] = new
        yield name, replace(header, tensors=tensors)


def subjects(rules: Ruleset, header: Header, settings: Settings) -> set[str | None]:
    return {p.subject for p in verify(make_plan(rules, header, settings))}


def told(rules: Ruleset, header: Header, settings: Settings) -> str:
    """All problems as text. Where two tensors contradict each other, one is the subject and the other the reason."""
    return "\n".join(f"{p.subject}: {p.message}" for p in verify(make_plan(rules, header, settings)))


def may_be_absent(rules: Ruleset, header: Header, settings: Settings) -> set[str]:
    """Names of the input that the map itself lets be absent: tied ones and optional ones by themselves."""
    plan = make_plan(rules, header, settings)
    lone = {r.origin for r in rules.rules if r.tie is not None or r.lone_optional}
    return {n for step in plan.steps if step.origin in lone for n in step.source_names()}


@both_ways
@each_map
def test_a_missing_tensor_is_named(name, back):
    if back and rules_of(name).one_way():
        pytest.skip("a one-way map")
    rules = rules_of(name, back)
    header, settings = stub_of(name, rules.example, back), params_of(rules, rules.example)
    skip = may_be_absent(rules, header, settings)
    for tensor, less in mutants(header, lambda e: None):
        if tensor not in skip:
            assert tensor in subjects(rules, less, settings)


@both_ways
@each_map
def test_an_unknown_tensor_is_named(name, back):
    if back and rules_of(name).one_way():
        pytest.skip("a one-way map")
    rules = rules_of(name, back)
    if rules.rest != "error":
        pytest.skip("the map says what becomes of the rest")
    header, settings = stub_of(name, rules.example, back), params_of(rules, rules.example)
    *_, last = header.tensors.values()
    first = next(iter(header.tensors))
    names = ["zzz.extra", f"{first}.zzz", f"zzz.{first}", last.name.upper() + "_", "é", " "]
    names += [n.replace(".2.", ".3.") for n in header.tensors if ".2." in n][:4]
    for extra in set(names) - set(header.tensors):
        tensors = {**header.tensors, extra: TensorEntry(extra, "F32", (1,), 0, last.stop, last.stop + 4)}
        text = told(rules, replace(header, tensors=tensors), settings)
        assert f"\n{extra}: " in f"\n{text}" or (len(extra) > 1 and extra in text)


def grown(entry: TensorEntry, axis: int) -> TensorEntry:
    shape = (*entry.shape[:axis], entry.shape[axis] + 1, *entry.shape[axis + 1 :])
    return entry._replace(shape=shape)


@both_ways
@each_map
def test_a_wrong_shape_is_named(name, back):
    """A rank too many is noticed by itself; a size where what it should be is set, or solved from elsewhere."""
    if back and rules_of(name).one_way():
        pytest.skip("a one-way map")
    rules = rules_of(name, back)
    header, settings = stub_of(name, rules.example, back), params_of(rules, rules.example)
    for tensor, odd in mutants(header, lambda e: e._replace(shape=(1, *e.shape))):
        assert tensor in subjects(rules, odd, settings), f"{tensor} with an axis too many"
    known = stub_settings(rules, {})
    for axis in range(max(len(e.shape) for e in header.tensors.values())):
        for tensor, odd in mutants(header, lambda e: grown(e, axis) if axis < len(e.shape) else e):  # noqa: B023
            if axis < len(header.tensors[tensor].shape):
                assert tensor in told(rules, odd, known), f"{tensor} with axis {axis} grown"


@each_map
def test_sizes_are_solved_and_not_asked_for(name):
    """Of the example's sizes only those that no header could hold need to be told: params."""
    rules = rules_of(name)
    header = invent(rules, stub_settings(rules, {})).header
    plan = make_plan(rules, header, params_of(rules, rules.example))
    solved = {n: v for n, v, _ in plan.sizes}
    assert {k: solved.get(k) for k in rules.example} == dict(rules.example)

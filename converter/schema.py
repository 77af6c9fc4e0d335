"""The JSON Schema of maps, generated from the document classes and the ops, so that editors complete and check maps."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from converter import document as doc
from converter import dtypedoc, ruledoc
from converter.fields import NAME
from converter.ops import OPS

Json = dict[str, Any]
_DEFS: dict[str, type] = {
    "group": ruledoc.GroupDoc,
    "equation": ruledoc.RuleDoc,
    "form": ruledoc.FormDoc,
    "regex": ruledoc.RegexDoc,
    "term": ruledoc.TermDoc,
    "include_file": ruledoc.IncludeDoc,
    "any": ruledoc.AnyDoc,
    "tied": ruledoc.TiedDoc,
    "reverse": ruledoc.ReverseDoc,
    "param": doc.ParamDoc,
    "sides": doc.SidesDoc,
    "strip": doc.StripDoc,
    "segment": doc.SegmentDoc,
    "drop": doc.DropDoc,
    "drop_match": doc.DropMatchDoc,
    "dtype_sides": dtypedoc.DtypeSidesDoc,
}


_HAS_RULES: list[Json] = [{"required": ["rules"]}, {"required": ["include"]}]


def class_schema(cls: type) -> Json:
    """Give the schema of a document class: its keys, those that are required, and no others."""
    keys = [f for f in fields(cls) if "yaml" in f.metadata]
    properties = {f.metadata["yaml"]: {**f.metadata["schema"], "description": f.metadata["about"]} for f in keys}
    required = [f.metadata["yaml"] for f in keys if f.default is MISSING and f.default_factory is MISSING]
    out: Json = {"type": "object", "description": cls.__doc__, "properties": properties, "additionalProperties": False}
    return out | ({"required": required} if required else {})


def op_schemas() -> list[Json]:
    """Give one schema for each way that an op can be written."""
    out: list[Json] = []
    for op in OPS:
        about = (op.__doc__ or "").split("\n")[0]
        argument = op.schema()
        if op.word == "rearrange":
            out.append({**(argument or {}), "description": about})
            continue
        if op.bare:
            out.append({"const": op.word, "description": about})
        if argument is not None:
            keys = {op.word: argument}
            out.append(
                {
                    "type": "object",
                    "properties": keys,
                    "required": [op.word],
                    "additionalProperties": False,
                    "description": about,
                }
            )
    return out


def map_schema() -> Json:
    """Give the whole schema (JSON Schema draft 2020-12)."""
    defs: Json = {name: class_schema(cls) for name, cls in _DEFS.items()}
    defs["include"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/include_file"}]}
    defs["group"] |= {"required": ["from", "to"], "anyOf": _HAS_RULES}
    defs["name"] = {"anyOf": [NAME, {"$ref": "#/$defs/any"}]}
    defs["one_term"] = {"anyOf": [NAME, {"$ref": "#/$defs/any"}, {"$ref": "#/$defs/term"}]}
    defs["terms"] = {
        "anyOf": [{"$ref": "#/$defs/one_term"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/one_term"}}]
    }
    defs["dtype"] = {"anyOf": [dtypedoc.DTYPE, {"$ref": "#/$defs/dtype_sides"}]}
    defs["ops"] = {"type": "array", "maxItems": ruledoc.MAX_OPS, "items": {"$ref": "#/$defs/op"}}
    defs["op"] = {"anyOf": op_schemas()}
    member: Json = {
        "if": {"anyOf": _HAS_RULES},
        "then": {"$ref": "#/$defs/group"},
        "else": {"$ref": "#/$defs/equation"},
    }
    defs["member"] = member
    defs["rule"] = {
        "if": {"required": ["match"]},
        "then": {"$ref": "#/$defs/regex"},
        "else": {"$ref": "#/$defs/member"},
    }
    head: Json = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "checkpoint-convert map, version 1",
    }
    whole: Json = {
        "required": ["version"],
        "if": {"properties": {"fragment": {"const": True}}, "required": ["fragment"]},
        "else": {"required": ["name"], "anyOf": _HAS_RULES},
    }
    return head | class_schema(doc.MapDoc) | whole | {"$defs": defs}

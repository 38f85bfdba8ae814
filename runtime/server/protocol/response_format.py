"""What an answer's text must be: a request's response_format as a constraint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rtlang.errors import ConflictingConstraints, GrammarError, InvalidParameter, Unsupported
from rtlang.grammar.spec import GrammarSpec

_KINDS = ("text", "json_object", "json_schema", "structural_tag")


def read_response_format(given: Mapping[str, Any] | None) -> GrammarSpec | None:
    """None for free text. Raises ``InvalidParameter``, or the ``GrammarError`` of the schema."""
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind not in _KINDS:
        text = f"response_format.type is {kind!r}, none of {', '.join(_KINDS)}"
        raise InvalidParameter(text, param="response_format")
    rest = {name: value for name, value in given.items() if name != "type" and value is not None}
    if kind == "structural_tag":
        return GrammarSpec.structural_tag(_tag(rest))
    _only(rest, ("json_schema",) if kind == "json_schema" else (), "response_format")
    if kind == "json_object":
        return GrammarSpec.any_json()
    return _json_schema(rest) if kind == "json_schema" else None


def _json_schema(rest: Mapping[str, Any]) -> GrammarSpec:
    where = "response_format.json_schema"
    inner = rest.get("json_schema")
    if not isinstance(inner, Mapping):
        raise InvalidParameter(f"{where} is no object with a schema", param=where)
    _only(inner, ("name", "description", "schema", "strict"), where)
    schema = inner.get("schema")
    if not isinstance(schema, Mapping | bool):
        text = f"{where}.schema is no JSON schema but {type(schema).__name__}"
        raise InvalidParameter(text, param=f"{where}.schema")
    for name, kinds in (("name", str), ("description", str), ("strict", bool)):
        if not isinstance(inner.get(name), kinds | None):
            raise InvalidParameter(f"{where}.{name} is no {kinds.__name__}", param=where)
    return GrammarSpec.json_schema(schema)


def _tag(rest: Mapping[str, Any]) -> dict[str, Any]:
    """Both spellings: SGLang's structures and triggers, and xgrammar's format."""
    if "structures" in rest:
        return dict(rest)
    return {"type": "structural_tag", **rest}


def _only(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in known:
            raise InvalidParameter(f"unknown field {name!r} in {where}", param=where)


def one_of(given: GrammarSpec | None, by_format: GrammarSpec | None) -> GrammarSpec | None:
    """Raises ``ConflictingConstraints`` for both."""
    if given is not None and by_format is not None:
        raise ConflictingConstraints("a response_format beside another constraint")
    return given or by_format


def as_format(spec: GrammarSpec) -> dict[str, Any]:
    """A constraint as one format of a structural tag, to stand beside others."""
    source: Any = spec.source
    match spec.kind:
        case "regex":
            return {"type": "regex", "pattern": source}
        case "ebnf":
            return {"type": "grammar", "grammar": source}
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(source)}
        case "choice":
            options = [{"type": "const_string", "value": o} for o in json.loads(source)]
            return {"type": "or", "elements": options}
        case "structural_tag":
            tag = json.loads(source)
            if "format" not in tag:
                raise Unsupported(
                    "a structural tag beside tools or reasoning needs the form with a format",
                    param="response_format",
                )
            found: dict[str, Any] = tag["format"]
            return found
    raise GrammarError(f"a constraint of kind {spec.kind!r} cannot stand beside others")


def tagged(node: Mapping[str, Any], like: GrammarSpec) -> GrammarSpec:
    """A format as a constraint, with the options that ``like`` has for JSON."""
    tag = {"type": "structural_tag", "format": dict(node)}
    return GrammarSpec.structural_tag(tag, whitespace=like.whitespace, additional=like.additional)

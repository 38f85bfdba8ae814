"""Constraints as other servers take them: JSON schemas, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from rtlang.errors import Unsupported
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.sampling_params import SamplingParams

_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_DEFAULT = GrammarSpec.any_json()


def json_schemas_only(params: SamplingParams) -> None:
    """Raises ``Unsupported`` for other constraints, and for white space that only our own engine
    holds a text to."""
    grammar = params.grammar
    if grammar is None:
        return
    if grammar.kind != "json_schema":
        raise Unsupported(
            f"this backend enforces JSON schemas, no {grammar.kind}: use json_schema=, or a type "
            "that is written as JSON",
            param=grammar.kind,
        )
    if grammar.whitespace != _DEFAULT.whitespace:
        raise Unsupported("this backend writes JSON's white space as it likes", param="whitespace")


def schema_of(grammar: GrammarSpec) -> Any:
    """The schema itself, with what ``additional`` says written out."""
    schema = json.loads(grammar.source)
    return _closed(schema) if grammar.additional == "closed" else schema


def _closed(schema: Any) -> Any:
    """A copy in which objects that declare members, and say nothing of others, have no others."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for key in _MAPS:
        if isinstance(found.get(key), dict):
            found[key] = {name: _closed(part) for name, part in found[key].items()}
    for key in _LISTS:
        if isinstance(found.get(key), list):
            found[key] = [_closed(part) for part in found[key]]
    for key in ("items", "additionalProperties"):
        if key in found:
            found[key] = _closed(found[key])
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    return found

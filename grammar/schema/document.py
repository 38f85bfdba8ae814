"""A schema document: which schema a reference names, and a number for each schema in use."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, cast
from urllib.parse import unquote, urldefrag, urljoin

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.schema.keywords import (
    SILENT,
    Schema,
    check,
    invalid,
    parts,
    pointer,
    unsupported,
)

MAX_DEPTH = 64
MAX_SCHEMAS = 50_000  # numbered ones, references and opposites included

#: How ``$schema`` names the drafts that are known; a newer draft is a greater number.
_DRAFT = re.compile(
    r"https?://json-schema\.org/(?:draft-(?P<old>0[467])/schema|draft/(?P<new>20\d\d-\d\d)/schema"
    r"|schema)#?"
)
_DRAFTS = {"04": 4, "06": 6, "07": 7, "2019-09": 2019, "2020-12": 2020, None: 2020}
_UNEVALUATED = {"unevaluatedItems", "unevaluatedProperties"}


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A schema, its JSON pointer in the document, and the URI that its references start from."""

    schema: Schema | bool
    pointer: str
    base: str


class Document:
    """All schemas of a document.

    Raises:
        InvalidSchema, UnsupportedKeyword: an unknown ``$schema``, an identifier used twice.
        GrammarTooLarge: nested deeper than ``MAX_DEPTH``.
    """

    def __init__(self, root: object) -> None:
        check_depth(root)
        check(root, "")
        self.root = cast("Schema | bool", root)
        self.draft = self._draft()
        self._resources: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._dynamic: dict[str, list[Place]] = {}
        self._bases: dict[int, str] = {}  # by the identity of a schema
        self.tracks_evaluated = False
        self._register()
        self.places: list[Place] = [Place(True, "", "")] * 2  # number 1 is the schema true
        self._numbers: dict[tuple[str, str], int] = {}

    def _draft(self) -> int:
        given = self.root.get("$schema") if isinstance(self.root, dict) else None
        if given is None:
            return 2020
        found = _DRAFT.fullmatch(given) if isinstance(given, str) else None
        if found is None or (found["old"] or found["new"]) not in _DRAFTS:
            raise unsupported("/$schema", "$schema", f"{given!r} is no known draft")
        return _DRAFTS[found["old"] or found["new"]]

    def _register(self) -> None:
        """Note every identifier and anchor, and the base URI of every schema."""
        pending = [Place(self.root, "", "")]
        self._resources[""] = pending[0]
        while pending:
            place = pending.pop()
            schema = place.schema
            if not isinstance(schema, dict):
                continue
            place = self._identified(place, schema)
            self._bases[id(schema)] = place.base
            self.tracks_evaluated |= bool(schema.keys() & _UNEVALUATED)
            pending += [
                Place(cast("Schema | bool", part), pointer(place.pointer, *names), place.base)
                for names, part in parts(schema)
            ]

    def _identified(self, place: Place, schema: Schema) -> Place:
        """The place with the base URI that it sets itself; its names are noted."""
        name = schema.get("$id" if self.draft > 4 else "id")
        if isinstance(name, str) and not (self.draft <= 7 and "$ref" in schema):
            uri, fragment = urldefrag(_absolute(place.base, name))
            if fragment:
                self._anchors[uri, fragment] = place
            else:
                place = Place(schema, place.pointer, uri)
                self._resources[uri] = place
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(keyword), str):
                if (place.base, anchor) in self._anchors:
                    raise invalid(place.pointer, keyword, f"{anchor!r} occurs twice")
                self._anchors[place.base, anchor] = place
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(place)
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(place)
        return place

    def number(self, place: Place) -> int:
        """The literal of a schema: equal schemas with the same base have the same one.

        Raises:
            InvalidSchema: it is no schema.
            GrammarTooLarge: too many schemas.
        """
        check(place.schema, place.pointer)
        if isinstance(place.schema, bool):
            return 1 if place.schema else -1
        said = {keyword: v for keyword, v in place.schema.items() if keyword not in SILENT}
        said |= {k: place.schema[k] for k in ("then", "else") if k in place.schema and "if" in said}
        if not said:
            return 1
        key = (place.base, json.dumps(said))
        if key not in self._numbers:
            self._numbers[key] = len(self.places)
            self.places.append(place)
            if len(self.places) > MAX_SCHEMAS:
                raise GrammarTooLarge(f"more than {MAX_SCHEMAS} schemas", limit="schemas")
        return self._numbers[key]

    def inside(self, place: Place, *names: str | int) -> Place:
        """The schema that these names lead to from a schema."""
        found: Any = place.schema
        for name in names:
            found = found[name]
        base = self._bases.get(id(found), place.base)
        return Place(found, pointer(place.pointer, *names), base)

    def referred(self, place: Place, keyword: str) -> Place:
        """The schema that the reference of ``place`` names.

        Raises:
            InvalidSchema: there is no such schema in the document.
            UnsupportedKeyword: it is in another document, or depends on who refers to it.
        """
        assert isinstance(place.schema, dict)
        reference = place.schema[keyword]
        where = pointer(place.pointer, keyword)
        uri, fragment = urldefrag(_absolute(place.base, reference))
        if uri not in self._resources:
            raise unsupported(where, keyword, f"{reference!r} is in another document")
        target = self._find(self._resources[uri], uri, unquote(fragment))
        if target is None:
            raise invalid(where, keyword, f"{reference!r} names no schema of the document")
        dynamic = self._dynamic.get(fragment, [])
        named = [p.schema for p in dynamic]
        if keyword != "$ref" and any(s is target.schema for s in named) and len(named) > 1:
            raise unsupported(where, keyword, "its target depends on who refers to it")
        return target

    def _find(self, resource: Place, uri: str, fragment: str) -> Place | None:
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((uri, fragment))
        place: Place = resource
        found: Any = resource.schema
        for name in fragment.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                return None
            base = self._bases.get(id(found), place.base)
            place = Place(found, pointer(place.pointer, name), base)
        return place


def check_depth(value: object) -> None:
    """Raises ``GrammarTooLarge``: ``value`` is nested deeper than ``MAX_DEPTH``."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for outer in level
            if isinstance(outer, dict | list)
            for part in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise GrammarTooLarge(f"nested deeper than {MAX_DEPTH}", limit="depth")


def _absolute(base: str, reference: str) -> str:
    # urljoin knows no relative references to a URN.
    if reference.startswith("#"):
        return base + reference
    return urljoin(base, reference) if base else reference

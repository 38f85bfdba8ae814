"""What a request may say: one constraint, as plain data that goes over any wire.

Made without a model, without an engine and without reading the constraint itself: what can be
told from its kind and size is checked here, the rest by ``rtlang.grammar.translate``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

from rtlang.errors import (
    ConflictingConstraints,
    GrammarTooLarge,
    InvalidJson,
    InvalidParameter,
    InvalidSchema,
)

Kind = Literal["json_schema", "regex", "ebnf", "choice", "structural_tag"]
Additional = Literal["schema", "closed"]

#: UTF-8 bytes of a constraint's text.
MAX_SOURCE = 64 * 1024
MAX_CHOICES = 2_000
#: The most white space between two JSON tokens that may be asked for.
MAX_WHITESPACE = 1_000

_KINDS: tuple[str, ...] = get_args(Kind)
_OPTIONS = ("whitespace", "additional")


@dataclasses.dataclass(frozen=True)
class GrammarSpec:
    """A constraint on a whole generated text. Make it with one of the methods named by kind.

    kind        what ``source`` is
    source      canonical text: of JSON without white space, its keys in the given order
    whitespace  most white space characters in a row between two JSON tokens; 0: none
    additional  of objects in schemas that say nothing about further members: "schema" lets any
                follow, as the standard says, "closed" lets none follow declared ones
    """

    kind: Kind
    source: str
    whitespace: int = 16
    additional: Additional = "schema"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidParameter(f"no kind of constraint: {self.kind!r}", param="kind")
        if type(self.whitespace) is not int or not 0 <= self.whitespace <= MAX_WHITESPACE:
            message = f"whitespace is a count from 0 to {MAX_WHITESPACE}, not {self.whitespace!r}"
            raise InvalidParameter(message, param="whitespace")
        if self.additional not in get_args(Additional):
            message = f"additional is 'schema' or 'closed', not {self.additional!r}"
            raise InvalidParameter(message, param="additional")
        _check_text(self.source, self.kind)

    @classmethod
    def json_schema(
        cls,
        schema: Mapping[str, Any] | bool | str,
        *,
        whitespace: int = 16,
        additional: Additional = "schema",
    ) -> GrammarSpec:
        """JSON that satisfies a schema, given as parsed JSON or as its text.

        Raises:
            InvalidJson: it is not JSON.
            InvalidSchema: it is JSON, but neither an object nor true or false.
            GrammarTooLarge: longer than ``MAX_SOURCE``, or nested too deep to be read.
        """
        source = _canonical(schema, "json_schema")
        if not (source.startswith("{") or source in ("true", "false")):
            raise InvalidSchema("a schema is an object, true or false", pointer="", keyword="")
        return cls("json_schema", source, whitespace, additional)

    @classmethod
    def any_json(cls, *, whitespace: int = 16) -> GrammarSpec:
        """Any JSON object."""
        return cls("json_schema", '{"type":"object"}', whitespace)

    @classmethod
    def regex(cls, pattern: str) -> GrammarSpec:
        """Texts that a regular expression matches from their start to their end."""
        return cls("regex", pattern)

    @classmethod
    def ebnf(cls, text: str) -> GrammarSpec:
        """Texts of a grammar (``rtlang.grammar.ebnf_parser`` describes the notation)."""
        return cls("ebnf", text)

    @classmethod
    def choice(cls, options: Sequence[str]) -> GrammarSpec:
        """Exactly one of these texts. Raises ``InvalidParameter`` if there are none, and
        ``GrammarTooLarge`` if there are more than ``MAX_CHOICES``."""
        listed = isinstance(options, Sequence) and not isinstance(options, str)
        if not listed or not all(isinstance(option, str) for option in options):
            raise InvalidParameter("choice is a list of texts", param="choice")
        if not options:
            raise InvalidParameter("choice has no option", param="choice")
        if len(options) > MAX_CHOICES:
            message = f"{len(options)} choices, more than {MAX_CHOICES}"
            raise GrammarTooLarge(message, limit="choices")
        for option in options:
            _check_text(option, "choice")
        return cls("choice", json.dumps(list(options), ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def structural_tag(
        cls,
        spec: Mapping[str, Any] | str,
        *,
        whitespace: int = 16,
        additional: Additional = "schema",
    ) -> GrammarSpec:
        """Text with constrained parts (``rtlang.grammar.structural`` describes the formats).

        Raises what ``json_schema`` does.
        """
        source = _canonical(spec, "structural_tag")
        if not source.startswith("{"):
            raise InvalidSchema("a structural tag is an object", pointer="", keyword="")
        return cls("structural_tag", source, whitespace, additional)

    @classmethod
    def of(cls, given: GrammarSpec | Mapping[str, Any]) -> GrammarSpec:
        """From a mapping with one of the kinds as its key, and with options.

        Raises:
            InvalidParameter: an unknown key (``param``), or no kind at all.
            ConflictingConstraints: several kinds.
        """
        if isinstance(given, GrammarSpec):
            return given
        if not isinstance(given, Mapping):
            message = f"a constraint is a mapping, not {type(given).__name__}"
            raise InvalidParameter(message, param="grammar")
        for key in given:
            if key not in (*_KINDS, *_OPTIONS):
                raise InvalidParameter(f"no part of a constraint: {key!r}", param=str(key))
        kinds = [key for key in given if key in _KINDS]
        if not kinds:
            raise InvalidParameter(f"a constraint has one of {', '.join(_KINDS)}", param="grammar")
        if len(kinds) > 1:
            raise ConflictingConstraints(f"more than one constraint: {' and '.join(kinds)}")
        kind, options = kinds[0], {key: given[key] for key in given if key in _OPTIONS}
        if options and kind not in ("json_schema", "structural_tag"):
            raise InvalidParameter(f"{kind} has no option {next(iter(options))}", param=kind)
        made: GrammarSpec = getattr(cls, kind)(given[kind], **options)
        return made

    @cached_property
    def key(self) -> str:
        """sha256 (hex) of everything above: equal for equal constraints."""
        parts = [self.kind, self.source, self.whitespace, self.additional]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def to_wire(self) -> dict[str, str | int]:
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> GrammarSpec:
        return cls(**wire)


def parsed_json(text: str, param: str) -> Any:
    """What a JSON text holds; of a key that occurs twice the last value, as usual.

    Raises:
        InvalidJson: it is none (NaN and Infinity are not).
        GrammarTooLarge: longer than ``MAX_SOURCE``, or nested too deep to be read.
    """
    _check_text(text, param)
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise GrammarTooLarge("nested too deep to be read", limit="depth") from error
    except ValueError as error:
        raise InvalidJson(f"{param} is not JSON: {error}", param=param) from error


def _canonical(given: object, param: str) -> str:
    """JSON text, without white space, of JSON text or parsed JSON; keys keep their order."""
    found = parsed_json(given, param) if isinstance(given, str) else given
    try:
        found = dict(found) if isinstance(found, Mapping) else found
        return json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError as error:
        raise GrammarTooLarge("nested too deep to be read", limit="depth") from error
    except (TypeError, ValueError) as error:
        raise InvalidJson(f"{param} is not JSON: {error}", param=param) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _check_text(text: object, param: str) -> None:
    if not isinstance(text, str):
        raise InvalidParameter(f"{param} is text, not {type(text).__name__}", param=param)
    if "\0" in text:
        raise InvalidParameter(f"{param} has a NUL character", param=param)
    if len(text) > MAX_SOURCE or len(text.encode(errors="surrogatepass")) > MAX_SOURCE:
        message = f"{param} is longer than {MAX_SOURCE} bytes"
        raise GrammarTooLarge(message, limit="source")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidParameter(f"{param} has half a character (a surrogate)", param=param)

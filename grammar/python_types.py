"""Python types as constraints: which texts are values of a type, and the value of each.

Structures are JSON: dataclasses, ``TypedDict`` and Pydantic models (closed objects), ``list``,
``tuple``, ``dict`` with text keys, ``Literal``, ``Enum``, unions, ``Any``, nested in any way; a
class may be inside itself. Fields with defaults may be left out. A scalar that is the whole type
is plain text instead: ``12``, ``1.5e-3``, ``True``, the option of a ``Literal`` or an ``Enum``
without quotes; and ``str`` is any text at all.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

from rtlang.errors import ProgramError
from rtlang.grammar.python_values import (
    AnyJson,
    Constants,
    Described,
    Items,
    Model,
    Names,
    OneOf,
    Record,
    Row,
    Scalar,
    Schema,
    Shape,
)
from rtlang.grammar.spec import GrammarSpec

#: Plain numbers. None is longer than Python reads, or beyond what a float holds.
INT = r"[-+]?(0|[1-9][0-9]{0,299})"
FLOAT = (
    r"[-+]?((0|[1-9][0-9]{0,299})(\.[0-9]{1,40})?"
    r"|(0|[1-9][0-9]{0,7})(\.[0-9]{1,40})?[eE](\+?[0-2]?[0-9]{1,2}|-[0-9]{1,3}))"
)
_WRAPPERS: tuple[Any, ...] = tuple(
    getattr(typing, name)
    for name in ("Required", "NotRequired", "ReadOnly")
    if hasattr(typing, name)
)


class PythonType:
    """One type. Raises ``ProgramError`` for what has no JSON, naming the part of it."""

    def __init__(self, kind: Any) -> None:
        maker = _Maker(_name(kind))
        self.kind = kind
        self._shape = maker.shape(kind, _name(kind))
        self._defs = maker.definitions()
        self._plain = _plain(kind, self._shape)

    def __repr__(self) -> str:
        return f"PythonType({_name(self.kind)})"

    @property
    def schema(self) -> Schema:
        """The schema of its values as JSON, with all that it refers to."""
        schema = dict(self._shape.schema)
        return {**schema, "$defs": self._defs} if self._defs else schema

    def value(self, given: Any) -> Any:
        """The value of parsed JSON. Raises ``ValueError`` where it does not fit."""
        return self._shape.value(given)

    def spec(self, whitespace: int | None = None) -> GrammarSpec | None:
        """The constraint on the texts of ``parse``; None: any text. ``whitespace``: see
        ``GrammarSpec``; where there is no JSON it is an error, a ``ProgramError``."""
        if self._plain is None:
            options = {} if whitespace is None else {"whitespace": whitespace}
            return GrammarSpec.json_schema(self.schema, additional="closed", **options)
        if whitespace is not None:
            raise ProgramError(f"whitespace is for JSON; {_name(self.kind)} is plain text")
        return self._plain[0]

    def parse(self, text: str) -> Any:
        """The value that a text of ``spec`` stands for."""
        return self.value(json.loads(text)) if self._plain is None else self._plain[1](text)


def schema_of(kind: Any) -> Schema:
    """The JSON schema of a type's values (of scalars, too). Raises ``ProgramError``."""
    return PythonType(kind).schema


def parse(kind: Any, text: str) -> Any:
    """The value that a text, as ``PythonType.spec`` constrains it, stands for."""
    return PythonType(kind).parse(text)


_Plain = tuple[GrammarSpec | None, Callable[[str], Any]]


def _plain(kind: Any, shape: Shape) -> _Plain | None:
    """How a scalar that is the whole type is written; None: as JSON."""
    if kind is str:
        return None, str
    if kind is int:
        return GrammarSpec.regex(INT), int
    if kind is float:
        return GrammarSpec.regex(FLOAT), float
    if kind is bool:
        return GrammarSpec.choice(["True", "False"]), "True".__eq__
    if isinstance(shape, Constants) and all(isinstance(c, str | int) for c, _ in shape.pairs):
        texts = {str(constant): value for constant, value in shape.pairs}
        if len(texts) == len(shape.pairs):  # 1 and "1" need their JSON to be told apart
            return GrammarSpec.choice(list(texts)), texts.__getitem__
    return None


class _Maker:
    def __init__(self, whole: str) -> None:
        self._whole = whole
        self._records: dict[Any, Record] = {}
        self._models: dict[Any, Model] = {}
        self._open: set[Any] = set()  # classes around the place where the maker is
        self._defs: dict[str, Callable[[], Schema]] = {}

    def definitions(self) -> dict[str, Schema]:
        return {name: make() for name, make in self._defs.items()}

    def shape(self, kind: Any, where: str) -> Shape:
        """``where``: how a reader finds this part, for the error."""
        if isinstance(kind, str | typing.ForwardRef):
            raise self._refused(kind, where, "a name is read inside a class only")
        if kind is Any or kind is object:
            return self._any()
        if kind is None or kind in (type(None), bool, int, float, str):
            return Scalar(type(None) if kind is None else kind)
        if isinstance(kind, type) and not get_args(kind):
            return self._class(kind, where)
        if hasattr(kind, "__supertype__"):  # NewType
            return self.shape(kind.__supertype__, where)
        if type(kind).__name__ == "TypeAliasType":
            return self.shape(kind.__value__, where)
        return self._generic(kind, where)

    def _class(self, kind: type, where: str) -> Shape:
        if callable(getattr(kind, "model_json_schema", None)) and hasattr(
            kind, "model_validate_json"
        ):
            return self._model(kind)
        if dataclasses.is_dataclass(kind):
            return self._record(kind, where)
        if typing.is_typeddict(kind):
            return self._record(kind, where)
        if issubclass(kind, enum.Enum):
            return self._constants([(m.value, m) for m in kind], kind, where)
        if kind is list or kind is tuple:
            return Items(self._any(), kind)
        if kind is dict:
            return Names(self._any())
        raise self._refused(kind, where)

    def _generic(self, kind: Any, where: str) -> Shape:
        origin, args = get_origin(kind), get_args(kind)
        if origin is Literal:
            return self._constants([_as_constant(arg) for arg in args], kind, where)
        if origin in (typing.Union, types.UnionType):
            return OneOf([self.shape(a, f"{where}: {_name(a)}") for a in args])
        if origin is typing.Annotated:
            return self._annotated(args[0], args[1:], kind, where)
        if origin in _WRAPPERS:
            return self.shape(args[0], where)
        if origin is list:
            return Items(self.shape(args[0], f"{where}[]"))
        if origin is dict:
            if args[0] is not str:
                raise self._refused(kind, where, "JSON has text keys only")
            return Names(self.shape(args[1], f"{where}[]"))
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return Items(self.shape(args[0], f"{where}[]"), tuple)
            return Row([self.shape(a, f"{where}[{i}]") for i, a in enumerate(args)])
        raise self._refused(kind, where)

    def _annotated(self, kind: Any, notes: tuple[Any, ...], whole: Any, where: str) -> Shape:
        for note in notes:
            if not isinstance(note, str):
                reason = f"{note!r} would not be enforced; only a description is understood"
                raise self._refused(whole, where, reason)
        return Described(self.shape(kind, where), " ".join(notes))

    def _constants(self, pairs: list[tuple[Any, Any]], kind: Any, where: str) -> Shape:
        for constant, _ in pairs:
            if not isinstance(constant, str | int | float | None):
                raise self._refused(kind, where, f"{constant!r} has no JSON")
        if not pairs:
            raise self._refused(kind, where, "it has no members")
        return Constants(tuple(pairs))

    def _any(self) -> Shape:
        shape = AnyJson("json.any")  # no class is called so
        self._defs[shape.name] = shape.definition
        return shape

    def _record(self, kind: Any, where: str) -> Shape:
        record = self._records.get(kind)
        if record is not None:
            if kind in self._open and not record.name:
                record.name = self._fresh(kind.__name__)
                self._defs[record.name] = record.definition
            return record
        record = self._records[kind] = Record(kind)
        self._open.add(kind)
        try:
            hints = typing.get_type_hints(kind, include_extras=True)
        except NameError as error:
            raise self._refused(kind, where, str(error)) from error
        for name, required in self._fields(kind, hints, where):
            record.fields[name] = self.shape(hints[name], f"{where}.{name}")
            if required:
                record.required.append(name)
        self._open.discard(kind)
        return record

    def _fields(self, kind: Any, hints: Mapping[str, Any], where: str) -> list[tuple[str, bool]]:
        """(name, whether it is required) of what a class is made of."""
        if typing.is_typeddict(kind):
            # Where annotations are texts, __required_keys__ knows nothing of the wrappers.
            by_class: frozenset[str] = kind.__required_keys__
            wrapped = {name: _requires(hint) for name, hint in hints.items()}
            return [(n, n in by_class if own is None else own) for n, own in wrapped.items()]
        if hasattr(kind, "__pydantic_fields__"):
            reason = "constraints of its fields would not be enforced: make it a BaseModel"
            raise self._refused(kind, where, reason)
        missing = dataclasses.MISSING
        found = [
            (f.name, f.default is missing and f.default_factory is missing)
            for f in dataclasses.fields(kind)
            if f.init
        ]
        if {name for name, _ in found} != inspect.signature(kind).parameters.keys():
            raise self._refused(kind, where, "it is not made from its fields alone")
        return found

    def _model(self, kind: Any) -> Shape:
        if kind in self._models:
            return self._models[kind]
        prefix = self._fresh(kind.__name__)
        schema = kind.model_json_schema(ref_template=f"#/$defs/{prefix}_{{model}}")
        for name, part in schema.pop("$defs", {}).items():
            self._defs[f"{prefix}_{name}"] = functools.partial(dict, part)
        self._models[kind] = Model(kind, schema)
        return self._models[kind]

    def _fresh(self, name: str) -> str:
        name = re.sub("[^A-Za-z0-9_]", "_", name)
        taken = sum(known.startswith(name) for known in self._defs)
        return f"{name}_{taken}" if taken else name

    def _refused(self, kind: Any, where: str, reason: str = "") -> ProgramError:
        part = "" if where == self._whole else f" ({where})"
        because = f": {reason}" if reason else ""
        return ProgramError(f"no constraint for the type {_name(kind)}{part}{because}", part=where)


def _requires(hint: Any) -> bool | None:
    """Whether a key's own wrapper says that it is required; None: it says nothing."""
    while (origin := get_origin(hint)) in (typing.Annotated, *_WRAPPERS):
        if origin in (typing.Required, typing.NotRequired):
            return origin is typing.Required
        hint = get_args(hint)[0]
    return None


def _as_constant(given: Any) -> tuple[Any, Any]:
    """(as JSON, as it is) of an argument of ``Literal``."""
    return (given.value, given) if isinstance(given, enum.Enum) else (given, given)


def _name(kind: Any) -> str:
    plain = isinstance(kind, type) and not get_args(kind)
    return kind.__name__ if plain else str(kind).replace("typing.", "")

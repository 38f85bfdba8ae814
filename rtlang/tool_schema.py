"""A function's parameters as a JSON schema, and a call's JSON as their values."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from rtlang.errors import ProgramError
from rtlang.grammar.python_types import PythonType
from rtlang.tool_docs import Documented

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Parameters:
    """``schema``: of an object with the parameters as members, nothing else; those that have a
    default may be left out."""

    def __init__(
        self, function: Callable[..., Any], documented: Documented, *, skip_first: bool = False
    ) -> None:
        """Raises ``ProgramError``, which names the parameter, for one that a call cannot give."""
        hints = _hints(function)
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        required: list[str] = []
        self._types: dict[str, PythonType] = {}
        for parameter in _signature(function)[1 if skip_first else 0 :]:
            name = parameter.name
            if parameter.kind not in _BY_NAME:
                raise ProgramError(f"parameter {name!r} cannot be given by its name")
            if name not in hints:
                raise ProgramError(f"parameter {name!r} has no annotation")
            kind, description = _annotated(hints[name])
            description = description or documented.parameters.get(name, "")
            made = _type(name, kind)
            properties[name] = _schema(name, made, definitions)
            if description:
                properties[name] = {"description": description, **properties[name]}
            if parameter.default is inspect.Parameter.empty:
                required.append(name)
            self._types[name] = made
        self.schema: dict[str, Any] = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        if definitions:
            self.schema["$defs"] = definitions

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the function is called with. Raises what a type says of a wrong value."""
        for name in arguments:
            if name not in self._types:
                raise ProgramError(f"there is no parameter {name!r}")
        return {name: self._types[name].value(value) for name, value in arguments.items()}


def _type(name: str, kind: Any) -> PythonType:
    try:
        return PythonType(kind)
    except ProgramError as error:
        raise ProgramError(f"parameter {name!r}: {error.message}") from error


def _schema(name: str, made: PythonType, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one parameter; what it defines moves to where references look for it."""
    schema = dict(made.schema)
    for key, definition in schema.pop("$defs", {}).items():
        if definitions.setdefault(key, definition) != definition:
            raise ProgramError(f"parameter {name!r}: another type is called {key!r}, too")
    return schema


def _annotated(hint: Any) -> tuple[Any, str]:
    """(the type, the first text beside it in an ``Annotated``)."""
    if typing.get_origin(hint) is not Annotated:
        return hint, ""
    kind, *rest = typing.get_args(hint)
    return kind, next((text for text in rest if isinstance(text, str)), "")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    plain: Any = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not inspect.isroutine(plain):
        plain = type(plain).__call__
    try:
        return typing.get_type_hints(plain, include_extras=True)
    except Exception as error:  # an annotation is code: it may raise anything
        raise ProgramError(f"its annotations cannot be read: {error}") from error


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ProgramError(f"its parameters cannot be read: {error}") from error

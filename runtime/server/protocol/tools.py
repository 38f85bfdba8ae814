"""Tools of a request, and which of them the model may or must call."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.errors import InvalidParameter, Unsupported

#: Names go into grammars and into JSON texts as they are.
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """``schemas``: as chat templates take them. ``parameters``: name -> JSON schema.
    ``choice``: "none", "auto", "required" or a tool's name."""

    schemas: Sequence[Mapping[str, Any]] = ()
    parameters: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    choice: str = "none"

    @property
    def forced(self) -> bool:
        return self.choice not in ("none", "auto")


def read_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> Tools:
    """From OpenAI's fields. Raises ``InvalidParameter`` for a choice that the tools cannot meet,
    and ``Unsupported`` for tools that are no functions."""
    schemas: list[Mapping[str, Any]] = []
    parameters: dict[str, Mapping[str, Any]] = {}
    for at, tool in enumerate(tools):
        schema = _schema(f"tools[{at}]", tool)
        name = schema["function"]["name"]
        if name in parameters:
            raise InvalidParameter(f"two tools are called {name!r}", param=f"tools[{at}]")
        schemas.append(schema)
        parameters[name] = schema["function"]["parameters"]
    return Tools(schemas, parameters, _choice(choice, parameters))


def _schema(where: str, tool: Any) -> dict[str, Any]:
    kind = tool.get("type", "function") if isinstance(tool, Mapping) else None
    if kind is not None and kind != "function":
        raise Unsupported(f"{where}: tools of type {kind!r} are not built", param=where)
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidParameter(f"{where} has no function", param=where)
    for name in function:
        if name not in ("name", "description", "parameters", "strict"):
            raise InvalidParameter(f"unknown field {name!r} in {where}.function", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = "needs a name of 1 to 128 letters, digits and _ . : -"
        raise InvalidParameter(f"{where}.function {text}, not {name!r}", param=where)
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidParameter(f"{where}.function.description is no text", param=where)
    schema = function.get("parameters")
    schema = _NO_PARAMETERS if schema is None else schema
    if not isinstance(schema, Mapping):
        raise InvalidParameter(f"{where}.function.parameters is no JSON schema", param=where)
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidParameter(f"{where}.function.strict is neither true nor false", param=where)
    inner = {"name": name, "description": description or "", "parameters": dict(schema)}
    return {"type": "function", "function": inner}


def _choice(choice: Any, parameters: Mapping[str, Any]) -> str:
    if isinstance(choice, Mapping):
        return _named(choice, parameters)
    if choice not in ("none", "auto", "required"):
        text = f"tool_choice is none, auto, required or a function, not {choice!r}"
        raise InvalidParameter(text, param="tool_choice")
    if choice == "required" and not parameters:
        raise InvalidParameter(
            "tool_choice is required, and there are no tools", param="tool_choice"
        )
    return choice if parameters else "none"


def _named(choice: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    if choice.get("type") != "function":
        kind = choice.get("type")
        raise Unsupported(f"a tool_choice of type {kind!r} is not built", param="tool_choice")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in parameters:
        known = ", ".join(parameters) or "there are none"
        text = f"tool_choice names {name!r}, none of the tools ({known})"
        raise InvalidParameter(text, param="tool_choice")
    if name in ("none", "auto", "required"):
        raise InvalidParameter(f"a tool called {name!r} cannot be chosen", param="tool_choice")
    return name

"""Tools: functions that a model may call, and how it may call them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, overload

from rtlang import tool_docs
from rtlang.errors import InvalidParameter, ProgramError
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.runtime.tools.describe import describe
from rtlang.runtime.tools.formats import PLAIN, ToolFormat
from rtlang.tool_loop import ToolLoop
from rtlang.tool_plan import ToolPlan
from rtlang.tool_schema import Parameters

Choice = Literal["auto", "required", "none"]
OnError = Literal["feed", "raise"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclasses.dataclass(frozen=True, eq=False)
class Tool:
    """A function that a model may call. ``tool`` makes it; called itself, it is the function.

    name         what the model calls it
    description  what the model is told of it
    function     sync (each call runs in a thread of its own) or async (in the background loop)
    parameters   their JSON schema, from the annotations
    """

    name: str
    description: str
    function: Callable[..., Any] = dataclasses.field(repr=False)
    is_method: bool = dataclasses.field(default=False, repr=False)
    _parameters: Parameters = dataclasses.field(kw_only=True, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, owner: object | None, kind: type | None = None) -> Tool:
        """A tool that is a method, taken from an object."""
        if owner is None or not self.is_method:
            return self
        bound = types.MethodType(self.function, owner)
        return dataclasses.replace(self, function=bound, is_method=False)

    @property
    def parameters(self) -> dict[str, Any]:
        return self._parameters.schema

    @property
    def schema(self) -> dict[str, Any]:
        """As chat templates, and the APIs of others, take it."""
        about = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**about, "parameters": self.parameters}}

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A call's JSON arguments as what the function takes."""
        return self._parameters.values(arguments)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
) -> Any:
    """Make a tool of a function or method, sync or async; also a decorator.

    Its name, the docstring's summary and what the docstring says of the parameters (Google, NumPy
    or reST style, or texts in ``Annotated``) are for the model. Every parameter is annotated; one
    with a default may be left out of a call. Raises ``ProgramError`` for what cannot be a tool.
    """
    if function is None:
        return functools.partial(_made, name=name, description=description)
    return _made(function, name=name, description=description)


def _made(function: Callable[..., Any], *, name: str | None, description: str | None) -> Tool:
    if isinstance(function, Tool | type) or not callable(function):
        raise ProgramError(f"a tool is made of a function, not of {function!r}")
    found = name if name is not None else getattr(function, "__name__", "")
    if not isinstance(found, str) or not _NAME.fullmatch(found):
        raise ProgramError(
            f"{found!r} cannot be a tool's name: letters, digits, _, . and - (64 at most, no digit "
            "first); give one with tool(name=...)"
        )
    documented = tool_docs.read(inspect.getdoc(function) if _has_doc(function) else None)
    is_method = _is_method(function)
    try:
        parameters = Parameters(function, documented, skip_first=is_method)
    except ProgramError as error:
        raise ProgramError(f"tool {found!r}: {error.message}") from error
    text = documented.summary if description is None else description
    return Tool(found, text, function, is_method, _parameters=parameters)


def _has_doc(function: Callable[..., Any]) -> bool:
    """Not an object's: its class documents the class."""
    return inspect.isroutine(function)


def _is_method(function: Callable[..., Any]) -> bool:
    """Whether it is a function in a class's body, whose first parameter is the object."""
    if not inspect.isfunction(function):
        return False
    outer = function.__qualname__.rpartition(".")[0]
    first = next(iter(function.__code__.co_varnames[: function.__code__.co_argcount]), "")
    in_class = bool(outer) and not outer.endswith("<locals>")
    return in_class and first == "self" and first not in function.__annotations__


@dataclasses.dataclass(frozen=True, eq=False)
class Tools:
    """What ``gen(tools=...)`` may call, and how; a plain list of functions has the defaults.

    tools          functions, or what ``tool`` made of them
    choice         "auto": text or calls; "required": the first turn calls; "none": no calls; or
                   the tool that the first turn calls. Turns after the first are "auto"
    max_rounds     turns that may call; one more raises ``ToolLoopLimit``
    on_error       what a failing tool does: "feed" tells the model, "raise" raises ``ToolError``
    parallel       whether one turn may hold several calls (they run at the same time)
    timeout        seconds for one call of a tool, then it has failed; None: any. A sync function
                   cannot be stopped: its thread goes on, its result is dropped
    format         how calls are written; None: as the model's chat template says, else ``PLAIN``
    result_format  a result as text for the model, with {name} and {result}; None: the bare result
                   where the template has a role for tools, else between <tool_response> tags
    """

    tools: Iterable[Tool | Callable[..., Any]]
    choice: Choice | str | Tool | Callable[..., Any] = dataclasses.field(
        default="auto", kw_only=True
    )
    max_rounds: int = dataclasses.field(default=8, kw_only=True)
    on_error: OnError = dataclasses.field(default="feed", kw_only=True)
    parallel: bool = dataclasses.field(default=True, kw_only=True)
    timeout: float | None = dataclasses.field(default=None, kw_only=True)
    format: ToolFormat | None = dataclasses.field(default=None, kw_only=True)
    result_format: str | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Raises ``ProgramError`` or ``InvalidParameter`` for what is wrong."""
        object.__setattr__(self, "tools", _as_tools(self.tools))
        _check(self)
        object.__setattr__(self, "choice", self._resolved(self.choice))

    @classmethod
    def of(cls, given: Tools | Iterable[Tool | Callable[..., Any]]) -> Tools:
        return given if isinstance(given, Tools) else cls(given)

    def by_name(self) -> dict[str, Tool]:
        return {one.name: one for one in self.tools if isinstance(one, Tool)}  # all are

    @property
    def only(self) -> Tool | None:
        """The tool that the first turn calls, where ``choice`` is one."""
        return self.choice if isinstance(self.choice, Tool) else None

    def schemas(self) -> list[dict[str, Any]]:
        """Of all tools, as chat templates take them."""
        return [tool.schema for tool in self.by_name().values()]

    def describe(self) -> str:
        """A text for a system prompt, for models whose chat template does not tell of tools."""
        return describe(self.schemas(), self.format or PLAIN)

    def planned(self, params: SamplingParams, tokenizer: Tokenizer, *, chat: bool) -> ToolLoop:
        """For one gen on a model. Raises what ``ToolPlan`` does."""
        return ToolLoop(ToolPlan(self, params, tokenizer, chat=chat))

    def _resolved(self, choice: Any) -> str | Tool:
        names = self.by_name()
        if isinstance(choice, str):
            if choice in ("auto", "required", "none"):
                return choice
            if choice in names:
                return names[choice]
        for one in names.values():
            if choice is one or (not isinstance(choice, Tool) and choice == one.function):
                return one
        raise InvalidParameter(
            f"choice is auto, required, none or one of the tools, not {choice!r}", param="choice"
        )


def _as_tools(given: Any) -> tuple[Tool, ...]:
    if isinstance(given, str) or callable(given) or not isinstance(given, Iterable):
        raise ProgramError(f"tools is a list of functions, not {given!r}")
    found = tuple(one if isinstance(one, Tool) else tool(one) for one in given)
    names = [one.name for one in found]
    if not found:
        raise ProgramError("tools is empty")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProgramError(f"two tools are called {twice!r}: name one with tool(name=...)")
    for one in found:
        if one.is_method:
            raise ProgramError(f"tool {one.name!r} is a method: take it from an object")
    return found


def _check(box: Tools) -> None:
    if type(box.max_rounds) is not int or box.max_rounds < 1:
        raise InvalidParameter(
            f"max_rounds must be at least 1, got {box.max_rounds!r}", param="max_rounds"
        )
    if box.on_error not in ("feed", "raise"):
        raise InvalidParameter(
            f"on_error is 'feed' or 'raise', not {box.on_error!r}", param="on_error"
        )
    if not isinstance(box.parallel, bool):
        raise InvalidParameter(f"parallel is a bool, not {box.parallel!r}", param="parallel")
    seconds = box.timeout
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (number and seconds > 0):
        raise InvalidParameter(
            f"timeout must be a positive number of seconds, got {seconds!r}", param="timeout"
        )
    if box.format is not None and not isinstance(box.format, ToolFormat):
        raise InvalidParameter(f"format is a ToolFormat, not {box.format!r}", param="format")
    wrapper = box.result_format
    if wrapper is not None and (not isinstance(wrapper, str) or "{result}" not in wrapper):
        raise InvalidParameter(
            f"result_format is a text with {{result}} in it, not {wrapper!r}", param="result_format"
        )

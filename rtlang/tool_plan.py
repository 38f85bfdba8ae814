"""ToolPlan: tools as one model writes their calls, turn by turn; made when a gen is appended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from rtlang.errors import ConflictingConstraints, Unsupported
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.runtime.tools.formats import ToolCall, ToolFormat, grammar, read_calls
from rtlang.runtime.tools.style import chosen_format, lead_ids, style_of

if TYPE_CHECKING:
    from rtlang.tools import Tool, Tools

#: Around results where no template has a role for them.
_TAGGED = "<tool_response>\n{result}\n</tool_response>"


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the model. ``names``: of the tools that it may call; ``lead``: what it begins
    with, put there by us (ids and text)."""

    params: SamplingParams
    format: ToolFormat
    names: tuple[str, ...] = ()
    required: bool = False
    lead: tuple[int, ...] = ()
    lead_text: str = ""

    def calls(self, text: str) -> list[ToolCall]:
        """The calls that the whole turn's text holds. Raises ``BadCall``."""
        if not self.names:
            return []
        return read_calls(text, self.format, self.names, required=self.required)


class ToolPlan:
    """Everything that can be wrong with a gen's tools is raised when it is made."""

    def __init__(
        self, tools: Tools, params: SamplingParams, tokenizer: Tokenizer, *, chat: bool
    ) -> None:
        """``params``: of the model's turns, but for the constraint, which is made here.

        Raises ``Unsupported`` for a format that this tokenizer cannot have,
        ``ConflictingConstraints`` for parameters that contradict it.
        """
        if params.grammar is not None:
            raise ConflictingConstraints("tools constrain the text; it has a constraint already")
        self.tools = tools
        self.by_name: Mapping[str, Tool] = tools.by_name()
        self._params = params
        self._format = chosen_format(tools.format, tokenizer, chat=chat)
        self._lead = tuple(lead_ids(self._format, tokenizer))
        style = style_of(tokenizer) if chat else None
        self.describes = style is not None and style.describes
        self.role = style.role if style is not None else ""
        if self._lead and tools.choice == "auto":
            raise Unsupported(
                f"{self._format.trigger!r} is a control token of this model, and constraints are "
                "on text: with it a turn can be made to call (choice='required'), not be free to",
                param="tools",
            )
        self._first = self._turn(first=True)
        self._later = self._turn(first=False)

    def turn(self, number: int) -> Turn:
        """The ``number``-th turn, from 0."""
        return self._later if number else self._first

    def result_text(self, name: str, result: str) -> str:
        """A result as the model reads it."""
        wrapper = self.tools.result_format
        if wrapper is None:
            wrapper = "{result}" if self.role == "tool" else _TAGGED
            wrapper = wrapper if self.role else f"\n{wrapper}\n"
        # What the result spells is no placeholder.
        return result.join(part.replace("{name}", name) for part in wrapper.split("{result}"))

    def _turn(self, *, first: bool) -> Turn:
        choice = self.tools.choice
        required = first and choice not in ("auto", "none")
        if choice == "none" or (self._lead and not required):
            return Turn(self._params, self._format)
        only = self.tools.only
        names = (only.name,) if required and only is not None else tuple(self.by_name)
        constraint = grammar(
            self._format,
            {name: self.by_name[name].parameters for name in names},
            required=required,
            parallel=self.tools.parallel,
            led=bool(self._lead),
        )
        return Turn(
            msgspec.structs.replace(self._params, grammar=constraint),
            self._format,
            names,
            required,
            self._lead,
            self._format.trigger if self._lead else "",
        )

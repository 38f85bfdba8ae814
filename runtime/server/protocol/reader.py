"""Reader: how one model's answers are read, and which parsers it needs for that."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.errors import Unsupported
from rtlang.runtime.parsers.events import Content, Event, OutputParser
from rtlang.runtime.parsers.registry import (
    detect,
    make_parser,
    shows_control,
)
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.runtime.tools.describe import FORMATS, places_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How answers are read: arguments of ``make_parser``."""

    tool_parser: str | None = None
    reasoning_parser: str | None = None
    lead: str = ""
    in_reasoning: bool = False
    control: Sequence[str] = ()
    parameters: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def verbatim(self) -> bool:
        """Every character of an answer is content."""
        return self.tool_parser is None and self.reasoning_parser is None

    def parser(self) -> OutputParser:
        if self.verbatim:
            return _Verbatim()
        return make_parser(
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            tool_names=tuple(self.parameters),
            lead=self.lead,
            in_reasoning=self.in_reasoning,
            control=self.control,
            schemas=self.parameters,
        )


class _Verbatim:
    """Reads answers of which every character is content."""

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self) -> list[Event]:
        return []


@dataclasses.dataclass(frozen=True, slots=True)
class Parsers:
    """Of one model, by name; None: it is not known how it marks these."""

    tool: str | None
    reasoning: str | None


def parsers_of(config: ServerConfig, tokenizer: Tokenizer) -> Parsers:
    """The configured ones, or what the chat template shows."""
    auto = "auto" in (config.tool_parser, config.reasoning_parser)
    tool, reasoning = detect(tokenizer) if auto else (None, None)
    return Parsers(
        _configured(config.tool_parser, tool), _configured(config.reasoning_parser, reasoning)
    )


def _configured(name: str, auto: str | None) -> str | None:
    return auto if name == "auto" else None if name == "none" else name


def tool_parser_of(own: Parsers, tokenizer: Tokenizer) -> str:
    """Where the template has no place for tools they are told in words, with a sample."""
    if not places_of(tokenizer).schemas:
        return own.tool if own.tool is not None and own.tool in FORMATS else "hermes"
    if own.tool is None:
        raise Unsupported(
            "how this model writes tool calls is not known: start the server with tool_parser",
            param="tools",
        )
    return own.tool


def needs_control(reader: Reader, tokenizer: Tokenizer) -> bool:
    if reader.verbatim:
        return False
    return shows_control(reader.tool_parser, reader.reasoning_parser, tokenizer)


def control_of(tokenizer: Tokenizer) -> list[str]:
    table = tokenizer.token_bytes
    return [table[i].decode(errors="replace") for i in sorted(tokenizer.special_ids)]

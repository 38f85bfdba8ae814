"""Constraint: a grammar that makes a model call tools, and the parser that reads the calls."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from rtlang.errors import InvalidParameter, Unsupported
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.parsers import harmony, qwen_xml
from rtlang.runtime.parsers.thinking import MISTRAL_THINK, THINK
from rtlang.runtime.parsers.xml_grammar import xml_turn
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.runtime.tools.formats import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    JSON_CALL,
    JSON_CALLS,
    LLAMA,
    MISTRAL,
    PLAIN,
    Node,
    ToolFormat,
    as_grammar,
    literal,
    sequence,
    turn,
)
from rtlang.runtime.tools.style import lead_ids

_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": PLAIN,
    "qwen": PLAIN,
    "llama3": LLAMA,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
}
_NAME = re.compile(r'[^\s"\\<>{}\[\]|\uff5c]{1,128}')
#: Where a forced answer of gpt-oss is put: text, on the channel that users see.
_FINAL = f"{harmony.CHANNEL}final{harmony.MESSAGE}"

Tools = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Constraint:
    """grammar: of the generated text; parser: the tool parser that reads it; lead: how the
    answer begins, put into the prompt by the caller (text and ids), "" and () if it is nothing.
    """

    grammar: GrammarSpec
    parser: str
    lead: str
    lead_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Reasoning:
    """The reasoning's markers; ``opened``: the first is in the prompt; ``is_text``: they can be
    generated under a constraint, which is on text."""

    markers: tuple[str, str]
    opened: bool
    is_text: bool

    def before(self, node: Node) -> Node:
        """Reasoning, if there is any, then ``node``."""
        begin, end = self.markers
        gap: Node = {"type": "regex", "pattern": "\\n{0,2}"}
        thought = [{"type": "any_text", "excludes": [end]}, literal(end), gap]
        if not self.opened:
            thought = [sequence([literal(begin), *thought], kind="optional")]
        return sequence([*thought, node])


def tool_grammar(
    tool_parser: str,
    tools: Tools,
    *,
    choice: str,
    parallel: bool,
    tokenizer: Tokenizer,
    reasoning_parser: str | None = None,
    in_reasoning: bool = False,
) -> Constraint | None:
    """What a request with tools generates under; None: free text will do, or is all there is.

    tools             name -> JSON schema of the parameters, an object's
    choice            "auto": text or calls; where the format has control tokens, no constraint.
                      "required": calls alone; or the name of the one tool that is called
    parallel          whether there may be several calls
    reasoning_parser  with it, reasoning may come before the calls, where that is text; where it
                      is not and ``in_reasoning``, the lead ends it

    Give ``make_parser`` the constraint's parser and lead, and the same ``reasoning_parser`` and
    ``in_reasoning``; and the tools as ``schemas``. Raises ``InvalidParameter`` for tools that
    cannot be enforced, or a choice that is none of them.
    """
    known = _checked(tools, choice)
    reasoning = _reasoning(reasoning_parser, tokenizer, opened=in_reasoning)
    if choice == "auto":
        return _free(tool_parser, known, reasoning, tokenizer, parallel=parallel)
    chosen = known if choice == "required" else {choice: known[choice]}
    parser, lead = tool_parser, ""
    node = _own_calls(tool_parser, chosen, tokenizer, required=True, parallel=parallel)
    if node is None:
        parser = "json"
        form = JSON_CALLS if parallel else JSON_CALL
        node = turn(form, chosen, required=True, parallel=parallel)
        lead = _channel(tool_parser, tokenizer, in_reasoning=in_reasoning)
    elif tool_parser in _FORMATS and lead_ids(_FORMATS[tool_parser], tokenizer):
        lead = _FORMATS[tool_parser].trigger
    if reasoning is not None:
        if reasoning.is_text and not lead:
            node = reasoning.before(node)
        elif reasoning.opened:
            lead = f"\n{reasoning.markers[1]}\n\n{lead}"
    ids = tokenizer.encode(lead, add_bos=False) if lead else []
    return Constraint(as_grammar(node), parser, lead, tuple(ids))


def _free(
    tool_parser: str,
    tools: Tools,
    reasoning: _Reasoning | None,
    tokenizer: Tokenizer,
    *,
    parallel: bool,
) -> Constraint | None:
    """Text, and calls as the tools' schemas say, where all of that can be generated."""
    if reasoning is not None and not reasoning.is_text:
        return None
    form = _FORMATS.get(tool_parser)
    if form is not None and _is_writable(form, tokenizer) and lead_ids(form, tokenizer):
        return None
    node = _own_calls(tool_parser, tools, tokenizer, required=False, parallel=parallel)
    if node is None:
        return None
    node = node if reasoning is None else reasoning.before(node)
    return Constraint(as_grammar(node), tool_parser, "", ())


def _own_calls(
    tool_parser: str, tools: Tools, tokenizer: Tokenizer, *, required: bool, parallel: bool
) -> Node | None:
    """A turn in the parser's own format; None where it cannot be enforced."""
    if tool_parser == "qwen_xml":
        special = tokenizer.special_ids
        if not special.isdisjoint(tokenizer.encode("".join(qwen_xml.MARKERS), add_bos=False)):
            return None
        return xml_turn(tools, required=required, parallel=parallel)
    form = _FORMATS.get(tool_parser)
    if form is None or not _is_writable(form, tokenizer):
        return None
    led = bool(lead_ids(form, tokenizer))
    return turn(form, tools, required=required, parallel=parallel, led=led)


def _is_writable(form: ToolFormat, tokenizer: Tokenizer) -> bool:
    """Whether no control token is in it, but for its trigger."""
    try:
        lead_ids(form, tokenizer)
    except Unsupported:
        return False
    return True


def _channel(tool_parser: str, tokenizer: Tokenizer, *, in_reasoning: bool) -> str:
    """What gpt-oss has before any text."""
    if tool_parser != "gpt_oss":
        return ""
    ids = tokenizer.encode(_FINAL, add_bos=False)
    if tokenizer.special_ids.isdisjoint(ids):
        return ""
    return f"<|end|>{harmony.START}assistant{_FINAL}" if in_reasoning else _FINAL


def _reasoning(name: str | None, tokenizer: Tokenizer, *, opened: bool) -> _Reasoning | None:
    if name is None or name == "gpt_oss":
        return None
    markers = MISTRAL_THINK if name == "mistral" else THINK
    ids = tokenizer.encode("".join(markers), add_bos=False)
    return _Reasoning(markers, opened, tokenizer.special_ids.isdisjoint(ids))


def _checked(tools: Tools, choice: str) -> dict[str, Mapping[str, Any]]:
    """The tools with schemas that say that arguments are objects."""
    if not tools:
        raise InvalidParameter("there are no tools to call", param="tools")
    if choice not in ("auto", "required") and choice not in tools:
        raise InvalidParameter(f"{choice!r} is none of the tools", param="tool_choice")
    found: dict[str, Mapping[str, Any]] = {}
    for name, schema in tools.items():
        if not _NAME.fullmatch(name):
            raise InvalidParameter(f"{name!r} cannot be the name of a tool", param="tools")
        if schema.get("type", "object") != "object":
            raise InvalidParameter(
                f"the parameters of {name!r} are an object, not {schema['type']!r}", param="tools"
            )
        found[name] = {"type": "object", **schema}
    return found

"""Which texts a chat's answer may be: calls as the request says, and what is thought before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rtlang.errors import Unsupported
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.parsers.registry import opens_reasoning, tool_grammar
from rtlang.runtime.parsers.thinking import THINK
from rtlang.runtime.server.protocol.reader import Reader
from rtlang.runtime.server.protocol.response_format import as_format, tagged
from rtlang.runtime.server.protocol.tools import Tools
from rtlang.runtime.tokenizer import Tokenizer

#: Behind the second a model that thinks has thought; its answer follows after white space.
_BEGIN_OF_THOUGHT, _END_OF_THOUGHT = THINK


@dataclasses.dataclass(frozen=True, slots=True)
class Thinking:
    """``parser``: how the model marks what it thinks, None: it does not. ``opened``, ``closed``:
    the prompt holds the beginning, or all of it (nothing will be thought)."""

    parser: str | None
    opened: bool
    closed: bool

    @classmethod
    def of(cls, parser: str | None, rendered: str) -> Thinking:
        opened = parser is not None and opens_reasoning(parser, rendered)
        return cls(parser, opened, rendered.rstrip().endswith(_END_OF_THOUGHT))


@dataclasses.dataclass(frozen=True, slots=True)
class Constrained:
    """``lead_ids``: what of the answer is put into the prompt."""

    reader: Reader
    grammar: GrammarSpec | None = None
    lead_ids: Sequence[int] = ()


def with_tools(
    reader: Reader,
    tools: Tools,
    grammar: GrammarSpec | None,
    thinking: Thinking,
    tokenizer: Tokenizer,
    *,
    parallel: bool,
) -> Constrained:
    """With calls enforced as ``tool_choice`` says; ``grammar``: of an answer that is no call."""
    assert reader.tool_parser is not None
    # An answer that must be JSON, or a call: the call's own grammar stands beside the other.
    either = grammar is not None and not tools.forced
    constraint = tool_grammar(
        reader.tool_parser,
        tools.parameters,
        choice="required" if either else tools.choice,
        parallel=parallel,
        tokenizer=tokenizer,
        reasoning_parser=None if either else thinking.parser,
        in_reasoning=not either and thinking.opened,
    )
    if either:
        assert grammar is not None
        if constraint is None or constraint.lead_ids or constraint.parser != reader.tool_parser:
            raise Unsupported(
                "this model's calls cannot be told from a constrained answer: give tools or a "
                "constraint, not both",
                param="response_format",
            )
        nodes = [as_format(constraint.grammar), as_format(grammar)]
        both = tagged({"type": "or", "elements": nodes}, grammar)
        return behind_reasoning(reader, both, thinking, tokenizer)
    if constraint is None:
        assert not tools.forced, tools.choice
        return Constrained(reader)
    reader = dataclasses.replace(reader, tool_parser=constraint.parser, lead=constraint.lead)
    return Constrained(reader, constraint.grammar, constraint.lead_ids)


def behind_reasoning(
    reader: Reader, grammar: GrammarSpec, thinking: Thinking, tokenizer: Tokenizer
) -> Constrained:
    """A constraint is on the answer, not on what the model thinks before it. It is on text, too:
    where the marks of thoughts are control tokens, the model answers at once."""
    if thinking.parser == "gpt_oss":
        ids = tokenizer.encode("<|channel|>final<|message|>", add_bos=False)
        reader = dataclasses.replace(reader, reasoning_parser=None, in_reasoning=False)
        return Constrained(reader, grammar, ids)
    if thinking.parser not in ("qwen3", "deepseek_r1") or thinking.closed:
        return Constrained(reader, grammar)
    marks = tokenizer.encode(_BEGIN_OF_THOUGHT + _END_OF_THOUGHT, add_bos=False)
    if not tokenizer.special_ids.isdisjoint(marks):
        if not thinking.opened:
            return Constrained(reader, grammar)
        lead = f"\n{_END_OF_THOUGHT}\n\n"
        ids = tokenizer.encode(lead, add_bos=False)
        return Constrained(dataclasses.replace(reader, lead=lead), grammar, ids)
    answer = as_format(grammar)
    behind = [
        {"type": "any_text", "excludes": [_END_OF_THOUGHT]},
        {"type": "const_string", "value": _END_OF_THOUGHT},
        {"type": "regex", "pattern": r"\n{0,2}"},
        answer,
    ]
    if thinking.opened:
        return Constrained(reader, tagged({"type": "sequence", "elements": behind}, grammar))
    begun = {"type": "const_string", "value": _BEGIN_OF_THOUGHT}
    whole = {"type": "sequence", "elements": [begun, *behind]}
    return Constrained(reader, tagged({"type": "or", "elements": [answer, whole]}, grammar))

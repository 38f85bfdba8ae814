"""The parsers by name: which fits a model, making one, and what they need to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rtlang.errors import InvalidParameter
from rtlang.runtime.parsers import deepseek, harmony, hermes, mistral, qwen_xml
from rtlang.runtime.parsers.constraint import Constraint, tool_grammar
from rtlang.runtime.parsers.deepseek import DeepSeekReader
from rtlang.runtime.parsers.detection import detect
from rtlang.runtime.parsers.events import OutputParser
from rtlang.runtime.parsers.harmony import HarmonyReader
from rtlang.runtime.parsers.hermes import HermesReader
from rtlang.runtime.parsers.mistral import MistralReader
from rtlang.runtime.parsers.pipeline import Pipeline
from rtlang.runtime.parsers.plain_json import JsonReader, Llama3Reader
from rtlang.runtime.parsers.qwen_xml import QwenXmlReader, Schemas
from rtlang.runtime.parsers.scanning import MarkerFilter
from rtlang.runtime.parsers.thinking import MISTRAL_THINK, THINK, ThinkReader
from rtlang.runtime.tokenizer import Tokenizer

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "Constraint",
    "detect",
    "make_parser",
    "opens_reasoning",
    "shows_control",
    "tool_grammar",
]

_CALLS: Mapping[str, Callable[[Sequence[str], Schemas], OutputParser]] = {
    "hermes": lambda names, _: HermesReader(names),
    "qwen": lambda names, _: HermesReader(names),
    "qwen_xml": QwenXmlReader,
    "llama3": lambda names, _: Llama3Reader(names),
    "mistral": lambda names, _: MistralReader(names),
    "deepseek_v3": lambda names, _: DeepSeekReader(names, fenced=True),
    "deepseek_v31": lambda names, _: DeepSeekReader(names, fenced=False),
    "gpt_oss": lambda names, _: HarmonyReader(names, reasoning=False, in_reasoning=False),
    "json": lambda names, _: JsonReader(names),
}
_THINK: Mapping[str, tuple[str, str]] = {
    "qwen3": THINK,
    "deepseek_r1": THINK,
    "mistral": MISTRAL_THINK,
}
#: What a parser must see, for which models that use it may have control tokens.
_CALL_MARKERS: Mapping[str, Sequence[str]] = {
    "hermes": hermes.MARKERS,
    "qwen": hermes.MARKERS,
    "qwen_xml": qwen_xml.MARKERS,
    "llama3": (),
    "mistral": mistral.MARKERS,
    "deepseek_v3": deepseek.MARKERS,
    "deepseek_v31": deepseek.MARKERS,
    "gpt_oss": harmony.MARKERS,
    "json": (),
}
#: Parsers whose markers are control tokens, as far as is known without a tokenizer.
_ARE_CONTROL = frozenset({"mistral", "deepseek_v3", "deepseek_v31", "gpt_oss"})

TOOL_PARSERS: tuple[str, ...] = tuple(_CALLS)
REASONING_PARSERS: tuple[str, ...] = ("qwen3", "deepseek_r1", "gpt_oss", "mistral")


def make_parser(
    *,
    tool_parser: str | None,
    reasoning_parser: str | None,
    tool_names: Sequence[str],
    lead: str = "",
    in_reasoning: bool = False,
    control: Sequence[str] = (),
    schemas: Schemas | None = None,
) -> OutputParser:
    """A parser for one answer.

    tool_parser       None: calls are content, as are calls of any but the ``tool_names``
    reasoning_parser  None: reasoning is content
    lead              text of the answer that the prompt holds already (``Constraint.lead``): it
                      is read first, and gives no reasoning or content itself
    in_reasoning      the prompt ends inside of the reasoning (``opens_reasoning``)
    control           spellings of the tokenizer's control tokens, where the text shows them
                      (``shows_control``): those that have no meaning for the parser are dropped
    schemas           tool -> JSON schema of its parameters; for values that are not JSON
                      themselves ("qwen_xml": without it they are strings)

    Raises ``InvalidParameter`` for an unknown parser.
    """
    _check(tool_parser, TOOL_PARSERS, "tool_parser")
    _check(reasoning_parser, REASONING_PARSERS, "reasoning_parser")
    assert reasoning_parser is not None or not in_reasoning, "reasoning that nobody would read"
    seen = _markers(tool_parser, reasoning_parser)
    dropped = [one for one in control if one and one not in seen]
    reasoning: OutputParser | None = None
    calls: OutputParser | None = None
    if reasoning_parser == "gpt_oss":
        names = tool_names if tool_parser == "gpt_oss" else ()
        reasoning = HarmonyReader(names, reasoning=True, in_reasoning=in_reasoning)
    elif reasoning_parser is not None:
        reasoning = ThinkReader(_THINK[reasoning_parser], in_reasoning=in_reasoning)
    if tool_parser is not None and not tool_parser == reasoning_parser == "gpt_oss":
        calls = _CALLS[tool_parser](tool_names, schemas or {})
    return Pipeline(MarkerFilter(dropped) if dropped else None, reasoning, calls, lead=lead)


def shows_control(
    tool_parser: str | None, reasoning_parser: str | None, tokenizer: Tokenizer | None = None
) -> bool:
    """Whether the parsers need control tokens in the text (``skip_special_tokens=False``).

    With a tokenizer: whether any of their markers is one there. Without: whether one usually is.
    """
    if tokenizer is None:
        return tool_parser in _ARE_CONTROL or reasoning_parser in ("gpt_oss", "mistral")
    special = tokenizer.special_ids
    return any(
        not special.isdisjoint(tokenizer.encode(marker, add_bos=False))
        for marker in _markers(tool_parser, reasoning_parser)
    )


def opens_reasoning(reasoning_parser: str | None, prompt: str) -> bool:
    """Whether a rendered prompt ends inside of the reasoning, as ``in_reasoning`` means it."""
    if reasoning_parser == "gpt_oss":
        return prompt.endswith(f"{harmony.CHANNEL}analysis{harmony.MESSAGE}")
    return reasoning_parser is not None and prompt.rstrip().endswith(_THINK[reasoning_parser][0])


def _markers(tool_parser: str | None, reasoning_parser: str | None) -> list[str]:
    calls = _CALL_MARKERS[tool_parser] if tool_parser is not None else ()
    if reasoning_parser is None:
        return [*calls]
    return [*calls, *(_THINK.get(reasoning_parser) or harmony.MARKERS)]


def _check(given: str | None, known: Sequence[str], param: str) -> None:
    if given is not None and given not in known:
        raise InvalidParameter(f"{param} is one of {', '.join(known)}, not {given!r}", param=param)

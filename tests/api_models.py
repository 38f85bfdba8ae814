"""Scripted models for tests of the APIs: answers by the last turn of the prompt."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.tokenizer import Message
from rtlang.testing.scripted import Reply, ScriptedModel

_TURN = re.compile(
    r"<\|im_start\|>(?:user|tool)\n((?:(?!<\|im_start\|>).)*)<\|im_end\|>\n", re.DOTALL
)


def answering(answers: Mapping[str, Reply | str], **options: Any) -> ScriptedModel:
    """Answers the text of the last turn of the user (or of a tool); an unknown one fails."""

    def script(prompt: str) -> Reply | str:
        return answers[_TURN.findall(prompt)[-1]]

    return ScriptedModel(script, **options)


def saying(text: str) -> ScriptedModel:
    """Greedily says ``text``, each byte with probability 0.75; "~" has the other 0.25."""
    ids = [*text.encode(), min(ByteTokenizer().eos_ids)]
    marker = list(b"assistant\n")  # the end of every prompt

    def logits(tokens: list[int]) -> dict[int, float]:
        said = len(tokens) - _end_of_last(marker, tokens)
        return {ids[min(said, len(ids) - 1)]: math.log(3), ord("~"): 0.0}

    return ScriptedModel(logits=logits)


#: Log-probabilities of the two bytes that ``next_byte`` knows.
LIKELY, UNLIKELY = math.log(2 / 3), math.log(1 / 3)


def next_byte(tokens: list[int]) -> dict[int, float]:
    """Logits: after any byte the next one, most likely; and "~", which is half as likely."""
    return {(tokens[-1] + 1) % 250: math.log(2.0), ord("~"): 0.0}


def _end_of_last(wanted: list[int], tokens: list[int]) -> int:
    size = len(wanted)
    return next(at for at in range(len(tokens), 0, -1) if tokens[at - size : at] == wanted)


def call_text(name: str, **arguments: Any) -> str:
    """A call as the model writes it."""
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


class ThinkingTokenizer(ByteTokenizer):
    """Its template knows ``enable_thinking`` (false: an empty thought is in the prompt) and
    ``reasoning_effort``, which it tells in the system turn."""

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        thinks = template_kwargs.pop("enable_thinking", True)
        effort = template_kwargs.pop("reasoning_effort", None)
        rest = [{"role": "system", "content": f"effort: {effort}"}] if effort else []
        told = [
            {
                "role": m["role"],
                "content": f"<think>{m['reasoning_content']}</think>{m['content']}"
                if m.get("reasoning_content")
                else m["content"],
            }
            for m in messages
        ]
        text = super().render_chat(
            [*rest, *told],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **template_kwargs,
        )
        return text if thinks or not add_generation_prompt else text + "<think>\n\n</think>\n\n"

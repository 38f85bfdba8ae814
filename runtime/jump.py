"""Jump-forward: tokens of the text that a constraint forces, where they are the tokenizer's own."""

from __future__ import annotations

from rtlang.runtime.req import Req
from rtlang.runtime.tokenizer import Tokenizer

#: Generated tokens before the forced text that are encoded again with it.
TAIL = 8


def forced_ids(req: Req, tokenizer: Tokenizer) -> list[int]:
    """Tokens that continue ``req`` with the text its constraint forces; [] if there is none.

    The tokenizer must make the same tokens of the text before it, and then these; so what is
    appended is what it would make of the whole text. Its last token is left out: the character
    that follows could have merged into it.
    """
    assert req.matcher is not None
    text = req.matcher.jump_text()
    if not text:
        return []
    tail = req.ids[max(req.prompt_len, len(req.ids) - TAIL) :].tolist()
    before = tokenizer.decode(tail, skip_special_tokens=False)
    ids = tokenizer.encode(before + text, add_bos=False, control=False)
    if ids[: len(tail)] != tail:
        return []
    return ids[len(tail) : -1]

"""Server-sent events of OpenAI's endpoints: chunks whose constant parts are written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtlang.errors import RtlangError
from rtlang.runtime.server.http_errors import openai_body
from rtlang.runtime.server.replies import data_event, to_json


def error_event(error: RtlangError) -> bytes:
    """The last event of a stream that has failed; no ``[DONE]`` comes behind it."""
    return data_event(openai_body(error))


class ChunkWriter:
    """Writes ``{..., "choices": [{...}]}`` from JSON texts, for one stream.

    head    what every chunk begins with: id, object, created, model
    usage   True: chunks have ``"usage"``, null where ``usage_of`` gives none
    """

    def __init__(self, head: Mapping[str, Any], *, usage: bool) -> None:
        self._head = b"data: " + to_json(head)[:-1]
        self._null = b',"usage":null' if usage else b""

    def begin(self, index: int) -> bytes:
        """What comes before the fields of a choice; the same for all chunks of it."""
        return self._head + b',"choices":[{"index":' + str(index).encode() + b","

    def end(self, usage: Mapping[str, Any] | None = None, more: bytes = b"") -> bytes:
        """What comes behind the fields of a choice. ``more``: fields of the chunk itself, each
        with a comma before it."""
        told = self._null if usage is None else b',"usage":' + to_json(usage)
        return b"}]" + told + more + b"}\n\n"

    def totals(self, usage: Mapping[str, Any]) -> bytes:
        """The chunk that has no choice."""
        return self._head + b',"choices":[],"usage":' + to_json(usage) + b"}\n\n"

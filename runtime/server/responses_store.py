"""ResponseStore: finished responses that clients may read again and continue, for a while."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rtlang.errors import NotFound

#: Beyond either, the responses that were not used for longest are dropped.
MAX_RESPONSES = 4096
MAX_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class StoredResponse:
    """``key``: name of the API key that made it. ``response``: as it was answered.
    ``messages``: the conversation up to and with its answer, in OpenAI's chat form, without the
    instructions; nobody may change them."""

    key: str
    response: Mapping[str, Any]
    messages: Sequence[dict[str, Any]]


class ResponseStore:
    """In this process' memory. Nobody finds what another key has stored.

    Asynchronous, so that it can move to where several frontends share it.
    """

    def __init__(
        self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES, frontends: int = 1
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._frontends = frontends
        self._stored: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._num_bytes = 0

    async def put(self, stored: StoredResponse) -> None:
        # Conversations share messages, so this counts more than there is, never less.
        size = len(msgspec.json.encode([stored.response, stored.messages]))
        self._stored[stored.response["id"]] = (stored, size)
        self._num_bytes += size
        while self._num_bytes > self._max_bytes or len(self._stored) > self._max_responses:
            self._num_bytes -= self._stored.popitem(last=False)[1][1]

    async def get(self, key: str, response_id: str) -> StoredResponse:
        """Raises ``NotFound``, with what may have happened to it."""
        found = self._stored.get(response_id)
        if found is None or found[0].key != key:
            raise NotFound(self._missing(response_id), param="response_id")
        self._stored.move_to_end(response_id)
        return found[0]

    async def delete(self, key: str, response_id: str) -> None:
        """Raises ``NotFound``."""
        await self.get(key, response_id)
        self._num_bytes -= self._stored.pop(response_id)[1]

    def _missing(self, response_id: str) -> str:
        shown = repr(response_id[:80])
        text = (
            f"there is no response {shown}: it was made with store=false or another key, has "
            f"failed, was deleted, or was dropped to make room (the server keeps "
            f"{self._max_responses} for as long as it runs)"
        )
        if self._frontends > 1:
            text += f"; each of its {self._frontends} frontends knows only its own"
        return text

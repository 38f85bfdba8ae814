"""ChatStream: a chat's answer as events, chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from rtlang.runtime.chunk import Chunk
from rtlang.runtime.job import Ask
from rtlang.runtime.parsers.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)
from rtlang.runtime.server.chat_plan import ChatPlan
from rtlang.runtime.server.generation import Generation
from rtlang.runtime.server.protocol.chat import ChatBody
from rtlang.runtime.server.protocol.counts import Counts
from rtlang.runtime.server.protocol.logprobs import chat_entries, num_shown
from rtlang.runtime.server.protocol.sse import ChunkWriter
from rtlang.runtime.server.replies import DONE, to_json
from rtlang.runtime.server.turns import count_reasoning, finish_reason
from rtlang.runtime.tokenizer import Tokenizer

_OPENING = {"role": "assistant", "content": ""}


class _Choice:
    """One choice, as far as it has come."""

    def __init__(self, plan: ChatPlan, begin: bytes) -> None:
        self.parser = plan.parser()
        self.turn = plan.turn()
        self.begin = begin
        self.ids: list[int] = []
        self.held = ""  # reasoning that is sent at its end

    def content_delta(self, event: Event) -> dict[str, Any] | None:
        """What an event is to a client. The turn has been fed with it already."""
        match event:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallBegin(index, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": self.turn.call(index).id, "type": "function"}
                return {"tool_calls": [{**call, "function": function}]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallEnd():
                return None

    def deltas(self, events: list[Event], *, hold: bool, last: bool) -> list[dict[str, Any]]:
        """``hold``: reasoning is collected, and comes as one delta when it has ended."""
        found: list[dict[str, Any]] = []
        for event in events:
            self.turn.feed([event])
            if hold and isinstance(event, Reasoning):
                self.held += event.text
                continue
            found += self._released()
            delta = self.content_delta(event)
            if delta is not None:
                found.append(delta)
        return found + self._released() if last else found

    def _released(self) -> list[dict[str, Any]]:
        held, self.held = self.held, ""
        return [{"reasoning_content": held}] if held else []


class ChatStream:
    """Makes the events of one call; ``events`` is read once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        body: ChatBody,
        plan: ChatPlan,
        ask: Ask,
        generation: Generation,
        head: Mapping[str, Any],
    ) -> None:
        """``ask``: what was sent; its prompt may be shorter than the plan's."""
        self._tokenizer = tokenizer
        self._body = body
        self._plan = plan
        self._ask = ask
        self._generation = generation
        whole = {**head, "object": "chat.completion.chunk"}
        self._writer = ChunkWriter(whole, usage=body.wants_usage)
        self._counts = Counts([len(ask.ids)])
        self._choices: dict[int, _Choice] = {}
        self._end = b'},"logprobs":null,"finish_reason":null' + self._writer.end()
        # Then a chunk is nothing but its text.
        self._plain = (
            plan.reader.verbatim
            and body.top_num is None
            and not body.return_token_ids
            and not body.wants_running_usage
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        choices, counts = self._choices, self._counts
        async for chunk in self._generation.chunks():
            counts.add_tokens(len(chunk.token_ids))
            choice = choices.get(chunk.choice)
            if self._plain and choice is not None and chunk.finish is None:
                if chunk.text:
                    text = to_json(chunk.text)
                    yield choice.begin + b'"delta":{"content":' + text + self._end
                continue
            parts: list[bytes] = []
            if choice is None:
                choice = choices[chunk.choice] = _Choice(
                    self._plan, self._writer.begin(chunk.choice)
                )
                parts.append(self._opening(choice))
            parts += self._parts(choice, chunk)
            if parts:
                yield b"".join(parts)
        if self._body.wants_usage:
            yield self._writer.totals(counts.payload())
        yield DONE

    def _opening(self, choice: _Choice) -> bytes:
        more = b""
        if self._body.return_token_ids and len(self._choices) == 1:
            more = b',"prompt_token_ids":' + to_json(list(self._ask.ids))
        fields = {"delta": _OPENING, "logprobs": None, "finish_reason": None}
        return self._write(choice, fields, more)

    def _parts(self, choice: _Choice, chunk: Chunk) -> list[bytes]:
        last = chunk.finish is not None
        events = choice.parser.feed(chunk.text)
        if last:
            events = [*events, *choice.parser.finish()]
        choice.ids += chunk.token_ids
        hold = self._body.stream_reasoning is False
        deltas = choice.deltas(events, hold=hold, last=last)
        logprobs = self._logprobs(chunk)
        ids = chunk.token_ids if self._body.return_token_ids else None
        if not deltas and (logprobs is not None or ids):
            deltas.append({"content": ""})
        parts: list[bytes] = []
        for delta in deltas:
            fields: dict[str, Any] = {
                "delta": delta,
                "logprobs": logprobs,
                "finish_reason": None,
            }
            if ids is not None:
                fields["token_ids"] = ids
            parts.append(self._write(choice, fields))
            logprobs, ids = None, [] if ids is not None else None
        if last:
            parts.append(self._finish(choice, chunk))
        return parts

    def _finish(self, choice: _Choice, chunk: Chunk) -> bytes:
        assert chunk.finish is not None and chunk.usage is not None
        reasoning = count_reasoning(self._tokenizer.token_bytes, choice.ids, choice.turn)
        self._counts.ended(chunk.index, chunk.usage, reasoning)
        fields: dict[str, Any] = {
            "delta": {},
            "logprobs": None,
            "finish_reason": finish_reason(chunk.finish, choice.turn),
            "matched_stop": chunk.finish.matched,
        }
        return self._write(choice, fields)

    def _logprobs(self, chunk: Chunk) -> dict[str, Any] | None:
        top = self._body.top_num
        entries = chunk.logprobs or []
        if top is None or not entries:
            return None
        shown = entries[: num_shown(len(entries), chunk.finish, self._ask.params)]
        if not shown:
            return None
        return {"content": chat_entries(self._tokenizer, shown, top), "refusal": None}

    def _write(self, choice: _Choice, fields: Mapping[str, Any], more: bytes = b"") -> bytes:
        usage = self._counts.payload() if self._body.wants_running_usage else None
        return choice.begin + to_json(fields)[1:-1] + self._writer.end(usage, more)

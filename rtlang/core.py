"""Core: a state's content, and the execution of what a program appends to it."""

from __future__ import annotations

import dataclasses
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rtlang import loop
from rtlang.backends.base import Call, Stream
from rtlang.calls import Branch, Caller
from rtlang.chat import ChatPrompt, check_template
from rtlang.choices import draw, option_probs
from rtlang.errors import ProgramError
from rtlang.ir import (
    Expr,
    Gen,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    SetVar,
    Text,
    ToolGen,
)
from rtlang.messages_prompt import MessagesPrompt
from rtlang.meta import gen_meta, select_meta
from rtlang.outcome import OneOption, values
from rtlang.plan import Op, Outline, Slot
from rtlang.prompt import Prompt, RawPrompt
from rtlang.run import Run
from rtlang.runtime.result import GenerateResult
from rtlang.scoring import Scoring
from rtlang.usage import CallUsage
from rtlang.where import Where

if TYPE_CHECKING:
    from rtlang.tool_plan import Turn


@dataclasses.dataclass(frozen=True, slots=True)
class ForkPoint(Expr):
    """The place in a parent's operations where its branches begin."""

    children: tuple[Core, ...]


class Core:
    """Appended operations run in order, in the background loop; one task, only while there is
    work. A branch is not born, and runs nothing, before its parent has come to the fork.

    ``slots`` and ``outline`` change at the append; the rest when the operation is executed.
    Everything is guarded by the run's lock.
    """

    def __init__(self, run: Run, parent: Core | None = None, path: tuple[int, ...] = ()) -> None:
        self.run = run
        self.outline: Outline = parent.outline.copy() if parent else Outline()
        self.outline.path = path
        self.slots: dict[str, Slot] = dict(parent.slots) if parent else {}
        self.assigned: dict[str, None] = {}  # names set since the fork, in order
        self.calls: list[CallUsage] = []
        self.prompt: Prompt = RawPrompt(run.tokenizer) if run.takes_ids else MessagesPrompt()
        self.feed: list[str] = []  # all text, for whoever streams it
        self.error: BaseException | None = None
        self.error_seen = False
        self.finished_at: int | None = None  # order in which states came to rest
        self._scopes: dict[str, int] = {}  # open var_scope -> pieces of text before it
        self._queue: deque[Op] = deque()
        self._current: Op | None = None
        self._running = False
        self._born = parent is None
        self._caller = Caller(run)
        run.add(self)

    # -- from the program's side ------------------------------------------------------------

    @property
    def settled(self) -> bool:
        if self.error is not None:
            return not self._running
        return self._born and not self._queue and not self._running

    def append(self, expr: Expr, where: Where) -> None:
        """Check ``expr`` and queue it. Raises for what is wrong with it; then nothing of it is
        appended. After a failure it is accepted and dropped: reading raises."""
        with self.run.signal.lock:
            outline = self.outline.copy()
            ops = outline.plan(expr, self.run, where)
            begins_chat = outline.mode == "chat" and self.outline.mode != "chat"
            if begins_chat and self.run.takes_ids:
                check_template(self.run.tokenizer, self.run.defaults.chat_template_kwargs)
            self.outline = outline
            for op in ops:
                for slot in op.slots:
                    self.assigned[slot.name] = None
                    if self.error is None:
                        self.slots[slot.name] = slot
            if self.error is None:
                self._queue.extend(ops)
        if any(op.is_call for op in ops):
            self.kick()

    def fork(self, num_branches: int, where: Where) -> list[Core]:
        """Branches that will begin with what has been appended so far."""
        with self.run.signal.lock:
            path = (*self.outline.path, self.outline.num_forks)
            self.outline.num_forks += 1
            children = [Core(self.run, self, (*path, i)) for i in range(num_branches)]
            if self.error is None:
                self._queue.append(Op(ForkPoint(tuple(children)), where))
            else:
                _fail_children(children, self.error)
        self.kick()
        return children

    def kick(self) -> None:
        with self.run.signal.lock:
            idle = self._born and not self._running and self.error is None
            if not idle or not self._queue:
                return
            self._running = True
        self.run.spawn(self._drain)

    def fail(self, error: BaseException) -> None:
        with self.run.signal.lock:
            if self.error is not None:
                return
            self.error = error
            dropped = [op for op in (self._current, *self._queue) if op is not None]
            self._queue.clear()
            for op in dropped:
                for slot in op.slots:
                    slot.error = error
                if isinstance(op.node, ForkPoint):
                    _fail_children(op.node.children, error)
            self.run.failed(self)
        self._caller.stop(error)
        self._caller.close()
        self.run.signal.changed()

    def close(self) -> None:
        self._caller.close()

    # -- execution: in the background loop ----------------------------------------------------

    async def _drain(self) -> None:
        while (op := self._next()) is not None:
            try:
                await self._execute(op)
            except Exception as error:  # it is raised wherever the state is read
                self.fail(self._with_place(error, op))
        self.run.signal.changed()

    def _next(self) -> Op | None:
        with self.run.signal.lock:
            self._current = self._queue.popleft() if self._queue else None
            if self._current is None:
                self._running = False
                self.finished_at = self.run.next_number()
            return self._current

    async def _execute(self, op: Op) -> None:
        match op.node:
            case Gen():
                await self._gen(op, op.node)
            case Select():
                await self._select(op, op.node)
            case ToolGen():
                assert op.tools is not None
                await op.tools.run(self, op)
            case ForkPoint():
                self._fork(op, op.node.children)
            case _:
                with self.run.signal.lock:
                    self._apply(op)
                if op.slot is not None:
                    self.run.signal.changed()

    def _apply(self, op: Op) -> None:
        match op.node:
            case Text():
                self.prompt.add_text(op.node.text, control=op.node.control)
            case RoleBegin():
                self._chat().begin_role(op.node.role, op.node.template_kwargs)
            case RoleEnd():
                self._chat().end_role()
            case ScopeBegin():
                self._scopes[op.node.name] = len(self.prompt.flow)
            case ScopeEnd():
                assert op.slot is not None
                op.slot.finish("".join(self.prompt.flow[self._scopes.pop(op.node.name) :]))
            case SetVar():
                assert op.slot is not None
                op.slot.finish(op.node.value, op.node.meta)
            case _:
                raise AssertionError(op)

    def _chat(self) -> ChatPrompt | MessagesPrompt:
        if isinstance(self.prompt, RawPrompt):
            assert self.prompt.empty, "the outline lets no role follow raw text"
            kwargs = self.run.defaults.chat_template_kwargs
            self.prompt = ChatPrompt(self.run.tokenizer, kwargs)
        assert isinstance(self.prompt, ChatPrompt | MessagesPrompt)
        return self.prompt

    def _sync(self, where: Where) -> list[int]:
        with self.run.signal.lock:
            ids = self.prompt.sync(where)
            self.update_feed()
        return ids

    def update_feed(self) -> None:
        """Give the text that was appended since the last call to those who stream all text."""
        text, fed = self.prompt.text(), sum(map(len, self.feed))
        if len(text) > fed:
            self.feed.append(text[fed:])
            self.run.signal.chunk()

    def _add_call(self, kind: str, name: str, choice: int = 0) -> CallUsage:
        entry = self.run.add_call(kind, name, choice)
        self.calls.append(entry)
        return entry

    async def _gen(self, op: Op, node: Gen) -> None:
        slot, params = op.slot, op.params
        assert slot is not None and params is not None
        ids = self._sync(op.where)

        def on_text(text: str) -> None:
            with self.run.signal.lock:
                if self.error is None:
                    slot.chunks.append(text)
                    self.feed.append(text)
            self.run.signal.chunk()

        messages = self.prompt.asked() if isinstance(self.prompt, MessagesPrompt) else ()
        calls = [
            Call(
                input_ids=ids,
                messages=messages,
                params=params,
                logprobs=op.logprobs,
                priority=self.run.defaults.priority,
                timeout_s=node.timeout_s,
                choice=choice,
                chat=isinstance(self.prompt, ChatPrompt),
                stream=self.run.streams,
            )
            for choice in range(node.n)
        ]
        entries = [self._add_call("gen", slot.name, choice) for choice in range(node.n)]
        results = await self._caller.all(calls, entries, on_text)
        tokenizer = self.run.tokenizer if self.run.takes_ids else None
        wants = op.logprobs is not None
        metas = [
            gen_meta(result, entry.tokens, tokenizer, logprobs=wants, with_text=op.with_text)
            for result, entry in zip(results, entries, strict=True)
        ]
        value, captured = values(node.meaning, results, slot.name)
        meta = metas if node.n > 1 else metas[0]
        self._finish_generated(op, results[0], [value, *captured.values()], meta)

    def _finish_generated(
        self, op: Op, result: GenerateResult, values: list[Any], meta: Any
    ) -> None:
        kept = result.token_ids[: result.kept_ids]
        self._finish(op, kept, result.text, result.kept_text, values, meta)

    async def turn(self, op: Op, turn: Turn, number: int) -> GenerateResult:
        """One of the model's turns in a gen with tools; its text goes into the prompt."""
        assert isinstance(op.node, ToolGen) and op.slot is not None
        ids = self._sync(op.where)
        if turn.lead:
            with self.run.signal.lock:
                self.prompt.add_generated(turn.lead, turn.lead_text, "")
                self.update_feed()
                ids = list(self.prompt.ids)

        def on_text(text: str) -> None:
            with self.run.signal.lock:
                if self.error is None:
                    self.feed.append(text)
            self.run.signal.chunk()

        call = Call(
            input_ids=ids,
            params=turn.params,
            logprobs=op.logprobs,
            priority=self.run.defaults.priority,
            timeout_s=op.node.gen.timeout_s,
            choice=number,  # turns draw with seeds of their own
            chat=isinstance(self.prompt, ChatPrompt),
            stream=self.run.streams,
        )
        (result,) = await self._caller.all([call], [self._add_call("gen", op.slot.name)], on_text)
        kept = result.token_ids[: result.kept_ids]
        with self.run.signal.lock:
            if self.error is None:
                self.prompt.add_generated(kept, result.text, result.kept_text)
                self.update_feed()
        return result

    async def _select(self, op: Op, node: Select) -> None:
        if node.grammar is not None:
            await self._select_by_grammar(op, node)
            return
        assert op.slot is not None
        encode = self.run.tokenizer.encode
        ids = self._sync(op.where)
        options = [encode(o, add_bos=False, control=False) for o in node.options]
        if not all(options):
            raise ProgramError("an option has no tokens")
        prefixes = [ids]
        if node.method.needs_unconditional and not node.temperature:
            prefixes.append(encode(""))  # the tokenizer's BOS, or nothing
        passes = [
            Scoring(
                prefix,
                options,
                priority=self.run.defaults.priority,
                timeout_s=node.timeout_s,
                chat=isinstance(self.prompt, ChatPrompt),
            )
            for prefix in prefixes
        ]
        calls = [call for scoring in passes for call in scoring.calls]
        entries = [self._add_call("select", op.slot.name) for _ in calls]
        results = await self._caller.all(calls, entries)
        count = len(passes[0].calls)
        known = [[v for v in row if v is not None] for row in passes[0].scores(results[:count])]
        unconditional = passes[1].scores(results[count:]) if len(passes) > 1 else None
        meta = select_meta(options, known)
        if node.probs:
            meta["probs"] = option_probs(known)
        if node.temperature:
            index = draw(option_probs(known, node.temperature), op.seed)
        else:
            decision = node.method(known, unconditional)
            index = decision.index
            meta |= decision.meta
        self._finish(op, options[index], node.options[index], "", [node.options[index]], meta)

    async def _select_by_grammar(self, op: Op, node: Select) -> None:
        """One call that can only say one of the options."""
        assert op.slot is not None and op.params is not None
        call = Call(
            input_ids=self._sync(op.where),
            params=op.params,
            priority=self.run.defaults.priority,
            timeout_s=node.timeout_s,
            chat=isinstance(self.prompt, ChatPrompt),
        )
        entry = self._add_call("select", op.slot.name)
        results = await self._caller.all([call], [entry])
        value, _ = values(OneOption(node.options), results, op.slot.name)
        tokenizer = self.run.tokenizer
        meta = gen_meta(results[0], entry.tokens, tokenizer, logprobs=False, with_text=False)
        meta["choices_method"] = "grammar"
        self._finish_generated(op, results[0], [value], meta)

    def _finish(
        self,
        op: Op,
        ids: Sequence[int],
        text: str,
        kept_text: str,
        values: Sequence[Any],
        meta: Any,
    ) -> None:
        """The call is over: its text goes into the prompt, the values to its slots."""
        with self.run.signal.lock:
            if self.error is not None:
                return  # cancelled meanwhile
            self.prompt.add_generated(ids, text, kept_text)
            self.update_feed()
            for slot, value in zip(op.slots, values, strict=True):
                slot.finish(value, meta)
        self.run.signal.changed()

    # -- forks --------------------------------------------------------------------------------

    def _fork(self, op: Op, children: Sequence[Core]) -> None:
        """Announce what the branches share, and let them go."""
        with self.run.signal.lock:
            ids = self.prompt.freeze(op.where)
        backend, fork_id = self.run.backend, ""
        if ids and len(children) > 1 and backend.capabilities.fork:
            fork_id, stream = backend.announce(
                ids, len(children), priority=self.run.defaults.priority
            )
            entry = self._add_call("fork", "")
            self.run.spawn(lambda: self._watch(stream, entry, op))
        for child in children:
            child._begin(self, Branch(backend, fork_id) if fork_id else None)

    async def _watch(self, stream: Stream, entry: CallUsage, op: Op) -> None:
        """An announcement to its end. Only then is this state's own prefix, which it covers,
        given back: there was no call that could have taken it."""
        branch = self._caller.branch
        try:
            await self._caller.read(stream, entry)
        except Exception as error:  # raised wherever this state is read
            self.fail(self._with_place(error, op))
        finally:
            if branch is not None:
                branch.close()

    def _begin(self, parent: Core, branch: Branch | None) -> None:
        """Start from the parent's content; ``branch`` is this one's share in its announcement."""
        with self.run.signal.lock:
            self.prompt = parent.prompt.copy()
            self._scopes = dict(parent._scopes)
            self._caller.branch = branch
            self._born = True
            failed = self.error is not None
        if branch is not None:
            if failed:
                branch.close()
            # Whoever drops the state will never call: a finalizer may run anywhere, so the loop
            # does the work.
            weakref.finalize(self, loop.call_soon, branch.close).atexit = False
        self.kick()

    def _with_place(self, error: Exception, op: Op) -> Exception:
        """``error`` with a note that names the program's line and the variable."""
        filename, lineno = op.where
        what = f", {type(op.node).__name__.lower()} {op.slot.name!r}" if op.slot else ""
        note = f"in program {self.run.name!r} at {filename}:{lineno}{what}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error


def _fail_children(children: Sequence[Core], error: BaseException) -> None:
    for child in children:
        child.fail(error)
        child.error_seen = True  # the parent's error is told once

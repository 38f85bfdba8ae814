"""Outline: checks what a program appends, at its line, and turns it into operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from rtlang.backends.base import Capabilities
from rtlang.errors import ProgramError, Unsupported
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
    flatten,
)
from rtlang.run import Run
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.where import Where

if TYPE_CHECKING:  # loaded by who has tools
    from rtlang.tool_loop import ToolLoop


@dataclasses.dataclass(eq=False, slots=True)
class Slot:
    """A variable's value to be. Exists from the append on; ``done`` or ``error`` end it."""

    name: str
    chunks: list[str] = dataclasses.field(default_factory=list)
    value: Any = None
    meta: Any = None
    done: bool = False
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.done or self.error is not None

    def finish(self, value: Any, meta: Any = None) -> None:
        if not self.chunks:
            self.chunks.append(value if isinstance(value, str) else str(value))
        self.value, self.meta, self.done = value, meta, True


@dataclasses.dataclass(eq=False, slots=True)
class Op:
    """One expression on its way to execution, with what was resolved for it."""

    node: Expr
    where: Where
    slot: Slot | None = None  # of the variable that it sets
    captures: tuple[Slot, ...] = ()  # of those that it sets beside
    params: SamplingParams | None = None  # of a Gen, and of a Select by grammar
    logprobs: LogprobOptions | None = None
    with_text: bool = False  # token texts in the meta info
    seed: int | None = None  # of a Select that draws
    tools: ToolLoop | None = None  # of a ToolGen

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.captures if self.slot is None else (self.slot, *self.captures)

    @property
    def is_call(self) -> bool:
        return isinstance(self.node, Gen | Select | ToolGen)


@dataclasses.dataclass(slots=True)
class Outline:
    """What a program has appended to one state, as far as the next append must know it.

    It runs ahead of the execution. ``mode``: "" (nothing yet), "raw" or "chat": a state is one or
    the other, since a chat template leaves no place for text outside its turns.
    """

    path: tuple[int, ...] = ()  # of forks and branches down to this state
    mode: str = ""
    role: str | None = None
    filled: bool = False  # there is something in the open role
    scopes: tuple[str, ...] = ()
    num_unnamed: int = 0
    num_calls: int = 0
    num_forks: int = 0

    def copy(self) -> Outline:
        return dataclasses.replace(self)

    def plan(self, expr: Expr, run: Run, where: Where) -> list[Op]:
        """The operations of ``expr``. Raises for the first part that is wrong; then this outline
        is spoilt, so plan on a copy."""
        return [op for node in flatten(expr) if (op := self._plan(node, run, where)) is not None]

    def _plan(self, node: Expr, run: Run, where: Where) -> Op | None:
        match node:
            case Text():
                if not node.text:
                    return None
                self._check_place("text", run)
                self.filled = True
                if node.control and self.role is not None:
                    raise ProgramError(
                        "raw() text inside a role: the chat template owns the control tokens there"
                    )
                return Op(node, where)
            case Gen():
                return self._plan_gen(node, run, where)
            case Select():
                return self._plan_select(node, run, where)
            case ToolGen():
                return self._plan_tools(node, run, where)
            case RoleBegin():
                self._begin_role(node, run)
            case RoleEnd():
                self._end_role(node.role)
            case ScopeBegin():
                self.scopes += (node.name,)
            case ScopeEnd():
                assert self.scopes and self.scopes[-1] == node.name
                self.scopes = self.scopes[:-1]
                return Op(node, where, Slot(node.name))
            case SetVar():
                return Op(node, where, Slot(node.name))
        return Op(node, where)

    def _plan_gen(self, node: Gen, run: Run, where: Where) -> Op:
        self._check_place("gen", run)
        self._check_turn(run)
        _check_capable((*node.sampling, *run.defaults.sampling), run)
        if run.defaults.seed is not None:
            _check_capable(("sampling_seed",), run)
        own = dict(node.sampling)
        own.setdefault("sampling_seed", run.derive_seed(self.path, self.num_calls))
        self.num_calls += 1
        logprobs, with_text = run.defaults.logprob_options(node.logprobs)
        if logprobs is not None and not run.backend.capabilities.logprobs:
            _refuse(run, "gives no log-probabilities", "return_logprob")
        params = run.defaults.sampling_params(own)
        if run.backend.capabilities.check is not None:
            run.backend.capabilities.check(params)
        return Op(
            node,
            where,
            self._slot(node.name),
            tuple(Slot(name) for name in node.meaning.names) if node.meaning else (),
            params=params,
            logprobs=logprobs,
            with_text=with_text,
        )

    def _plan_tools(self, node: ToolGen, run: Run, where: Where) -> Op:
        if self.mode == "chat" and self.role not in (None, "assistant"):
            raise ProgramError(f"gen(tools=...) in a {self.role} turn: the assistant calls tools")
        if not run.takes_ids:
            _refuse(run, "has no chat template, which tells how a model calls tools", "tools")
        if node.tools.choice != "none":
            _check_capable(("grammar",), run)
        op = self._plan_gen(node.gen, run, where)
        assert op.params is not None
        loop = node.tools.planned(op.params, run.tokenizer, chat=self.mode == "chat")
        return dataclasses.replace(op, node=node, tools=loop)

    def _plan_select(self, node: Select, run: Run, where: Where) -> Op:
        self._check_place("select", run)
        if node.grammar is not None:
            given = {"grammar"} | ({"jump_forward"} & run.defaults.sampling.keys())
            _check_capable(given, run)
            if not run.takes_ids:
                _refuse(run, "holds no text to one of several: let it write JSON", "choice")
        elif not run.backend.capabilities.score:
            _refuse(run, "gives no log-probabilities to select by", "select")
        seed = node.seed
        if seed is None and node.temperature > 0:
            seed = run.derive_seed(self.path, self.num_calls)
        self.num_calls += 1
        self.filled = True
        params = None if node.grammar is None else _grammar_params(node, seed, run)
        return Op(node, where, self._slot(node.name), params=params, seed=seed)

    def _slot(self, name: str | None) -> Slot:
        if name is None:
            name = f"gen_{self.num_unnamed}"
            self.num_unnamed += 1
        return Slot(name)

    def _check_place(self, what: str, run: Run) -> None:
        if not run.takes_ids and self.role is None:
            _refuse(run, f"takes no token ids, only turns: put {what} into one", "token_ids")
        if self.mode == "chat" and self.role is None:
            raise ProgramError(
                f"{what} outside a role, in a program with roles: put it into "
                "rtlang.user(...) or rtlang.assistant(...)"
            )
        self.mode = self.mode or "raw"

    def _check_turn(self, run: Run) -> None:
        """Whether a generation may stand here; then it is a part of the open role."""
        if not run.takes_ids and self.role != "assistant":
            _refuse(run, f"answers as the assistant, not in a {self.role} turn", "role")
        if self.filled and not run.backend.capabilities.prefill:
            why = "gives whole answers: begin a new turn, without text before its gen"
            _refuse(run, why, "prefill")
        self.filled = True

    def _begin_role(self, node: RoleBegin, run: Run) -> None:
        role = node.role
        if node.template_kwargs and not run.takes_ids:
            _refuse(run, "has no chat template", "chat_template_kwargs")
        if self.role is not None:
            raise ProgramError(f"{role} begins inside {self.role}: end that role first")
        if self.mode == "raw":
            raise ProgramError(
                f"{role} begins after text outside a role: put that text into a role, too"
            )
        self.mode, self.role, self.filled = "chat", role, False

    def _end_role(self, role: str) -> None:
        if self.role != role:
            open_role = "no role" if self.role is None else self.role
            raise ProgramError(f"{role} ends, but {open_role} is open")
        self.role = None


def _grammar_params(node: Select, seed: int | None, run: Run) -> SamplingParams:
    """Like a select by scores it does as it is told: ``run()``'s options for texts are not its."""
    return SamplingParams(
        max_new_tokens=None,
        temperature=node.temperature,
        sampling_seed=seed,
        grammar=node.grammar,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        repetition_penalty=1.0,
        jump_forward=run.defaults.sampling.get("jump_forward"),
    )


def _refuse(run: Run, why: str, param: str) -> NoReturn:
    raise Unsupported(f"{type(run.backend).__name__} {why}", param=param)


def _check_capable(names: Iterable[str], run: Run) -> None:
    capabilities: Capabilities = run.backend.capabilities
    for name in names:
        if name not in capabilities.sampling:
            _refuse(run, f"does not support {name}", name)

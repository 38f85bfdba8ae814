"""The constructors that programs use. What is wrong with their arguments is raised here."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from rtlang.choices import BY_GRAMMAR, ChoicesMethod, as_method
from rtlang.defaults import given_sampling
from rtlang.errors import InvalidParameter, ProgramError
from rtlang.grammar.spec import GrammarSpec
from rtlang.ir import Concat, Expr, Gen, RoleBegin, RoleEnd, Select, Text, ToolGen, as_expr
from rtlang.outcome import Meaning
from rtlang.runtime.sampling_params import SamplingParams

if TYPE_CHECKING:  # loaded by who has tools
    from rtlang.tools import Tools


class _Unset(enum.Enum):
    UNSET = "run()'s value"


UNSET: Final = _Unset.UNSET


def gen(
    name: str | None = None,
    max_tokens: int | Literal[_Unset.UNSET] | None = UNSET,
    *,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    keep_stop: bool | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    ignore_eos: bool | None = None,
    skip_special_tokens: bool | None = None,
    seed: int | None = None,
    timeout: float | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesMethod | str | None = None,
    dtype: Any = None,
    type: Any = None,
    regex: Any = None,
    json_schema: Any = None,
    ebnf: Any = None,
    structural_tag: Any = None,
    pattern: Any = None,
    whitespace: int | None = None,
    jump_forward: str | None = None,
    tools: Tools | Iterable[Any] | None = None,
) -> Expr:
    """Generate text into the variable ``name`` (unnamed: ``gen_0``, ``gen_1``, …).

    None means ``run()``'s value, except that ``max_tokens=None`` means "until EOS or the end of
    the context". ``n`` > 1: the variable is the list of n texts, the first of which goes into
    the state. ``timeout``: seconds. ``keep_stop``: the matched stop stays in the text. With
    ``choices`` it is ``select``, and only that one's arguments may be given.

    At most one constraint. ``regex``, ``json_schema`` (a mapping or its text), ``ebnf``,
    ``structural_tag``: the variable is the text. ``type``: the variable is a value of the Python
    type; scalars are written plainly (``12``, ``True``, an option of a ``Literal`` or ``Enum``),
    structures as JSON; ``str`` is any text. ``dtype``: int, float, bool, or str for a text that
    stands in quotes, whose value is without them. ``pattern``: of ``rtlang.combinators``, whose
    captures become variables. ``whitespace``: most white space between two JSON tokens.
    ``jump_forward="canonical"``: text that the constraint forces is not sampled. A typed value
    that ``max_tokens``, the context or a stop cuts raises ``TruncatedOutput`` when it is read.

    ``tools``: functions that the model may call, or a ``Tools``. It takes turns, each with these
    parameters, and gets the results of its calls; the variable is the text of the last turn, the
    one without calls. Needs an assistant turn, where there are roles.

    Raises ``InvalidParameter`` or ``ProgramError`` for a wrong or contradictory argument, and a
    ``GrammarError`` for a constraint that is wrong or cannot be enforced.
    """
    constraints: dict[str, Any] = {
        "dtype": dtype, "type": type, "regex": regex, "json_schema": json_schema, "ebnf": ebnf,
        "structural_tag": structural_tag, "pattern": pattern,
    }  # fmt: skip
    constraints = {k: v for k, v in constraints.items() if v is not None}
    sampling: dict[str, Any] = {
        "min_new_tokens": min_tokens, "stop": stop, "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex, "no_stop_trim": keep_stop, "top_p": top_p, "top_k": top_k,
        "min_p": min_p, "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty, "repetition_penalty": repetition_penalty,
        "logit_bias": logit_bias, "ignore_eos": ignore_eos,
        "skip_special_tokens": skip_special_tokens, "jump_forward": jump_forward,
    }  # fmt: skip
    logprobs: dict[str, Any] = {
        "return_logprob": return_logprob, "logprob_start_len": logprob_start_len,
        "top_logprobs_num": top_logprobs_num, "return_text_in_logprobs": return_text_in_logprobs,
    }  # fmt: skip
    if max_tokens is not UNSET:
        sampling["max_new_tokens"] = max_tokens
    if choices is not None:
        given = {**sampling, **logprobs, **constraints}
        given |= {"n": n, "whitespace": whitespace, "tools": tools}
        _refuse_with_choices(
            {k for k, v in given.items() if v is not None or k == "max_new_tokens"}
        )
        return select(
            name, choices, temperature=temperature or 0.0, choices_method=choices_method,
            seed=seed, timeout=timeout,
        )  # fmt: skip
    if choices_method is not None:
        raise ProgramError("choices_method without choices")
    if max_tokens is not UNSET and max_tokens is not None and max_tokens < 1:
        raise InvalidParameter(
            f"max_tokens must be at least 1, got {max_tokens}", param="max_tokens"
        )
    if tools is not None:
        _refuse_with_tools({*constraints, *(["n"] if _checked_n(n) > 1 else [])})
    grammar, meaning = _constraint(constraints, whitespace)
    if meaning is not None and name in meaning.names:
        raise ProgramError(f"the gen and a capture of its pattern are both called {name!r}")
    sampling |= {"temperature": temperature, "sampling_seed": seed, "grammar": grammar}
    made = Gen(
        name=_checked_name(name),
        sampling=given_sampling(sampling),
        meaning=meaning,
        logprobs={k: v for k, v in logprobs.items() if v is not None},
        n=_checked_n(n),
        timeout_s=_checked_timeout(timeout),
    )
    return made if tools is None else ToolGen(made, _tools(tools))


def gen_int(
    name: str | None = None,
    max_tokens: int | Literal[_Unset.UNSET] | None = UNSET,
    **options: Any,
) -> Expr:
    """``gen(dtype=int)``; the variable is an int."""
    return gen(name, max_tokens, dtype=int, **options)


def gen_string(
    name: str | None = None,
    max_tokens: int | Literal[_Unset.UNSET] | None = UNSET,
    **options: Any,
) -> Expr:
    """``gen(dtype=str)``: a text in double quotes; the variable is what stands between them."""
    return gen(name, max_tokens, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str | None = None,
    *,
    probs: bool = False,
    seed: int | None = None,
    timeout: float | None = None,
) -> Expr:
    """Pick one of ``choices`` by the model's log-probabilities; it becomes text and variable.

    ``choices_method``: see ``rtlang.choices``; default: token-length-normalised. "grammar" scores
    nothing: in one call the model says one of the options, greedily or at the ``temperature``.
    Otherwise scores of all
    options, in the order given, are in ``get_meta_info(name)``; with ``probs`` also "probs", the
    options' probabilities (softmax of their summed log-likelihoods). ``temperature`` > 0 draws
    from these probabilities to the power 1 / temperature, reproducibly with a ``seed``; that is a
    method of its own, so none may be given. Raises ``ProgramError`` for empty or double options.
    """
    if choices is None or isinstance(choices, str):
        raise ProgramError("choices must be a list of texts")
    options = tuple(choices)
    for option in options:
        if not isinstance(option, str):
            raise TypeError(f"choices must be texts, not {type(option).__name__}")
    if not options or "" in options:
        raise ProgramError("choices must not be empty")
    if len(set(options)) < len(options):
        twice = next(o for o in options if options.count(o) > 1)
        raise ProgramError(f"choices has {twice!r} twice")
    if isinstance(temperature, bool) or not 0.0 <= temperature < float("inf"):
        raise InvalidParameter(
            f"temperature must be at least 0, got {temperature!r}", param="temperature"
        )
    by_grammar = isinstance(choices_method, str) and choices_method == BY_GRAMMAR
    if by_grammar and probs:
        raise ProgramError("choices_method='grammar' knows no probabilities of the options")
    if temperature > 0 and choices_method is not None and not by_grammar:
        raise ProgramError("temperature > 0 draws an option; choices_method decides on the best")
    if seed is not None and temperature == 0:
        raise ProgramError("a seed needs temperature > 0: nothing is drawn otherwise")
    return Select(
        name=_checked_name(name),
        options=options,
        method=as_method(None if by_grammar else choices_method),
        grammar=GrammarSpec.choice(options) if by_grammar else None,
        temperature=temperature,
        seed=given_sampling({"sampling_seed": seed}).get("sampling_seed"),
        probs=bool(probs),
        timeout_s=_checked_timeout(timeout),
    )


def raw(text: str) -> Expr:
    """Text in which control tokens (such as ``<|im_start|>``) count as what they are.

    Use it for prompts that you format yourself, never for text from others.
    """
    if not isinstance(text, str):
        raise TypeError(f"raw() takes text, not {type(text).__name__}")
    return Text(text, control=True)


def role(name: str, expr: Expr | str | None, template_kwargs: Mapping[str, Any] | None) -> Concat:
    """A whole turn; without ``expr`` an empty one."""
    content = () if expr is None else (as_expr(expr),)
    whole: Expr = RoleBegin(name, dict(template_kwargs or {}))
    for part in (*content, RoleEnd(name)):
        whole = whole + part
    assert isinstance(whole, Concat)
    return whole


def system(
    expr: Expr | str | None = None, *, chat_template_kwargs: Mapping[str, Any] | None = None
) -> Expr:
    """A system turn. ``chat_template_kwargs`` go to the chat template, from here on."""
    return role("system", expr, chat_template_kwargs)


def user(
    expr: Expr | str | None = None, *, chat_template_kwargs: Mapping[str, Any] | None = None
) -> Expr:
    """A user turn; see ``system``."""
    return role("user", expr, chat_template_kwargs)


def assistant(
    expr: Expr | str | None = None, *, chat_template_kwargs: Mapping[str, Any] | None = None
) -> Expr:
    """An assistant turn; see ``system``."""
    return role("assistant", expr, chat_template_kwargs)


def system_begin() -> Expr:
    """Opens the system turn, where an expression cannot hold all of it."""
    return RoleBegin("system")


def system_end() -> Expr:
    """Closes the system turn, where an expression cannot hold all of it."""
    return RoleEnd("system")


def user_begin() -> Expr:
    """Opens the user turn, where an expression cannot hold all of it."""
    return RoleBegin("user")


def user_end() -> Expr:
    """Closes the user turn, where an expression cannot hold all of it."""
    return RoleEnd("user")


def assistant_begin() -> Expr:
    """Opens the assistant turn, where an expression cannot hold all of it."""
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    """Closes the assistant turn, where an expression cannot hold all of it."""
    return RoleEnd("assistant")


# -- checks ---------------------------------------------------------------------------------


def _checked_n(n: int | None) -> int:
    return 1 if n is None else SamplingParams.parse({"n": n}).n


def _constraint(
    given: Mapping[str, Any], whitespace: int | None
) -> tuple[GrammarSpec | None, Meaning | None]:
    if not given and whitespace is None:
        return None, None
    # Not at the top: most programs have no constraint, and what reads them takes long to load.
    typed = importlib.import_module("rtlang.typed")
    found: tuple[GrammarSpec | None, Meaning | None] = typed.constraint(given, whitespace)
    return found


def _tools(given: Any) -> Tools:
    # Not at the top: reading signatures takes a while to load, and most programs have no tools.
    module = importlib.import_module("rtlang.tools")
    tools: Tools = module.Tools.of(given)
    return tools


def _refuse_with_tools(given: set[str]) -> None:
    if given:
        names = ", ".join(sorted(given))
        raise ProgramError(f"tools contradicts {names}: a turn is text or calls, one at a time")


def _refuse_with_choices(given: set[str]) -> None:
    if given:
        names = ", ".join(sorted(given))
        raise ProgramError(f"choices contradicts {names}: nothing is sampled token by token")


def _checked_name(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise ProgramError(f"a variable's name must be a text, got {name!r}")
    return name


def _checked_timeout(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidParameter(
            f"timeout must be a positive number of seconds, got {timeout!r}", param="timeout"
        )
    return float(timeout)

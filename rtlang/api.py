"""The constructors that programs use. What is wrong with their arguments is raised here."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from rtlang.choices import ChoicesMethod, as_method
from rtlang.defaults import given_sampling
from rtlang.errors import InvalidParameter, ProgramError, Unsupported
from rtlang.ir import Concat, Expr, Gen, RoleBegin, RoleEnd, Select, Text, as_expr
from rtlang.runtime.sampling_params import SamplingParams


class _Unset(enum.Enum):
    UNSET = "run()'s value"


UNSET: Final = _Unset.UNSET
_NOT_BUILT = "is not built yet"


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
) -> Expr:
    """Generate text into the variable ``name`` (unnamed: ``gen_0``, ``gen_1``, …).

    None means ``run()``'s value, except that ``max_tokens=None`` means "until EOS or the end of
    the context". ``n`` > 1: the variable is the list of n texts, the first of which goes into
    the state. ``timeout``: seconds. ``keep_stop``: the matched stop stays in the text. With
    ``choices`` it is ``select``, and only that one's arguments may be given.

    Raises ``InvalidParameter`` or ``ProgramError`` for a wrong or contradictory argument,
    ``Unsupported`` for one that is not built.
    """
    _refuse_unbuilt(
        dtype=dtype, type=type, regex=regex, json_schema=json_schema, ebnf=ebnf,
        structural_tag=structural_tag,
    )  # fmt: skip
    sampling: dict[str, Any] = {
        "min_new_tokens": min_tokens, "stop": stop, "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex, "no_stop_trim": keep_stop, "top_p": top_p, "top_k": top_k,
        "min_p": min_p, "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty, "repetition_penalty": repetition_penalty,
        "logit_bias": logit_bias, "ignore_eos": ignore_eos,
        "skip_special_tokens": skip_special_tokens,
    }  # fmt: skip
    logprobs: dict[str, Any] = {
        "return_logprob": return_logprob, "logprob_start_len": logprob_start_len,
        "top_logprobs_num": top_logprobs_num, "return_text_in_logprobs": return_text_in_logprobs,
    }  # fmt: skip
    if max_tokens is not UNSET:
        sampling["max_new_tokens"] = max_tokens
    if choices is not None:
        given = {**sampling, **logprobs, "n": n}
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
    sampling |= {"temperature": temperature, "sampling_seed": seed}
    return Gen(
        name=_checked_name(name),
        sampling=given_sampling(sampling),
        logprobs={k: v for k, v in logprobs.items() if v is not None},
        n=_checked_n(n),
        timeout_s=_checked_timeout(timeout),
    )


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

    ``choices_method``: see ``rtlang.choices``; default: token-length-normalised. Scores of all
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
    if temperature > 0 and choices_method is not None:
        raise ProgramError("temperature > 0 draws an option; choices_method decides on the best")
    if seed is not None and temperature == 0:
        raise ProgramError("a seed needs temperature > 0: nothing is drawn otherwise")
    return Select(
        name=_checked_name(name),
        options=options,
        method=as_method(choices_method),
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


def _refuse_unbuilt(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise Unsupported(f"gen({name}=...) {_NOT_BUILT}", param=name)


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

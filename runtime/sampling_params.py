"""What a caller may ask of one generation, validated when it is built. Imports no torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import msgspec

from rtlang.errors import ConflictingConstraints, InvalidParameter, Unsupported
from rtlang.grammar.spec import GrammarSpec

MAX_STOPS = 32
MAX_STOP_LEN = 1024
MAX_STOP_REGEX_LEN = 256
MAX_N = 128
INT64 = 2**63
#: Temperatures below this are greedy (the lowest id among equals).
GREEDY_BELOW = 1e-5
#: Accepted by SGLang, not built here yet: refused by name.
NOT_BUILT = {
    "beam_width": "beam search is not built",
    "custom_params": "custom logit processors are not built",
}
#: Each makes a ``grammar``, under the name that ``GrammarSpec`` has for it.
_CONSTRAINTS = ("json_schema", "regex", "ebnf", "choice", "structural_tag")
JUMP_FORWARD = ("off", "canonical")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation's parameters; the names and meanings are SGLang's.

    ``None`` means "not given": ``resolve`` fills it from the model's chat defaults or from the
    table at its end. ``max_new_tokens=None`` stays: until EOS or the end of the context.
    Raises ``InvalidParameter`` (its ``param`` names the field) for a value out of range.
    """

    max_new_tokens: int | None = 128  # 0: compute the prompt and generate nothing
    min_new_tokens: int = 0  # EOS, stop ids and stop strings are held back until then
    temperature: float | None = None  # 1.0; below 1e-5: greedy
    top_p: float | None = None  # (0, 1]
    top_k: int | None = None  # -1: all
    min_p: float | None = None  # [0, 1]
    frequency_penalty: float = 0.0  # [-2, 2], on generated tokens
    presence_penalty: float = 0.0  # [-2, 2], on generated tokens
    repetition_penalty: float | None = None  # (0, 2], on prompt and generated tokens
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False  # keep the matched stop in the text
    stream_interval: int = 1  # tokens between two chunks of a stream
    logit_bias: dict[int, float] | None = None  # token id -> [-100, 100]
    sampling_seed: int | None = None  # any int64; None: drawn at admission
    grammar: GrammarSpec | None = None  # what the text must be; ``parse`` takes it by its kind too
    jump_forward: str | None = None  # off | canonical: forced text is not sampled; None: engine's

    def __post_init__(self) -> None:
        _check_ints(self)
        _check_floats(self)
        _check_stops(self)
        if self.logit_bias is not None:
            _check_bias(self.logit_bias)
            # A copy of our own: the caller may go on changing his.
            msgspec.structs.force_setattr(self, "logit_bias", dict(self.logit_bias))
        _check_grammar(self)

    @property
    def greedy(self) -> bool:
        temperature = 1.0 if self.temperature is None else self.temperature
        return temperature < GREEDY_BELOW or self.top_k == 1

    def resolve(self, chat_defaults: Mapping[str, Any] | None = None) -> SamplingParams:
        """The same parameters with no ``None`` left but the length, the bias and the seed."""
        values = {**_DEFAULTS, **(chat_defaults or {})}
        values["top_k"] = values["top_k"] or -1  # in a generation_config.json, 0 means all
        fill = {k: values[k] for k in _DEFAULTS if getattr(self, k) is None}
        return msgspec.structs.replace(self, **fill) if fill else self

    @classmethod
    def parse(cls, given: SamplingParams | Mapping[str, Any] | None) -> SamplingParams:
        """From a mapping with SGLang's names (a null means "not given", but for the length), and
        ``choice``; ``grammar`` may be a mapping as ``GrammarSpec.of`` takes it.

        Raises ``Unsupported`` for what is not built, ``InvalidParameter`` for an unknown name.
        """
        if given is None:
            return cls()
        if isinstance(given, SamplingParams):
            return given
        if not isinstance(given, Mapping):
            raise _bad("sampling_params", f"must be a mapping, got {type(given).__name__}")
        kwargs: dict[str, Any] = {}
        for name, value in given.items():
            if name in NOT_BUILT:
                if value is not None:
                    raise Unsupported(f"{name}: {NOT_BUILT[name]}", param=name)
            elif name not in cls.__struct_fields__ and name not in _CONSTRAINTS:
                raise InvalidParameter(f"unknown sampling parameter {name!r}", param=name)
            elif value is not None or name == "max_new_tokens":
                kwargs[name] = _coerce(name, value)
        _join_constraints(kwargs)
        return cls(**kwargs)


_DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


def check_against_vocab(params: SamplingParams, vocab_size: int) -> None:
    """Raises ``InvalidParameter`` for a token id that the model does not have."""
    named = {"logit_bias": params.logit_bias or {}, "stop_token_ids": params.stop_token_ids}
    for name, ids in named.items():
        for i in ids:
            if i >= vocab_size:
                raise _bad(name, f"has token id {i}, outside the vocabulary of {vocab_size}")


def _bad(param: str, message: str) -> InvalidParameter:
    return InvalidParameter(f"{param} {message}", param=param)


def _coerce(name: str, value: Any) -> Any:
    """Lists to tuples, one stop to a tuple of one, bias keys to ids. Copies what it was given."""
    if name in ("stop", "stop_regex", "stop_token_ids"):
        one = int if name == "stop_token_ids" else str
        if isinstance(value, list | tuple):
            return tuple(value)
        return (value,) if isinstance(value, one) else value
    if name == "logit_bias" and isinstance(value, Mapping):
        bias = {_bias_key(key): number for key, number in value.items()}
        if len(bias) < len(value):
            raise _bad(name, "names a token id twice")
        return bias
    if name == "grammar" and isinstance(value, Mapping):
        return GrammarSpec.of(value)
    return value


def _bias_key(key: Any) -> Any:
    """JSON's keys are strings; whatever is no integer stays, for the check to name it."""
    return int(key) if isinstance(key, str) and re.fullmatch("-?[0-9]{1,20}", key) else key


def is_int(value: Any) -> TypeGuard[int]:
    """An integer, and no ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_int64(value: Any) -> TypeGuard[int]:
    """An integer that travels as one: msgpack has 64 bits."""
    return is_int(value) and -INT64 <= value < INT64


def _check_ints(p: SamplingParams) -> None:
    bounds: dict[str, tuple[int, int]] = {
        "max_new_tokens": (0, INT64 - 1),
        "min_new_tokens": (0, INT64 - 1),
        "top_k": (-1, INT64 - 1),
        "n": (1, MAX_N),
        "stream_interval": (1, INT64 - 1),
        "sampling_seed": (-INT64, INT64 - 1),
    }
    for name, (low, high) in bounds.items():
        value = getattr(p, name)
        if value is None and name in ("max_new_tokens", "top_k", "sampling_seed"):
            continue
        if not is_int(value) or not low <= value <= high:
            bound = f"of at least {low}" if high == INT64 - 1 else f"in [{low}, {high}]"
            raise _bad(name, f"must be an integer {bound}, got {value!r}")
    if p.top_k == 0:
        raise _bad("top_k", "must be -1 (all) or at least 1, got 0")
    if p.max_new_tokens is not None and p.min_new_tokens > p.max_new_tokens:
        raise _bad(
            "min_new_tokens", f"= {p.min_new_tokens} exceeds max_new_tokens = {p.max_new_tokens}"
        )
    flags = ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim")
    for name in flags:
        if not isinstance(getattr(p, name), bool):
            raise _bad(name, f"must be true or false, got {getattr(p, name)!r}")


def _check_floats(p: SamplingParams) -> None:
    # Written so that NaN fails every check.
    checks: dict[str, tuple[Callable[[float], bool], str]] = {
        "temperature": (
            lambda v: 0.0 <= v <= sys.float_info.max,
            "must be a finite number of at least 0",
        ),
        "top_p": (
            lambda v: 0.0 < v <= 1.0,
            "must be in (0, 1]; for greedy decoding set temperature=0",
        ),
        "min_p": (lambda v: 0.0 <= v <= 1.0, "must be in [0, 1]"),
        "frequency_penalty": (lambda v: -2.0 <= v <= 2.0, "must be in [-2, 2]"),
        "presence_penalty": (lambda v: -2.0 <= v <= 2.0, "must be in [-2, 2]"),
        "repetition_penalty": (lambda v: 0.0 < v <= 2.0, "must be in (0, 2]"),
    }
    for name, (ok, message) in checks.items():
        value = getattr(p, name)
        if value is None and name in _DEFAULTS:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not ok(value):
            raise _bad(name, f"{message}, got {value!r}")


def _check_stops(p: SamplingParams) -> None:
    for name in ("stop", "stop_regex"):
        values = getattr(p, name)
        if not isinstance(values, tuple) or any(not isinstance(v, str) for v in values):
            raise _bad(name, f"must be a string or a list of strings, got {values!r}")
        if len(values) > MAX_STOPS:
            raise _bad(name, f"may have {MAX_STOPS} strings at most, got {len(values)}")
        if not all(values):
            raise _bad(name, "must not hold the empty string")
        if any("\ud800" <= c <= "\udfff" for v in values for c in v):
            raise _bad(name, "has no UTF-8 form: it holds a lone surrogate")
    if any(len(v) > MAX_STOP_LEN for v in p.stop):
        raise _bad("stop", f"may have {MAX_STOP_LEN} characters at most")
    if any(len(v) > MAX_STOP_REGEX_LEN for v in p.stop_regex):
        raise _bad("stop_regex", f"may have {MAX_STOP_REGEX_LEN} characters at most")
    ids = p.stop_token_ids
    if not isinstance(ids, tuple) or any(not is_int(i) or i < 0 for i in ids):
        raise _bad("stop_token_ids", f"must be token ids, got {ids!r}")


def _join_constraints(kwargs: dict[str, Any]) -> None:
    """One given by its kind becomes the ``grammar``."""
    constraints = {name: kwargs.pop(name) for name in _CONSTRAINTS if name in kwargs}
    if constraints and "grammar" in kwargs:
        raise ConflictingConstraints(f"grammar beside {' and '.join(constraints)}")
    if constraints:
        kwargs["grammar"] = GrammarSpec.of(constraints)


def _check_grammar(p: SamplingParams) -> None:
    if p.jump_forward is not None and p.jump_forward not in JUMP_FORWARD:
        raise _bad("jump_forward", f"must be off or canonical, got {p.jump_forward!r}")
    if p.grammar is None:
        return
    if not isinstance(p.grammar, GrammarSpec):
        raise _bad("grammar", f"must be a GrammarSpec, got {type(p.grammar).__name__}")
    if p.ignore_eos:
        raise ConflictingConstraints("a constraint says where a text ends; ignore_eos cannot")


def _check_bias(bias: dict[int, float]) -> None:
    if not isinstance(bias, dict):
        raise _bad("logit_bias", f"must map token ids to numbers, got {bias!r}")
    for key, value in bias.items():
        if not is_int(key) or key < 0:
            raise _bad("logit_bias", f"has the key {key!r}, which is no token id")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not -100 <= value <= 100:
            raise _bad("logit_bias", f"of {key} must be in [-100, 100], got {value!r}")

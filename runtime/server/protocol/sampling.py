"""SamplingBody: the fields that all of OpenAI's generating endpoints share, and ours beside."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rtlang.errors import ConflictingConstraints, InvalidParameter
from rtlang.runtime.job import Ask, CallOptions
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.server.body import (
    STRICT,
    given,
    refuse_unknown,
    without_nulls,
)

NOT_BUILT: dict[str, str] = {
    name: f"{what} not built"
    for what, names in {
        "adapters are": ("lora_path", "lora_request"),
        "sessions are": ("session_params", "session_id"),
        "custom logit processors are": ("custom_logit_processor", "logits_processors"),
        "hidden states are": ("return_hidden_states",),
        "beam search is": ("use_beam_search", "beam_width"),
        "forbidden words are": ("bad_words", "allowed_token_ids"),
        "meta_info in this form (it is in /generate) is": ("return_meta_info",),
    }.items()
    for name in names
}
#: Say nothing that an answer depends on here; see docs/server.md.
WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
     "prompt_cache_retention"}
)  # fmt: skip

#: Our names of parameters -> the clients'.
_CLIENT_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "top_logprobs_num": "top_logprobs",
}
#: Fields that are a constraint each -> the kind of it.
_CONSTRAINTS = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf": "ebnf",
    "structural_tag": "structural_tag",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "ebnf",
}


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(BaseModel):
    """vLLM's newer form of the constraints."""

    model_config = ConfigDict(extra="forbid", strict=True)

    json_: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None


class SamplingBody(BaseModel):
    """Checked like a ``Body``; no heir of it, so that bodies have one base each."""

    model_config = STRICT

    NOT_BUILT: ClassVar[dict[str, str]] = NOT_BUILT
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = WITHOUT_EFFECT

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    # SGLang's.
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    rid: str | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    timeout: float | None = Field(default=None, description="seconds from arrival")
    jump_forward: str | None = None
    return_token_ids: bool | None = None
    # vLLM's.
    include_stop_str_in_output: bool | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: int | None = Field(
        default=None, description="keep so many, the last ones"
    )
    prompt_logprobs: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_json(cls, data: Any) -> Any:
        return without_nulls(data)

    @model_validator(mode="after")
    def _refuse_unknown(self) -> SamplingBody:
        refuse_unknown(self.model_extra or {}, self.WITHOUT_EFFECT, self.NOT_BUILT)
        return self

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the fields that are not null."""
        return given(self, *names)

    @property
    def wants_usage(self) -> bool:
        options = self.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        options = self.stream_options
        return options is not None and bool(options.continuous_usage_stats)

    def check_stream_options(self) -> None:
        """Raises ``InvalidParameter`` for options of a stream that nobody asked for."""
        if self.stream_options is not None and not self.stream:
            message = "stream_options are for stream=true"
            raise InvalidParameter(message, param="stream_options")

    def sampling(self) -> dict[str, Any]:
        """What is given, under the names of ``SamplingParams.parse``."""
        found = self.given(
            "temperature", "top_p", "n", "stop", "presence_penalty", "frequency_penalty",
            "logit_bias", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "stop_regex",
            "no_stop_trim", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
            "jump_forward",
        )  # fmt: skip
        if self.min_tokens is not None:
            found["min_new_tokens"] = self.min_tokens
        if self.seed is not None:
            found["sampling_seed"] = self.seed
        if self.include_stop_str_in_output is not None:
            if self.no_stop_trim is not None:
                message = "no_stop_trim and include_stop_str_in_output are the same"
                raise InvalidParameter(message, param="include_stop_str_in_output")
            found["no_stop_trim"] = self.include_stop_str_in_output
        return found | self._constraint()

    def _constraint(self) -> dict[str, Any]:
        """At most one, as ``SamplingParams.parse`` takes it. Raises ``ConflictingConstraints``."""
        found = {name: (_CONSTRAINTS[name], v) for name, v in self.given(*_CONSTRAINTS).items()}
        newer = self.structured_outputs
        if newer is not None:
            kinds = {
                "json": ("json_schema", newer.json_),
                "regex": ("regex", newer.regex),
                "choice": ("choice", newer.choice),
                "grammar": ("ebnf", newer.grammar),
                "json_object": ("json_schema", {"type": "object"} if newer.json_object else None),
                "structural_tag": ("structural_tag", newer.structural_tag),
            }
            found |= {
                f"structured_outputs.{name}": kind
                for name, kind in kinds.items()
                if kind[1] is not None
            }
        if len(found) > 1:
            raise ConflictingConstraints(f"more than one constraint: {' and '.join(found)}")
        return dict(found.values())

    def options(self, logprobs: LogprobOptions | None) -> CallOptions:
        named = self.given("cache_salt", "priority", "timeout")
        options = call_options(named, self.extra_key)
        return dataclasses.replace(options, logprobs=logprobs)

    def cut(self, ask: Ask) -> Ask:
        """With the last ``truncate_prompt_tokens`` of its prompt alone."""
        keep = self.truncate_prompt_tokens
        if keep is None:
            return ask
        if keep < 1:
            message = f"truncate_prompt_tokens must be at least 1, got {keep}"
            raise InvalidParameter(message, param="truncate_prompt_tokens")
        return dataclasses.replace(ask, ids=ask.ids[-keep:])


def call_options(named: Mapping[str, Any], extra_key: str | None) -> CallOptions:
    """As ``CallOptions.parse``; the namespace also has ``extra_key``, which is no part that the
    end of a salt could spell."""
    options = CallOptions.parse(named)
    if extra_key is None:
        return options
    before = options.namespace
    return dataclasses.replace(options, namespace=f"extra:{len(extra_key)}:{extra_key}|{before}")


@contextlib.contextmanager
def client_names(**more: str) -> Iterator[None]:
    """What is refused inside is told under the names that the client used. ``more``: as
    ``_CLIENT_NAMES``, for this request."""
    try:
        yield
    except InvalidParameter as error:
        ours = error.data.get("param")
        theirs = (_CLIENT_NAMES | more).get(ours) if isinstance(ours, str) else None
        if theirs is None:
            raise
        message = error.message
        for name in _CLIENT_NAMES:
            message = message.replace(name, (_CLIENT_NAMES | more)[name])
        raise InvalidParameter(message, **{**error.data, "param": theirs}) from error

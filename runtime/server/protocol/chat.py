"""ChatBody: what ``/v1/chat/completions`` is sent."""

from __future__ import annotations

from typing import Any, ClassVar

from rtlang.errors import InvalidParameter
from rtlang.runtime.server.chat_plan import ChatAsk
from rtlang.runtime.server.protocol.logprobs import logprob_options
from rtlang.runtime.server.protocol.sampling import NOT_BUILT, WITHOUT_EFFECT, SamplingBody


class ChatBody(SamplingBody):
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = WITHOUT_EFFECT | {"prediction"}
    NOT_BUILT: ClassVar[dict[str, str]] = NOT_BUILT | {
        "audio": "audio is not built",
        "functions": "the older form of tools is not built: give tools",
        "function_call": "the older form of tool_choice is not built: give tool_choice",
        "web_search_options": "searching the web is not built",
        "verbosity": "no model here knows it",
    }

    messages: list[dict[str, Any]] | None = None
    input_ids: list[int] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None

    def check(self) -> None:
        """Raises ``InvalidParameter`` for fields that contradict each other."""
        self.check_stream_options()
        if self.messages is None and self.input_ids is None:
            raise InvalidParameter("messages is missing", param="messages")
        if self.modalities is not None and self.modalities != ["text"]:
            message = f"modalities other than text are not built: {self.modalities}"
            raise InvalidParameter(message, param="modalities")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidParameter("top_logprobs needs logprobs=true", param="top_logprobs")
        if self.stream and self.prompt_logprobs is not None:
            message = "prompt_logprobs are not for stream=true"
            raise InvalidParameter(message, param="prompt_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt exclude each other"
            raise InvalidParameter(message, param="continue_final_message")

    @property
    def top_num(self) -> int | None:
        """Alternatives of each generated token; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def length_name(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def ask(self) -> ChatAsk:
        length = self.max_completion_tokens
        length = self.max_tokens if length is None else length
        wanted = logprob_options(output_top=self.top_num, prompt_top=self.prompt_logprobs)
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        flags = ("parallel_tool_calls", "continue_final_message", "add_generation_prompt",
                 "separate_reasoning", "tools", "tool_choice", "messages")  # fmt: skip
        return ChatAsk(
            **self.given(*flags),
            response_format=self.response_format,
            input_ids=self.input_ids,
            chat_template_kwargs=variables,
            sampling=self.sampling() | {"max_new_tokens": length},
            options=self.options(wanted),
        )

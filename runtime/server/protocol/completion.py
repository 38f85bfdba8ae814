"""CompletionBody: what ``/v1/completions`` is sent."""

from __future__ import annotations

from typing import Any, ClassVar

from rtlang.errors import InvalidParameter, InvalidPrompt
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.job import Ask
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.server.body import check_count
from rtlang.runtime.server.protocol.logprobs import logprob_options
from rtlang.runtime.server.protocol.response_format import one_of, read_response_format
from rtlang.runtime.server.protocol.sampling import NOT_BUILT, SamplingBody
from rtlang.runtime.tokenizer import Tokenizer

#: OpenAI's, of this endpoint alone.
DEFAULT_MAX_TOKENS = 16


class CompletionBody(SamplingBody):
    NOT_BUILT: ClassVar[dict[str, str]] = NOT_BUILT | {
        "suffix": "inserting text before a suffix is not built",
        "prompt_embeds": "embeddings as prompts are not built",
    }

    prompt: str | list[str] | list[int] | list[list[int]] | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    add_special_tokens: bool | None = None

    def check(self) -> None:
        """Raises ``InvalidParameter`` for fields that contradict each other."""
        self.check_stream_options()
        n = 1 if self.n is None else self.n
        best_of = n if self.best_of is None else self.best_of
        if best_of < n:
            message = f"best_of = {best_of} is less than n = {n}"
            raise InvalidParameter(message, param="best_of")
        if best_of > n and self.stream:
            message = "with stream=true, best_of must be n: the best are known at the end"
            raise InvalidParameter(message, param="best_of")
        if self.stream and self.prompt_logprobs is not None:
            message = "prompt_logprobs are not for stream=true: echo has them"
            raise InvalidParameter(message, param="prompt_logprobs")

    @property
    def num_choices(self) -> int:
        """Of each prompt."""
        return 1 if self.n is None else self.n

    @property
    def ranks(self) -> bool:
        return self.best_of is not None and self.best_of > self.num_choices

    def prompts(self, tokenizer: Tokenizer) -> list[tuple[str | None, list[int]]]:
        """Text, None where ids were given, and ids of each prompt."""
        given = self.prompt
        if given is None:
            raise InvalidPrompt("prompt is missing", param="prompt")
        if isinstance(given, str):
            return [self._encoded(tokenizer, given)]
        if not given:
            raise InvalidPrompt("the prompt is empty", param="prompt")
        if not isinstance(given[0], int):
            check_count(len(given))
        found: list[tuple[str | None, list[int]]] = []
        for one in given:
            if isinstance(one, str):
                found.append(self._encoded(tokenizer, one))
            elif isinstance(one, list):
                found.append((None, one))
            else:
                return [(None, [i for i in given if isinstance(i, int)])]  # all are
        return found

    def _encoded(self, tokenizer: Tokenizer, text: str) -> tuple[str, list[int]]:
        add_bos = self.add_special_tokens is not False
        return text, tokenizer.encode(text, add_bos=add_bos)

    def params(self) -> SamplingParams:
        length = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        given = self.sampling() | {"max_new_tokens": length}
        if self.best_of is not None:
            given["n"] = self.best_of
        by_format = read_response_format(self.response_format)
        if by_format is not None:
            given["grammar"] = _grammar(given, by_format)
        return SamplingParams.parse(given)

    def asks(self, tokenizer: Tokenizer) -> list[tuple[str | None, Ask]]:
        params, options = self.params(), self.options(self._logprob_options())
        return [
            (text, self.cut(Ask(ids, params, options))) for text, ids in self.prompts(tokenizer)
        ]

    def _logprob_options(self) -> LogprobOptions | None:
        output = self.logprobs
        prompt = self.prompt_logprobs
        if self.echo and output is not None:
            prompt = max(output, prompt or 0)
        if self.ranks and output is None:
            output = 0
        return logprob_options(output_top=output, prompt_top=prompt)


def _grammar(given: dict[str, Any], by_format: GrammarSpec) -> GrammarSpec:
    """Raises ``ConflictingConstraints`` where ``given`` holds a constraint, which is taken out."""
    kinds = ("json_schema", "regex", "ebnf", "choice", "structural_tag")
    own = {name: given.pop(name) for name in kinds if name in given}
    found = one_of(GrammarSpec.of(own) if own else None, by_format)
    assert found is not None
    return found

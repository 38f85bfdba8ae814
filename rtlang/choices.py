"""How ``select`` decides: pure functions of the options' token log-probabilities.

The three methods are SGLang's; a token log-probability of exactly 0.0 counts like any other.
Equal scores: the first option wins.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any, Protocol

from rtlang.errors import ProgramError

#: One list per option, one number per token. None: a first token that nothing predicts.
Logprobs = Sequence[Sequence[float]]
Unconditional = Sequence[Sequence[float | None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    index: int
    meta: dict[str, Any]  # what the method adds to the meta info


class ChoicesMethod(Protocol):
    """Picks an option. ``needs_unconditional``: it wants scores without the prompt, too."""

    @property
    def name(self) -> str: ...

    @property
    def needs_unconditional(self) -> bool: ...

    def __call__(self, logprobs: Logprobs, unconditional: Unconditional | None) -> Decision: ...


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda i: (values[i], -i))


class TokenLengthNormalized:
    """The option with the highest mean token log-probability."""

    name = "token_length_normalized"
    needs_unconditional = False

    def __repr__(self) -> str:
        return self.name

    def __call__(self, logprobs: Logprobs, unconditional: Unconditional | None = None) -> Decision:
        return Decision(_argmax([_mean(row) for row in logprobs]), {})


class GreedyTokenSelection:
    """Token by token, keep the options whose token is likeliest; so the predictable tail of a
    long option cannot outvote a bad first token. A short option goes on with its own mean."""

    name = "greedy_token_selection"
    needs_unconditional = False

    def __repr__(self) -> str:
        return self.name

    def __call__(self, logprobs: Logprobs, unconditional: Unconditional | None = None) -> Decision:
        length = max(map(len, logprobs))
        matrix = [[*row, *[_mean(row)] * (length - len(row))] for row in logprobs]
        left = list(range(len(matrix)))
        for column in range(length):
            best = max(matrix[i][column] for i in left)
            left = [i for i in left if matrix[i][column] == best]
            if len(left) == 1:
                break
        return Decision(left[0], {"greedy_logprob_matrix": matrix})


class UnconditionalLikelihoodNormalized:
    """The option whose tokens gain most from the prompt: highest mean of log p(token | prompt) -
    log p(token), the latter without the prompt (0 for a first token that nothing predicts)."""

    name = "unconditional_likelihood_normalized"
    needs_unconditional = True

    def __repr__(self) -> str:
        return self.name

    def __call__(self, logprobs: Logprobs, unconditional: Unconditional | None = None) -> Decision:
        assert unconditional is not None
        known = [[0.0 if v is None else v for v in row] for row in unconditional]
        gains = [
            # An impossible token stays one, even where it was so without the prompt.
            _mean([a - b if a > -math.inf else a for a, b in zip(row, base, strict=True)])
            for row, base in zip(logprobs, known, strict=True)
        ]
        return Decision(
            _argmax(gains),
            {
                "unconditional_token_logprobs": [list(row) for row in unconditional],
                "normalized_unconditional_prompt_logprobs": gains,
            },
        )


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()

#: Not a method of scores: the options become a constraint, of which the model says one.
BY_GRAMMAR = "grammar"

METHODS: dict[str, ChoicesMethod] = {
    m.name: m
    for m in (token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized)
}


def as_method(method: ChoicesMethod | str | None) -> ChoicesMethod:
    """Raises ``ProgramError`` for what is neither a method nor one's name."""
    if method is None:
        return token_length_normalized
    if isinstance(method, str):
        if method not in METHODS:
            known = ", ".join((*METHODS, BY_GRAMMAR))
            raise ProgramError(f"no choices method {method!r}; there are {known}")
        return METHODS[method]
    if not callable(method) or not hasattr(method, "needs_unconditional"):
        raise ProgramError(f"choices_method must be a method or its name, got {method!r}")
    return method


def option_probs(logprobs: Logprobs, temperature: float = 1.0) -> list[float]:
    """Softmax over the options of their summed log-likelihoods / ``temperature``; sums to 1."""
    totals = [math.fsum(row) / temperature for row in logprobs]
    top = max(totals)
    if top == -math.inf:  # the model rules out every option alike
        return [1.0 / len(totals)] * len(totals)
    weights = [math.exp(t - top) for t in totals]
    total = math.fsum(weights)
    return [w / total for w in weights]


def draw(probs: Sequence[float], seed: int | None) -> int:
    """An index with these probabilities; the same seed, the same index."""
    point = random.Random(seed).random()
    for i, p in enumerate(probs):
        point -= p
        if point < 0:
            return i
    return _argmax(probs)  # rounding: the probabilities summed to just under 1

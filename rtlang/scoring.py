"""Log-probabilities of a ``select``'s options: each distinct token of them is computed once."""

from __future__ import annotations

from collections.abc import Sequence

from rtlang.backends.base import Call
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.result import GenerateResult
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.trie import Chain, Ids, chains

_SCORE_ONLY = SamplingParams(max_new_tokens=0, temperature=0.0)


class Scoring:
    """The requests that score ``options`` (token ids) as continuations of ``prefix``.

    ``calls`` may all be sent at once: a chain finds its parents' tokens in the cache, or waits in
    the scheduler for whoever computes them. With an empty prefix nothing predicts an option's
    first token: its score is None.
    """

    def __init__(
        self,
        prefix: Sequence[int],
        options: Sequence[Sequence[int]],
        *,
        priority: int,
        timeout_s: float | None,
        chat: bool,
    ) -> None:
        self._options = [tuple(option) for option in options]
        self._chains = [c for c in chains(options) if len(prefix) or c.run]
        self.calls = [
            Call(
                input_ids=[*prefix, *chain.path, *chain.run],
                params=_SCORE_ONLY,
                logprobs=LogprobOptions(
                    # A run's first token is scored by the chain before it.
                    start_len=len(prefix) + len(chain.path) + bool(chain.run),
                    token_ids=chain.next_ids,
                ),
                priority=priority,
                timeout_s=timeout_s,
                chat=chat,
            )
            for chain in self._chains
        ]

    def scores(self, results: Sequence[GenerateResult]) -> list[list[float | None]]:
        """Per option, one log-probability per token. ``results`` of ``calls``, in order."""
        table: dict[Ids, float | None] = {}
        for chain, result in zip(self._chains, results, strict=True):
            _read(chain, result, table)
        return [[table.get(o[: end + 1]) for end in range(len(o))] for o in self._options]


def _read(chain: Chain, result: GenerateResult, table: dict[Ids, float | None]) -> None:
    """Enter what one chain's request has told: one entry per position of ``run[1:]``, and one
    after it for the tokens at the branch."""
    entries = list(result.prompt_logprobs or ())
    assert len(entries) == max(len(chain.run) - 1, 0) + bool(chain.next_ids), (chain, entries)
    prefix = chain.path + chain.run[:1]
    for token, entry in zip(chain.run[1:], entries, strict=False):
        assert entry.token_id == token
        prefix += (token,)
        table[prefix] = entry.logprob
    if chain.next_ids:
        for token, logprob in zip(chain.next_ids, entries[-1].ids, strict=True):
            table[(*prefix, token)] = logprob

"""Log-probabilities of the raw logits, as finite floats: JSON knows no infinity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rtlang.runtime.messages import LogprobOptions, TokenLogprobs

#: What an impossible token is reported with (and every token of a row that is not finite).
FLOOR = -9999.0


Entries = list[TokenLogprobs]


def position_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], options: LogprobOptions
) -> Entries:
    """One entry per row of ``logits`` [n, vocab_size], for the token that came there.

    A token id of -1 stands for "none yet": no log-probability, but alternatives and asked ids.
    The alternatives are the most likely tokens, the lower id first among equals.
    """
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    return start_logprobs(logits, chosen, options)()


def start_logprobs(
    logits: torch.Tensor, chosen: torch.Tensor, options: LogprobOptions
) -> Callable[[], Entries]:
    """``position_logprobs`` in two halves: what a GPU computes is launched here, and read by
    calling the result. ``logits`` may change meanwhile.

    chosen  [n] int64, on the device of ``logits``
    """
    logp = torch.log_softmax(logits.float(), dim=-1).nan_to_num_(nan=FLOOR).clamp_(min=FLOOR)
    values = logp.gather(1, chosen.clamp(min=0)[:, None])[:, 0]
    top = logp.topk(options.top_num, dim=-1) if options.top_num else None
    asked = logp[:, list(options.token_ids)] if options.token_ids else None

    def read() -> Entries:
        entries = [
            TokenLogprobs(token, None if token < 0 else value)
            for token, value in zip(chosen.tolist(), values.tolist(), strict=True)
        ]
        if top is not None:
            for entry, best in zip(entries, _top(logp, *top, options.top_num), strict=True):
                entry.top = best
        if asked is not None:
            for entry, row in zip(entries, asked.tolist(), strict=True):
                entry.ids = row
        return entries

    return read


def _top(
    logp: torch.Tensor, values: torch.Tensor, ids: torch.Tensor, num: int
) -> list[list[tuple[int, float]]]:
    """Per row (id, value) of its ``num`` largest. ``topk`` takes any of the equals at the border,
    so rows that have some there are done again."""
    border = values[:, -1:]
    tied = ((logp >= border).sum(dim=1) > num).tolist()
    found = []
    for j, (row_ids, row_values) in enumerate(zip(ids.tolist(), values.tolist(), strict=True)):
        pairs = list(zip(row_ids, row_values, strict=True))
        if tied[j]:
            at = torch.nonzero(logp[j] >= border[j])[:, 0]
            pairs = list(zip(at.tolist(), logp[j, at].tolist(), strict=True))
        pairs.sort(key=lambda pair: (-pair[1], pair[0]))
        found.append(pairs[:num])
    return found

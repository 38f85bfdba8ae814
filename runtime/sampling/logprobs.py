"""Log-probabilities of the raw logits, as finite floats: JSON knows no infinity."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rtlang.runtime.messages import LogprobOptions, TokenLogprobs

#: What an impossible token is reported with (and every token of a row that is not finite).
FLOOR = -9999.0


def position_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], options: LogprobOptions
) -> list[TokenLogprobs]:
    """One entry per row of ``logits`` [n, vocab_size], for the token that came there.

    A token id of -1 stands for "none yet": no log-probability, but alternatives and asked ids.
    The alternatives are the most likely tokens, the lower id first among equals.
    """
    logp = torch.log_softmax(logits.float(), dim=-1).nan_to_num_(nan=FLOOR).clamp_(min=FLOOR)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    values = logp.gather(1, chosen.clamp(min=0)[:, None])[:, 0].tolist()
    entries = [
        TokenLogprobs(token, None if token < 0 else value)
        for token, value in zip(token_ids, values, strict=True)
    ]
    if options.top_num:
        for entry, top in zip(entries, _top(logp, options.top_num), strict=True):
            entry.top = top
    if options.token_ids:
        asked = logp[:, list(options.token_ids)].tolist()
        for entry, row in zip(entries, asked, strict=True):
            entry.ids = row
    return entries


def _top(logp: torch.Tensor, num: int) -> list[list[tuple[int, float]]]:
    """Per row (id, value) of its ``num`` largest. ``topk`` takes any of the equals at the border,
    so rows that have some there are done again."""
    values, ids = logp.topk(num, dim=-1)
    border = values[:, -1:]
    tied = (logp >= border).sum(dim=1) > num
    found = []
    for j, (row_ids, row_values) in enumerate(zip(ids.tolist(), values.tolist(), strict=True)):
        pairs = list(zip(row_ids, row_values, strict=True))
        if tied[j]:
            at = torch.nonzero(logp[j] >= border[j])[:, 0]
            pairs = list(zip(at.tolist(), logp[j, at].tolist(), strict=True))
        pairs.sort(key=lambda pair: (-pair[1], pair[0]))
        found.append(pairs[:num])
    return found

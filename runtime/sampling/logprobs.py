"""Log-probabilities of the raw logits, as finite floats: JSON knows no infinity."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rtlang.runtime.messages import LogprobOptions, TokenLogprobs

#: What an impossible token is reported with.
FLOOR = -9999.0


def position_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], options: LogprobOptions
) -> list[TokenLogprobs]:
    """One entry per row of ``logits`` [n, vocab_size], for the token that came there.

    A token id of -1 stands for "none yet": no log-probability, but alternatives and asked ids.
    """
    logp = torch.log_softmax(logits.float(), dim=-1).clamp_(min=FLOOR)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    values = logp.gather(1, chosen.clamp(min=0)[:, None])[:, 0].tolist()
    entries = [
        TokenLogprobs(token, None if token < 0 else value)
        for token, value in zip(token_ids, values, strict=True)
    ]
    if options.top_num:
        top_values, top_ids = logp.topk(options.top_num, dim=-1)
        for entry, ids, row in zip(entries, top_ids.tolist(), top_values.tolist(), strict=True):
            entry.top = list(zip(ids, row, strict=True))
    if options.token_ids:
        asked = logp[:, list(options.token_ids)].tolist()
        for entry, row in zip(entries, asked, strict=True):
            entry.ids = row
    return entries

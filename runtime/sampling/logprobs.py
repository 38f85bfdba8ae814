"""Log-probabilities of the raw logits, as finite floats: JSON knows no infinity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rtlang.runtime.messages import LogprobOptions, TokenLogprobs

#: What an impossible token is reported with (and every token of a row that is not finite).
FLOOR = -9999.0
#: Prompt log-probabilities are computed for so many positions at once.
LOGPROB_ROWS = 64


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
    best = _top(logp, options.top_num) if options.top_num else None
    asked = logp[:, index_tensor(options.token_ids, logp.device)] if options.token_ids else None

    def read() -> Entries:
        entries = [
            TokenLogprobs(token, None if token < 0 else value)
            for token, value in zip(chosen.tolist(), values.tolist(), strict=True)
        ]
        if best is not None:
            for entry, *pair in zip(entries, *(t.tolist() for t in best), strict=True):
                ranked = zip(*pair, strict=True)
                entry.top = sorted(ranked, key=lambda item: (-item[1], item[0]))
        if asked is not None:
            for entry, row in zip(entries, asked.tolist(), strict=True):
                entry.ids = row
        return entries

    return read


def _top(logp: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, values) of each row's ``num`` largest, [n, num], in no order; the lowest ids among
    equals at the border, where ``topk`` takes any. Nothing as wide as ``logp`` is kept."""
    border = logp.topk(num, dim=-1).values[:, -1:]
    equal = logp == border
    room = num - (logp > border).sum(dim=1, keepdim=True)
    kept = (logp > border) | (equal & (equal.cumsum(dim=1) <= room))
    ids = kept.float().topk(num, dim=-1).indices
    return ids, logp.gather(1, ids)


def index_tensor(ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """[n] int64. From pinned memory: a copy from other memory would wait for the stream."""
    index = torch.tensor(ids, dtype=torch.int64)
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index

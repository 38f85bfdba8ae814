"""Matrix products with few rows, the shape of decode."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from rtlang.kernels.checks import check

#: On CPU, up to so many rows, weight @ x.T beats x @ weight.T (1.4 to 4 times, measured).
MAX_SWAPPED_ROWS = 128


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias; contiguous.

    x       [num_rows, in_features]
    weight  [out_features, in_features], dtype of x
    bias    [out_features] or None
    """
    check(x, "x", (None, weight.shape[1]), weight.dtype)
    rows = x.shape[0]
    if x.device.type != "cpu" or rows > MAX_SWAPPED_ROWS or x.dtype != torch.float32:
        return linear_ref(x, weight, bias)
    # One row goes as two: BLAS then takes its threaded matrix path instead of the vector one.
    columns = x.t() if rows > 1 else torch.cat((x, x)).t()
    out = torch.mm(weight, columns)[:, :rows].t().contiguous()
    return out if bias is None else out.add_(bias)


def linear_ref(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The plain form of ``linear``."""
    return F.linear(x, weight, bias)

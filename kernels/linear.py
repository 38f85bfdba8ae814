"""Matrix products with weights that were packed once, when the model was loaded."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F

from rtlang.kernels.checks import check
from rtlang.kernels.fp8 import FP8, dequantize, fits, fp8_linear, quantize_weight

#: A packed layout serves every number of rows; this one is what it is tuned for.
_TYPICAL_ROWS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """[out_features, in_features], in the layout that ``linear`` is fastest with."""

    data: torch.Tensor  # opaque where ``packed``
    out_features: int
    in_features: int
    dtype: torch.dtype  # of what it is multiplied with
    packed: bool
    scale: torch.Tensor | None = None  # [out_features] fp32 where ``data`` is FP8


def pack(weight: torch.Tensor, *, quantize: bool = False) -> Weight:
    """On x86 CPUs a copy in oneDNN's blocked layout, elsewhere the tensor itself. With
    ``quantize`` an FP8 copy, as of ``pack_fp8``.

    weight  [out_features, in_features]

    Measured with SmolLM2's matrices on 2 cores with AVX-512, against ``linear_ref``: 2.2 times
    as fast with 1 row, 3.3 times with 16, 2.3 times with 512.
    """
    check(weight, "weight", (None, None))
    if quantize and _can_quantize(weight):
        return pack_fp8(*quantize_weight(weight), weight.dtype)
    packed = _can_pack(weight)
    data = weight
    if packed:
        data = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
    return Weight(data, weight.shape[0], weight.shape[1], weight.dtype, packed)


def pack_fp8(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Weight:
    """A weight that is quantized already, for products with a ``dtype`` matrix.

    weight  [out_features, in_features] FP8
    scale   [out_features] fp32

    One whose sides the GPU's FP8 product does not take (no multiples of 16) is dequantized here.
    """
    check(weight, "weight", (None, None), FP8)
    check(scale, "scale", (weight.shape[0],), torch.float32)
    if not _can_quantize(weight):
        return pack(dequantize(weight, scale, dtype))
    rows, columns = weight.shape
    return Weight(weight.contiguous(), rows, columns, dtype, packed=False, scale=scale)


def _can_quantize(weight: torch.Tensor) -> bool:
    return not weight.is_cuda or fits(weight.shape[0], weight.shape[1])


def _can_pack(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not _has_onednn():
        return False
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _has_onednn() -> bool:
    """Whether torch was built with it, with the two operations that are used here."""
    built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    operations = ("_reorder_linear_weight", "_linear_pointwise")
    return built and all(hasattr(torch.ops.mkldnn, name) for name in operations)


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias; contiguous.

    x       [num_rows, in_features], dtype of the weight
    bias    [out_features] or None
    """
    check(x, "x", (None, weight.in_features), weight.dtype)
    if weight.scale is not None:
        return fp8_linear(x, weight.data, weight.scale, bias)
    if not weight.packed:
        return linear_ref(x, weight.data, bias)
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight.data, bias, "none", [], "")
    return out


def linear_fp32(x: torch.Tensor, weight: Weight, out: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T in fp32, for a plain weight; on a GPU the sums themselves, never rounded to the
    weight's 16 bits.

    out  [num_rows, out_features] fp32 or None
    """
    if not x.is_cuda or x.dtype == torch.float32 or weight.scale is not None:
        result = linear(x, weight).float()
        return result if out is None else out.copy_(result)
    check(x, "x", (None, weight.in_features), weight.dtype)
    if out is None:
        return torch.mm(x, weight.data.t(), out_dtype=torch.float32)
    mm: torch.Tensor = torch.ops.aten.mm.dtype_out(x, weight.data.t(), torch.float32, out=out)
    return mm


def linear_ref(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The plain form of ``linear``, with the plain weight."""
    return F.linear(x, weight, bias)

"""QK norm, rotary embedding and KV store in one kernel. Source: arXiv 2104.09864, half-split."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rtlang.kernels.checks import check
from rtlang.kernels.fp8 import FP8_MAX
from rtlang.kernels.ops import QKV
from rtlang.kernels.triton.jit import await_earlier, jit, pdl_options

#: Largest finite e4m3 number: what is stored in an FP8 pool saturates there.
_FP8_MAX = tl.constexpr(FP8_MAX)


@jit
def _angles_kernel(
    positions: tl.tensor,
    freqs: tl.tensor,
    out: tl.tensor,
    half: tl.tensor,
    HALF: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    await_earlier(PDL)
    t = tl.program_id(0)
    i = tl.arange(0, HALF)
    inside = i < half
    angle = tl.load(positions + t).to(tl.float32) * tl.load(freqs + i, mask=inside, other=0.0)
    tl.store(out + t * 2 * half + i, tl.cos(angle), mask=inside)
    tl.store(out + (t * 2 + 1) * half + i, tl.sin(angle), mask=inside)


def angles(positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2, head_dim / 2] fp32: cosines and sines, once a step for all layers.

    positions  [num_tokens] int32;  freqs [head_dim / 2] fp32
    """
    num_tokens, half = positions.shape[0], freqs.shape[0]
    out = torch.empty((num_tokens, 2, half), dtype=torch.float32, device=positions.device)
    _angles_kernel[(num_tokens,)](
        positions, freqs, out, half, HALF=triton.next_power_of_2(half), num_warps=1, **pdl_options()
    )
    return out


@jit
def _store(
    pointers: tl.tensor, values: tl.tensor, mask: tl.tensor, scale: tl.tensor, FP8: tl.constexpr
) -> None:
    if FP8:
        values = tl.minimum(tl.maximum(values / scale, -_FP8_MAX), _FP8_MAX)
    tl.store(pointers, values.to(pointers.dtype.element_ty), mask=mask)


@jit
def _qkv_kernel(
    qkv: tl.tensor,
    q_out: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    table: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    eps: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    NORM: tl.constexpr,
    FP8: tl.constexpr,
    TILE: tl.constexpr,
    HALF: tl.constexpr,
    QK_TILES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    await_earlier(PDL)
    half: tl.constexpr = DIM // 2
    t = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    i = tl.arange(0, HALF)[None, :]
    inside = i < half
    slot = tl.load(slots + t).to(tl.int64)
    token = qkv + t * (HEADS + 2 * KV_HEADS) * DIM
    if tile < QK_TILES:
        head = tile * TILE + tl.arange(0, TILE)[:, None]
        mask = (head < HEADS + KV_HEADS) & inside
        is_key = head >= HEADS
        a = tl.load(token + head * DIM + i, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(token + head * DIM + half + i, mask=mask, other=0.0).to(tl.float32)
        if NORM:
            square = tl.sum(a * a, 1) + tl.sum(b * b, 1)
            scale = tl.rsqrt(square / DIM + eps)[:, None]
            gain_q = tl.load(q_norm + i, mask=inside, other=0.0).to(tl.float32)
            gain_k = tl.load(k_norm + i, mask=inside, other=0.0).to(tl.float32)
            a *= scale * tl.where(is_key, gain_k, gain_q)
            gain_q = tl.load(q_norm + half + i, mask=inside, other=0.0).to(tl.float32)
            gain_k = tl.load(k_norm + half + i, mask=inside, other=0.0).to(tl.float32)
            b *= scale * tl.where(is_key, gain_k, gain_q)
        cos = tl.load(table + t * DIM + i, mask=inside, other=0.0)
        sin = tl.load(table + t * DIM + half + i, mask=inside, other=0.0)
        low, high = a * cos - b * sin, b * cos + a * sin
        q_at = q_out + (t * HEADS + head) * DIM + i
        is_q = mask & (head < HEADS)
        tl.store(q_at, low.to(q_out.dtype.element_ty), mask=is_q)
        tl.store(q_at + half, high.to(q_out.dtype.element_ty), mask=is_q)
        k_at = keys + slot * slot_stride + (head - HEADS) * head_stride + i
        _store(k_at, low, mask & is_key, k_scale, FP8)
        _store(k_at + half, high, mask & is_key, k_scale, FP8)
        tl.store(token + head * DIM + i, low.to(qkv.dtype.element_ty), mask=mask & is_key)
        tl.store(token + head * DIM + half + i, high.to(qkv.dtype.element_ty), mask=mask & is_key)
    else:
        head = (tile - QK_TILES) * TILE + tl.arange(0, TILE)[:, None]
        mask = (head < KV_HEADS) & inside
        at = token + (HEADS + KV_HEADS + head) * DIM + i
        v_at = values + slot * slot_stride + head * head_stride + i
        _store(v_at, tl.load(at, mask=mask, other=0.0).to(tl.float32), mask, v_scale, FP8)
        upper = tl.load(at + half, mask=mask, other=0.0).to(tl.float32)
        _store(v_at + half, upper, mask, v_scale, FP8)


def norm_rope_store(
    qkv: torch.Tensor,
    table: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    scales: tuple[float, float] = (1.0, 1.0),
) -> QKV:
    """Rotated queries [num_tokens, num_heads, head_dim], rotated keys and values [num_tokens,
    num_kv_heads, head_dim], these two as views of ``qkv``; keys and values also go to slots.

    qkv     [num_tokens, num_heads + 2 * num_kv_heads, head_dim], contiguous; its keys are rotated
            in place
    table   [num_tokens, 2, head_dim / 2] fp32, from ``angles``
    norms   RMSNorm weights [head_dim] of queries and keys, applied before the rotation, or None
    keys, values  [num_slots, num_kv_heads, head_dim], strides alike, head_dim contiguous
    slots   [num_tokens] int32
    scales  of an FP8 pool: what is stored is the key (value) over its scale
    """
    tokens, heads_total, dim = qkv.shape
    kv_heads = keys.shape[1]
    heads = heads_total - 2 * kv_heads
    check(keys, "keys", (None, kv_heads, dim))
    check(values, "values", tuple(keys.shape), keys.dtype)
    check(table, "table", (tokens, 2, dim // 2), torch.float32)
    check(slots, "slots", (tokens,))
    assert keys.stride() == values.stride() and keys.stride(2) == 1, keys.stride()
    q = qkv.new_empty(tokens, heads, dim)
    tile = 4 if tokens < 1024 else 16
    qk_tiles, v_tiles = triton.cdiv(heads + kv_heads, tile), triton.cdiv(kv_heads, tile)
    q_norm, k_norm = norms if norms is not None else (table, table)
    _qkv_kernel[(tokens, qk_tiles + v_tiles)](
        qkv,
        q,
        keys,
        values,
        slots,
        table,
        q_norm,
        k_norm,
        eps,
        *scales,
        keys.stride(0),
        keys.stride(1),
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        NORM=norms is not None,
        FP8=keys.dtype.itemsize == 1,
        TILE=tile,
        HALF=triton.next_power_of_2(dim // 2),
        QK_TILES=qk_tiles,
        num_warps=2 if tokens < 1024 else 4,
        **pdl_options(),
    )
    return q, qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]

"""The shared decoder: embeddings, blocks of attention and gated MLP, final norm, head."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F

from rtlang.kernels.attention.base import AttentionBackend, AttentionLayer
from rtlang.kernels.linear import linear, linear_fp32, pack
from rtlang.kernels.ops import Ops, TorchOps
from rtlang.kernels.rope import inverse_frequencies
from rtlang.runtime.layers.spec import DecoderSpec
from rtlang.runtime.layers.weights import WeightReader
from rtlang.runtime.mem.kv_pool import TokenToKVPool


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """What one forward pass brings to every layer."""

    slots: torch.Tensor  # [num_tokens], where the tokens' KV goes
    kv: TokenToKVPool
    backend: AttentionBackend  # planned for this batch


class Attention:
    """Fused QKV, optional QK norm, RoPE, paged attention, output projection."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: WeightReader,
        ops: Ops,
        prefix: str,
        layer: int,
        kv_scales: tuple[float, float],
    ) -> None:
        self._spec = spec
        self._ops = ops
        self._layer = layer
        at = f"{prefix}.self_attn"
        dim, hidden = spec.head_dim, spec.hidden_size
        q_size, kv_size = spec.num_heads * dim, spec.num_kv_heads * dim
        sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self._qkv = weights.linear([(f"{at}.{n}.weight", (s, hidden)) for n, s in sizes.items()])
        self._qkv_bias = None
        if spec.qkv_bias:
            self._qkv_bias = weights.fused([(f"{at}.{n}.bias", (s,)) for n, s in sizes.items()])
        self._o = weights.linear([(f"{at}.o_proj.weight", (hidden, q_size))])
        self._o_bias = weights.take(f"{at}.o_proj.bias", (hidden,)) if spec.o_bias else None
        self._norms = None
        if spec.qk_norm:
            q_norm = weights.norm(f"{at}.q_norm.weight", dim, spec.norm_offset)
            self._norms = q_norm, weights.norm(f"{at}.k_norm.weight", dim, spec.norm_offset)
        window = spec.windows[layer] if spec.windows else None
        self.is_local = window is not None
        self._kv_scales = kv_scales
        self._attention = AttentionLayer(spec.score_scale, window, spec.soft_cap, *self._kv_scales)

    def __call__(self, x: torch.Tensor, angles: Any, step: Pass) -> torch.Tensor:
        out = self._attend(linear(x, self._qkv, self._qkv_bias), angles, step)
        return linear(out, self._o, self._o_bias)

    def fused(self, residual: torch.Tensor, gain: torch.Tensor, angles: Any, step: Pass) -> None:
        """With the norm before it and the addition behind it as parts of the products."""
        eps = self._spec.norm_eps
        qkv = self._ops.norm_linear(residual, gain, eps, self._qkv, self._qkv_bias)
        out = self._attend(qkv, angles, step)
        self._ops.linear_add(out, self._o, residual, self._o_bias)

    @property
    def fuses(self) -> bool:
        return self._ops.fuses(self._qkv) and self._ops.fuses(self._o)

    def _attend(self, qkv: torch.Tensor, angles: Any, step: Pass) -> torch.Tensor:
        """[n, (num_heads + 2 * num_kv_heads) * head_dim] -> [n, num_heads * head_dim]"""
        spec = self._spec
        keys, values = step.kv.keys[self._layer], step.kv.values[self._layer]
        q, *new = self._ops.norm_rope_store(
            qkv.view(len(qkv), spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim),
            angles,
            self._norms,
            spec.norm_eps,
            keys,
            values,
            step.slots,
            self._kv_scales,
        )
        out = step.backend.run(q, keys, values, self._attention, new=(new[0], new[1]))
        return out.reshape(len(qkv), -1)


class MLP:
    """down(act(gate(x)) * up(x)), gate and up fused."""

    def __init__(self, spec: DecoderSpec, weights: WeightReader, ops: Ops, prefix: str) -> None:
        at, size, hidden = f"{prefix}.mlp", spec.intermediate_size, spec.hidden_size
        names = (f"{at}.gate_proj", f"{at}.up_proj")
        self._ops = ops
        self._gate_up = weights.linear([(f"{n}.weight", (size, hidden)) for n in names])
        self._down = weights.linear([(f"{at}.down_proj.weight", (hidden, size))])
        self._gate_up_bias = self._down_bias = None
        if spec.mlp_bias:
            self._gate_up_bias = weights.fused([(f"{n}.bias", (size,)) for n in names])
            self._down_bias = weights.take(f"{at}.down_proj.bias", (hidden,))
        self._activation = spec.activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = linear(x, self._gate_up, self._gate_up_bias)
        return linear(self._ops.gated(gate_up, self._activation), self._down, self._down_bias)

    def fused(self, residual: torch.Tensor, gain: torch.Tensor, eps: float) -> None:
        hidden = self._ops.norm_gated(
            residual, gain, eps, self._gate_up, self._activation, self._gate_up_bias
        )
        self._ops.linear_add(hidden, self._down, residual, self._down_bias)

    @property
    def fuses(self) -> bool:
        return self._ops.fuses(self._gate_up) and self._ops.fuses(self._down)


class Block:
    """One layer. With post norms (Gemma) each branch is normed again before it is added."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: WeightReader,
        ops: Ops,
        layer: int,
        *,
        use_kv_scales: bool,
    ) -> None:
        at = f"model.layers.{layer}"
        scales = weights.kv_scales(at)
        self._eps = spec.norm_eps
        self._ops = ops
        self.attention = Attention(
            spec, weights, ops, at, layer, scales if use_kv_scales else (1.0, 1.0)
        )
        self._mlp = MLP(spec, weights, ops, at)

        def norm(name: str) -> torch.Tensor:
            return weights.norm(f"{at}.{name}.weight", spec.hidden_size, spec.norm_offset)

        self._input_norm = norm("input_layernorm")
        self._post_attention_norm = self._post_mlp_norm = None
        if spec.post_norms:
            self._post_attention_norm = norm("post_attention_layernorm")
            self._mlp_norm = norm("pre_feedforward_layernorm")
            self._post_mlp_norm = norm("post_feedforward_layernorm")
        else:
            self._mlp_norm = norm("post_attention_layernorm")

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, angles: Any, step: Pass
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(output still to be added, residual)."""
        ops, eps = self._ops, self._eps
        if residual is None:
            residual = x
            x = ops.rmsnorm(x, self._input_norm, eps)
        else:
            x = ops.add_rmsnorm(x, residual, self._input_norm, eps)
        x = self.attention(x, angles, step)
        if self._post_attention_norm is not None:
            x = ops.rmsnorm(x, self._post_attention_norm, eps)
        x = self._mlp(ops.add_rmsnorm(x, residual, self._mlp_norm, eps))
        if self._post_mlp_norm is not None:
            x = ops.rmsnorm(x, self._post_mlp_norm, eps)
        return x, residual

    def fused(self, residual: torch.Tensor, angles: Any, step: Pass) -> None:
        """The whole layer, in place."""
        self.attention.fused(residual, self._input_norm, angles, step)
        self._mlp.fused(residual, self._mlp_norm, self._eps)

    @property
    def fuses(self) -> bool:
        """Whether ``fused`` can do it."""
        plain = self._post_attention_norm is None and self._post_mlp_norm is None
        return plain and self.attention.fuses and self._mlp.fuses


class Decoder:
    """A whole model. ``weights`` are taken by their Hugging Face names."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: WeightReader,
        ops: Ops | None = None,
        *,
        use_kv_scales: bool = False,
    ) -> None:
        """``use_kv_scales``: the pool is FP8, and the checkpoint's scales of it apply."""
        self.spec = spec
        self._ops = ops = ops or TorchOps()
        vocab = (spec.vocab_size, spec.hidden_size)
        self._embed = weights.take("model.embed_tokens.weight", vocab)
        self._blocks = [
            Block(spec, weights, ops, i, use_kv_scales=use_kv_scales)
            for i in range(spec.num_layers)
        ]
        self._norm = weights.norm("model.norm.weight", spec.hidden_size, spec.norm_offset)
        # A tied head is packed too: rows are looked up in one layout and multiplied in the other.
        self._head = pack(self._embed if spec.tied else weights.take("lm_head.weight", vocab))
        device = self._embed.device
        freqs = inverse_frequencies(spec.head_dim, spec.rope.theta, spec.rope.scaling)
        self._freqs = freqs.to(device)
        local = spec.local_rope or spec.rope
        freqs = inverse_frequencies(spec.head_dim, local.theta, local.scaling)
        self._local_freqs = freqs.to(device)
        self._fuses = all(block.fuses for block in self._blocks)
        self._embed_scale = torch.tensor(spec.embed_scale, dtype=self._embed.dtype, device=device)

    def hidden(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        step: Pass,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Normed hidden states [num_tokens, hidden_size]; stores the batch's KV in the pool.

        input_ids, positions  [num_tokens] ints
        out  where the result goes, or None
        """
        x = F.embedding(input_ids, self._embed)
        if self.spec.embed_scale != 1.0:
            x = x * self._embed_scale
        angles = local_angles = self._ops.angles(positions, self._freqs)
        if self.spec.local_rope is not None:
            local_angles = self._ops.angles(positions, self._local_freqs)
        if self._fuses and self._ops.prefers_fused(*x.shape):
            for block in self._blocks:
                block.fused(x, local_angles if block.attention.is_local else angles, step)
            return self._ops.rmsnorm(x, self._norm, self.spec.norm_eps, out)
        residual: torch.Tensor | None = None
        for block in self._blocks:
            x, residual = block(
                x, residual, local_angles if block.attention.is_local else angles, step
            )
        assert residual is not None, "a decoder has at least one layer"
        return self._ops.add_rmsnorm(x, residual, self._norm, self.spec.norm_eps, out)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, hidden_size] -> [n, vocab_size] fp32, ``out`` where it is given"""
        return linear_fp32(hidden, self._head, out)

"""The shared decoder: embeddings, blocks of attention and gated MLP, final norm, head."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from rtlang.kernels.attention.base import AttentionBackend, AttentionLayer
from rtlang.kernels.linear import linear, pack
from rtlang.kernels.norm import add_rmsnorm, rmsnorm
from rtlang.kernels.rope import apply_rope, cos_sin, inverse_frequencies
from rtlang.kernels.store_kv import store_kv
from rtlang.runtime.forward_batch import ForwardBatch
from rtlang.runtime.layers.spec import DecoderSpec
from rtlang.runtime.layers.weights import WeightReader
from rtlang.runtime.mem.kv_pool import TokenToKVPool

CosSin = tuple[torch.Tensor, torch.Tensor]


class Attention:
    """Fused QKV, optional QK norm, RoPE, paged attention, output projection."""

    def __init__(self, spec: DecoderSpec, weights: WeightReader, prefix: str, layer: int) -> None:
        self._spec = spec
        self._layer = layer
        at = f"{prefix}.self_attn"
        dim, hidden = spec.head_dim, spec.hidden_size
        q_size, kv_size = spec.num_heads * dim, spec.num_kv_heads * dim
        sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        qkv = weights.fused([(f"{at}.{n}.weight", (s, hidden)) for n, s in sizes.items()])
        self._qkv = pack(qkv)
        self._qkv_bias = None
        if spec.qkv_bias:
            self._qkv_bias = weights.fused([(f"{at}.{n}.bias", (s,)) for n, s in sizes.items()])
        self._o = pack(weights.take(f"{at}.o_proj.weight", (hidden, q_size)))
        self._o_bias = weights.take(f"{at}.o_proj.bias", (hidden,)) if spec.o_bias else None
        self._q_norm = self._k_norm = None
        if spec.qk_norm:
            self._q_norm = weights.norm(f"{at}.q_norm.weight", dim, spec.norm_offset)
            self._k_norm = weights.norm(f"{at}.k_norm.weight", dim, spec.norm_offset)
        window = spec.windows[layer] if spec.windows else None
        self.is_local = window is not None
        scale = dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        self._attention = AttentionLayer(scale, window, spec.soft_cap)

    def __call__(
        self,
        x: torch.Tensor,
        rope: CosSin,
        batch: ForwardBatch,
        kv: TokenToKVPool,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        spec = self._spec
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        qkv = linear(x, self._qkv, self._qkv_bias)
        qkv = qkv.view(len(x), heads + 2 * kv_heads, spec.head_dim)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if self._q_norm is not None and self._k_norm is not None:
            q = rmsnorm(qk[:, :heads], self._q_norm, spec.norm_eps)
            k = rmsnorm(qk[:, heads:], self._k_norm, spec.norm_eps)
            qk = torch.cat((q, k), 1)
        qk = apply_rope(qk, *rope)
        keys, values = kv.keys[self._layer], kv.values[self._layer]
        store_kv(qk[:, heads:], keys, batch.out_slots)
        store_kv(v, values, batch.out_slots)
        out = backend.run(qk[:, :heads].contiguous(), keys, values, self._attention)
        return linear(out.reshape(len(x), -1), self._o, self._o_bias)


class MLP:
    """down(act(gate(x)) * up(x)), gate and up fused."""

    def __init__(self, spec: DecoderSpec, weights: WeightReader, prefix: str) -> None:
        at, size, hidden = f"{prefix}.mlp", spec.intermediate_size, spec.hidden_size
        names = (f"{at}.gate_proj", f"{at}.up_proj")
        self._gate_up = pack(weights.fused([(f"{n}.weight", (size, hidden)) for n in names]))
        self._down = pack(weights.take(f"{at}.down_proj.weight", (hidden, size)))
        self._gate_up_bias = self._down_bias = None
        if spec.mlp_bias:
            self._gate_up_bias = weights.fused([(f"{n}.bias", (size,)) for n in names])
            self._down_bias = weights.take(f"{at}.down_proj.bias", (hidden,))
        self._activation = spec.activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self._activation(linear(x, self._gate_up, self._gate_up_bias))
        return linear(hidden, self._down, self._down_bias)


class Block:
    """One layer. With post norms (Gemma) each branch is normed again before it is added."""

    def __init__(self, spec: DecoderSpec, weights: WeightReader, layer: int) -> None:
        at = f"model.layers.{layer}"
        self._eps = spec.norm_eps
        self.attention = Attention(spec, weights, at, layer)
        self._mlp = MLP(spec, weights, at)

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
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rope: CosSin,
        batch: ForwardBatch,
        kv: TokenToKVPool,
        backend: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(output still to be added, residual)."""
        if residual is None:
            residual = x.clone()
            x = rmsnorm(x, self._input_norm, self._eps)
        else:
            x, residual = add_rmsnorm(x, residual, self._input_norm, self._eps)
        x = self.attention(x, rope, batch, kv, backend)
        if self._post_attention_norm is not None:
            x = rmsnorm(x, self._post_attention_norm, self._eps)
        x, residual = add_rmsnorm(x, residual, self._mlp_norm, self._eps)
        x = self._mlp(x)
        if self._post_mlp_norm is not None:
            x = rmsnorm(x, self._post_mlp_norm, self._eps)
        return x, residual


class Decoder:
    """A whole model. ``weights`` are taken by their Hugging Face names."""

    def __init__(self, spec: DecoderSpec, weights: WeightReader) -> None:
        self.spec = spec
        vocab = (spec.vocab_size, spec.hidden_size)
        self._embed = weights.take("model.embed_tokens.weight", vocab)
        self._blocks = [Block(spec, weights, i) for i in range(spec.num_layers)]
        self._norm = weights.norm("model.norm.weight", spec.hidden_size, spec.norm_offset)
        # A tied head is packed too: rows are looked up in one layout and multiplied in the other.
        self._head = pack(self._embed if spec.tied else weights.take("lm_head.weight", vocab))
        self._freqs = inverse_frequencies(spec.head_dim, spec.rope.theta, spec.rope.scaling)
        local = spec.local_rope or spec.rope
        self._local_freqs = inverse_frequencies(spec.head_dim, local.theta, local.scaling)

    def hidden(
        self, batch: ForwardBatch, kv: TokenToKVPool, backend: AttentionBackend
    ) -> torch.Tensor:
        """Normed hidden states [num_tokens, hidden_size]; stores the batch's KV in the pool."""
        x = F.embedding(batch.input_ids, self._embed)
        if self.spec.embed_scale != 1.0:
            x = x * torch.tensor(self.spec.embed_scale, dtype=x.dtype)
        rope = local_rope = cos_sin(batch.positions, self._freqs)
        if self.spec.local_rope is not None:
            local_rope = cos_sin(batch.positions, self._local_freqs)
        residual: torch.Tensor | None = None
        for block in self._blocks:
            angles = local_rope if block.attention.is_local else rope
            x, residual = block(x, residual, angles, batch, kv, backend)
        assert residual is not None, "a decoder has at least one layer"
        return add_rmsnorm(x, residual, self._norm, self.spec.norm_eps)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] -> [n, vocab_size]"""
        return linear(hidden, self._head)

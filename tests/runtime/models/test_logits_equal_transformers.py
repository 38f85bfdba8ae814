"""Every architecture against transformers, on tiny random checkpoints, fp32.

Tolerance: 2e-4 absolute on logits of size about 1 (both sides sum in another order).
"""

from __future__ import annotations

import json
import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rtlang.errors import ModelLoadError
from rtlang.runtime.batch import Batch, ForwardMode
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import LogprobOptions, TokenLogprobs
from rtlang.runtime.model_runner import ModelRunner
from rtlang.runtime.models.source import resolve_model
from rtlang.runtime.req import Req
from rtlang.runtime.sampling_params import SamplingParams

VOCAB, LENGTH = 120, 50
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied-biased": ("Llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "llama-3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "llama-wide-heads": ("Llama", {"head_dim": 32}),
    "llama-mlp-biased": ("Llama", {"mlp_bias": True, "rms_norm_eps": 1e-3}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-all-heads": ("Llama", {"num_key_value_heads": 4}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-biased": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "gemma3": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24, "layer_types": [
            "sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "gemma3-scaled": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 7, "attn_logit_softcapping": None, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0}},
         "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
}  # fmt: skip


def checkpoint(name: str, folder: Path) -> Any:
    """A random model of the case, saved to ``folder``."""
    kind, changes = CASES[name]
    config_class = getattr(
        transformers, "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config"
    )
    torch.manual_seed(0)
    config = config_class(**{**SIZES, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


class Harness:
    """Runs chosen chunks of rows through a runner and gives all positions' log-probabilities."""

    def __init__(
        self, folder: Path, page_size: int = 1, config: EngineConfig | None = None
    ) -> None:
        config = config or EngineConfig(
            model=str(folder), max_total_tokens=512, page_size=page_size
        )
        self.runner = ModelRunner(config, resolve_model(config))
        self.pool = ReqToTokenPool(4, 256)
        self.runner.init_pools(512, self.pool)
        order = np.random.default_rng(3).permutation(np.arange(1, 512 // page_size))
        pages = order[: 4 * (96 // page_size)].reshape(4, -1)
        slots = pages[:, :, None] * page_size + np.arange(page_size)
        self.pool.slots[:, : slots.shape[1] * page_size] = slots.reshape(4, -1)

    def run(self, rows: list[tuple[int, list[int], int, int]]) -> list[list[TokenLogprobs]]:
        """``rows``: (pool row, ids, start, end); decode rows (one token) must come first."""
        reqs = []
        for row, ids, start, _ in rows:
            self.pool.token_ids[row, : len(ids)] = ids
            self.pool.lens[row] = len(ids)
            self.pool.prompt_lens[row] = len(ids)
            params = SamplingParams(max_new_tokens=0, temperature=0.0).resolve()
            req = Req("r", b"", array("i", ids), len(ids), params, 0, 256)
            req.logprobs = LogprobOptions(0, 0, tuple(range(VOCAB)))
            req.logprob_from = start + 1
            reqs.append(req)
        batch = Batch(
            ForwardMode.EXTEND,
            reqs,
            np.array([r[0] for r in rows], np.int32),
            np.array([r[3] for r in rows], np.int32),
            np.array([r[3] - r[2] for r in rows], np.int32),
            0,
            np.zeros(0, np.int32),
            self.pool,
        )
        result = self.runner.prepare(batch)().read()
        return [result.prompt_logprobs[i] for i in range(len(rows))]


def close(entries: list[TokenLogprobs], want: torch.Tensor) -> None:
    got = torch.tensor([e.ids for e in entries])
    torch.testing.assert_close(got, want, atol=2e-4, rtol=0)


def reference(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)


def random_ids(seed: int, length: int = LENGTH) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return ids


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, page_size: int, tmp_path: Path) -> None:
    model = checkpoint(name, tmp_path)
    harness = Harness(tmp_path, page_size)
    ids, other = random_ids(1), random_ids(2, 37)
    want = reference(model, ids)
    close(harness.run([(0, ids, 0, LENGTH)])[0], want)
    # In chunks, beside another prompt; then one token at a time.
    first, _ = harness.run([(1, ids, 0, 20), (2, other, 0, 37)])
    close(first, want[:20])
    middle, beside = harness.run([(1, ids, 20, 40), (2, other, 30, 37)])
    close(middle, want[20:40])
    close(beside, reference(model, other)[30:])
    for at in range(40, LENGTH):
        close(harness.run([(1, ids, at, at + 1)])[0], want[at : at + 1])
    # Both rows read the same cached prefix of row 0.
    long, fork = [*ids, 7, 8, 9], [*ids[:45], 5, 6]
    harness.pool.slots[3, :48] = harness.pool.slots[0, :48]
    border = 48 if page_size == 16 else LENGTH
    close(harness.run([(0, long, border, LENGTH + 3)])[0], reference(model, long)[border:])
    if page_size == 1:
        harness.pool.slots[3, 45:48] = [500, 501, 502]
        a, b = harness.run([(0, long, 50, 53), (3, fork, 45, 47)])
        close(a, reference(model, long)[50:])
        close(b, reference(model, fork)[45:])


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_text_part_of_a_gemma3_that_sees(prefix: str, tmp_path: Path) -> None:
    """Multimodal checkpoints, with the names that transformers 5 writes or those of the hub."""
    model = checkpoint("gemma3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): t for name, t in tensors.items()}
    renamed["vision_tower.vision_model.embeddings.patch_embedding.bias"] = torch.zeros(3)
    renamed["multi_modal_projector.mm_input_projection_weight"] = torch.zeros(3)
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    ids = random_ids(1)
    close(Harness(tmp_path).run([(0, ids, 0, LENGTH)])[0], reference(model, ids))


def _without(name: str, tensors: dict[str, torch.Tensor]) -> None:
    del tensors[name]


def _cut(name: str, tensors: dict[str, torch.Tensor]) -> None:
    tensors[name] = tensors[name][:-1].clone()


def _added(name: str, tensors: dict[str, torch.Tensor]) -> None:
    tensors[name] = torch.zeros(2)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_without, "model.layers.1.mlp.up_proj.weight"),
        (_without, "model.embed_tokens.weight"),
        (_without, "lm_head.weight"),
        (_cut, "model.layers.2.self_attn.k_proj.weight"),
        (_cut, "model.norm.weight"),
        (_added, "model.layers.0.self_attn.q_proj.bias"),
        (_added, "model.layers.3.mlp.up_proj.weight"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change: Any, name: str, tmp_path: Path) -> None:
    checkpoint("llama", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(name, tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    config = EngineConfig(model=str(tmp_path))
    with pytest.raises(ModelLoadError, match=re.escape(name)):
        ModelRunner(config, resolve_model(config))


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_a_tensor_that_nobody_needs_is_no_error(name: str, tmp_path: Path) -> None:
    """A tied head may be stored all the same; old checkpoints carry RoPE's table."""
    checkpoint("llama-tied-biased", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    _added(name, tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    config = EngineConfig(model=str(tmp_path))
    ModelRunner(config, resolve_model(config))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_j2_a_pool_full_of_nan_changes_no_logit(name: str, tmp_path: Path) -> None:
    """J2: the reserved slot, page tails and slots never written do not reach any row."""
    checkpoint(name, tmp_path)
    results = []
    for fill in (0.0, float("nan")):
        harness = Harness(tmp_path, page_size=16)
        assert harness.runner._kv is not None
        for tensor in (*harness.runner._kv.keys, *harness.runner._kv.values):
            tensor.fill_(fill)
        ids, other = random_ids(1), random_ids(2, 5)
        both = harness.run([(0, ids, 0, 33), (1, other, 0, 5)])
        both += harness.run([(1, other, 4, 5), (0, ids, 33, LENGTH)])
        results.append([[e.ids for e in entries] for entries in both])
    assert results[0] == results[1]


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    model = checkpoint("llama", tmp_path)
    config = EngineConfig(model=str(tmp_path), max_total_tokens=512, dtype="bfloat16")
    ids = random_ids(1)
    harness = Harness(tmp_path, config=config)
    got = torch.tensor([e.ids for e in harness.run([(0, ids, 0, LENGTH)])[0]])
    want = reference(model, ids)
    assert float((got - want).abs().max()) < 0.5
    assert float((got - want).abs().mean()) < 0.05

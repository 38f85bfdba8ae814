"""Every architecture against transformers, on tiny random checkpoints, fp32.

Tolerance: 2e-4 absolute on logits of size about 1 (both sides sum in another order).
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rtlang.errors import ModelLoadError
from rtlang.runtime.batch import Batch, ForwardMode
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import LogprobOptions, TokenLogprobs
from rtlang.runtime.model_runner import ModelRunner
from rtlang.runtime.models.registry import decoder_spec
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
    "llama-all-heads": ("Llama", {"num_key_value_heads": 4}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma3": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24, "layer_types": [
            "sliding_attention", "full_attention", "sliding_attention"]},
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

    def __init__(self, folder: Path, page_size: int = 1) -> None:
        config = EngineConfig(model=str(folder), max_total_tokens=512, page_size=page_size)
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
        result = self.runner.execute(batch)
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


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model = checkpoint("llama", tmp_path)
    state = dict(model.state_dict())
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    config = EngineConfig(model=str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj"):
        ModelRunner(config, resolve_model(config))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM.*LlamaForCausalLM"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2}}, "yarn"),
        ({"num_key_value_heads": 3}, "KV heads"),
    ],
)
def test_what_is_not_built_is_named(change: dict[str, Any], says: str) -> None:
    from_config = {**SIZES, "architectures": ["LlamaForCausalLM"], **change}
    with pytest.raises(ModelLoadError, match=says):
        decoder_spec(from_config)

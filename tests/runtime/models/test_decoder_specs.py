"""From ``config.json`` to a spec: old and new spellings, defaults, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Gemma3TextConfig

from rtlang.errors import ModelLoadError
from rtlang.runtime.layers.spec import RopeSpec
from rtlang.runtime.models.registry import ARCHITECTURES, decoder_spec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
#: As Google publishes it: nearly everything is left to the defaults.
GEMMA_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152},
}


def with_architecture(name: str, **changes: Any) -> dict[str, Any]:
    return {**LLAMA, "architectures": [f"{name}ForCausalLM"], **changes}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        ),
        ({}, {"rope_scaling": None, "rope_parameters": None, "rope_theta": 10000}),
    ],
)
def test_old_and_new_spelling_of_rope_mean_the_same(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert decoder_spec({**LLAMA, **old}).rope == decoder_spec({**LLAMA, **new}).rope


def test_sizes_that_a_config_leaves_out() -> None:
    spec = decoder_spec(LLAMA)
    assert (spec.num_kv_heads, spec.head_dim, spec.tied) == (4, 16, False)
    assert spec.activation == "silu"
    assert decoder_spec({**LLAMA, "head_dim": 24}).head_dim == 24
    assert decoder_spec({**LLAMA, "head_dim": None}).head_dim == 16


def test_gemma3_as_published() -> None:
    spec = decoder_spec(GEMMA_4B)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (8, 4, 256)
    assert (spec.vocab_size, spec.max_positions) == (262208, 131072)
    assert [i for i, window in enumerate(spec.windows) if window is None] == [5, 11, 17, 23, 29]
    assert set(spec.windows) == {1024, None}
    assert spec.rope == RopeSpec(1e6, {"factor": 8.0, "rope_type": "linear"})
    assert spec.local_rope is not None
    assert (spec.local_rope.theta, spec.local_rope.scaling.get("factor")) == (1e4, None)
    assert (spec.attention_scale, spec.tied) == (1 / 16, True)
    assert spec.activation == "gelu_pytorch_tanh"


def test_gemma3_defaults_are_those_of_transformers() -> None:
    sizes = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}
    name = {"architectures": ["Gemma3ForCausalLM"]}
    full = decoder_spec({**Gemma3TextConfig().to_dict(), **name})
    short = decoder_spec({**sizes, **name})
    for field in ("num_heads", "num_kv_heads", "head_dim", "vocab_size", "max_positions", "tied",
                  "windows", "attention_scale", "norm_eps", "soft_cap", "embed_scale"):  # fmt: skip
        assert getattr(full, field) == getattr(short, field), field
    assert full.rope.theta == short.rope.theta
    assert full.local_rope is not None and short.local_rope is not None
    assert full.local_rope.theta == short.local_rope.theta


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 8}, ()),  # use_sliding_window is what counts
        ({"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1}, ()),
        (
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 8),
        ),
        (
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention"] + ["full_attention"] * 3,
            },
            (8, None, None, None),
        ),
    ],
)
def test_windows_of_qwen(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert decoder_spec(with_architecture("Qwen2", **changes)).windows == windows
    assert decoder_spec(with_architecture("Qwen3", **changes)).windows == windows


@pytest.mark.parametrize(("window", "windows"), [(None, ()), (8, (8, 8, 8, 8))])
def test_windows_of_mistral(window: int | None, windows: tuple[int, ...]) -> None:
    assert decoder_spec(with_architecture("Mistral", sliding_window=window)).windows == windows


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM.*LlamaForCausalLM"),
        ({"architectures": None}, "unnamed.*Qwen3ForCausalLM"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"quantization_config": {"bits": 4}}, "unknown"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2}}, "yarn.*default, linear, llama3"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "relu"}, "relu.*silu"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers.*0"),
        ({"head_dim": 15}, "odd"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_what_is_not_built_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelLoadError, match=says):
        decoder_spec({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": ["full_attention"]}, "names 1 of 4"),
        ({"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
    ],
)
def test_features_of_gemma3_that_are_not_built_are_named(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelLoadError, match=says):
        decoder_spec(with_architecture("Gemma3", **changes))


def test_the_list_of_architectures_is_the_documented_one() -> None:
    assert sorted(ARCHITECTURES) == [
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    ]

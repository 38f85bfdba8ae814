"""FP8 checkpoints in both formats: they answer as what they stand for, and others are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rtlang.errors import ModelLoadError
from rtlang.kernels.fp8 import FP8, dequantize, fp8_linear_ref, quantize_weight
from rtlang.kernels.linear import linear
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.engine import Engine
from rtlang.runtime.layers.weights import DummyReader, WeightReader
from rtlang.runtime.model_runner import ModelRunner
from rtlang.runtime.models.quantization import Quantization, checkpoint_quantization
from rtlang.runtime.models.registry import decoder_spec
from rtlang.runtime.models.source import resolve_model
from rtlang.runtime.tokenizer import Tokenizer

Tensors = dict[str, torch.Tensor]
_HIDDEN, _MLP, _HEAD_DIM, _LAYERS = 64, 96, 16, 2
_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": ByteTokenizer().vocab_size,
    "hidden_size": _HIDDEN,
    "intermediate_size": _MLP,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": _HEAD_DIM,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_PROJECTIONS: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj": (64, _HIDDEN),
    "self_attn.k_proj": (32, _HIDDEN),
    "self_attn.v_proj": (32, _HIDDEN),
    "self_attn.o_proj": (_HIDDEN, 64),
    "mlp.gate_proj": (_MLP, _HIDDEN),
    "mlp.up_proj": (_MLP, _HIDDEN),
    "mlp.down_proj": (_HIDDEN, _MLP),
}
_FLOAT8: dict[str, Any] = {"type": "float", "num_bits": 8, "symmetric": True, "dynamic": False}
_TOKEN = {**_FLOAT8, "strategy": "token", "dynamic": True}
FP8_CONFIG = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": None}
PROMPT = list(b"the same answer")


def group(**changes: Any) -> dict[str, Any]:
    weights = {**_FLOAT8, "strategy": "channel"}
    return {"targets": ["Linear"], "weights": weights, "input_activations": _TOKEN, **changes}


def compressed(*groups: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {f"group_{i}": g for i, g in enumerate(groups or (group(),))},
        "kv_cache_scheme": None,
        **changes,
    }


def plain_tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        scale: float = shape[-1] ** -0.5
        return torch.randn(shape, generator=generator) * scale

    tensors = {
        "model.embed_tokens.weight": random(_CONFIG["vocab_size"], _HIDDEN),
        "lm_head.weight": random(_CONFIG["vocab_size"], _HIDDEN),
        "model.norm.weight": torch.ones(_HIDDEN),
    }
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        tensors |= {f"{at}.{n}.weight": random(*shape) for n, shape in _PROJECTIONS.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = torch.ones(_HIDDEN)
    return tensors


def quantized(kind: str, scale_name: str = "weight_scale") -> tuple[Tensors, Tensors]:
    """(FP8 tensors with their scales, the plain ones that they stand for). ``kind``: "channel",
    "tensor" or "mixed" (layer 0's q is left plain)."""
    stored, stand_for = {}, {}
    for name, tensor in plain_tensors().items():
        left = kind == "mixed" and name.endswith("0.self_attn.q_proj.weight")
        if "proj" not in name or left:
            stored[name] = stand_for[name] = tensor
            continue
        if kind == "tensor":
            scale = tensor.abs().max() / 448
            values = (tensor / scale).to(FP8)
            stored[name.replace("weight", scale_name)] = scale.reshape(1)
            scales = scale.expand(len(tensor))
        else:
            values, scales = quantize_weight(tensor)
            stored[name.replace("weight", scale_name)] = scales[:, None].clone()
        stored[name] = values
        stand_for[name] = dequantize(values, scales, torch.float32)
    return stored, stand_for


def write(folder: Path, tensors: Tensors, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_CONFIG | config))
    return folder


class Folder:
    """A model source for ``Engine``: a folder without a tokenizer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokenizer: Tokenizer = ByteTokenizer(_CONFIG["vocab_size"])

    def create_executor(self, config: EngineConfig) -> ModelRunner:
        return ModelRunner(config, resolve_model(EngineConfig(model=str(self.path))))


def logprobs(make_engine: Callable[..., Engine], folder: Path) -> torch.Tensor:
    """[prompt_len, vocab_size], of each next token."""
    result = make_engine(Folder(folder), max_total_tokens=256).generate(
        PROMPT,
        {"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=1,
        token_ids_logprob=list(range(_CONFIG["vocab_size"])),
    )
    return torch.tensor([entry.ids for entry in result.prompt_logprobs])


@pytest.mark.parametrize(
    ("kind", "scale_name", "entry"),
    [
        ("channel", "weight_scale", {"quantization_config": compressed()}),
        ("channel", "weight_scale_inv", {"quantization_config": FP8_CONFIG}),
        ("mixed", "weight_scale", {"compression_config": compressed()}),
        ("tensor", "weight_scale", {"quantization_config": FP8_CONFIG}),
        (
            "tensor",
            "weight_scale",
            {"quantization_config": compressed(group(weights={**_FLOAT8, "strategy": "tensor"}))},
        ),
    ],
)
def test_a_checkpoint_answers_as_what_it_stands_for(
    kind: str,
    scale_name: str,
    entry: dict[str, Any],
    tmp_path: Path,
    make_engine: Callable[..., Engine],
) -> None:
    stored, stand_for = quantized(kind, scale_name)
    got = logprobs(make_engine, write(tmp_path / "fp8", stored, **entry))
    want = logprobs(make_engine, write(tmp_path / "plain", stand_for))
    # What is left is that activations are quantized too.
    assert got.shape == want.shape == (len(PROMPT), _CONFIG["vocab_size"])
    assert float((got - want).norm() / (want - want.mean(-1, keepdim=True)).norm()) < 0.15


@pytest.mark.parametrize("kind", ["channel", "tensor"])
def test_fused_parts_keep_their_own_scales(kind: str) -> None:
    stored, stand_for = quantized(kind)
    stored["model.layers.0.self_attn.q_proj.weight_scale"] *= 8
    reader = WeightReader(stored.items(), torch.float32)
    at = "model.layers.0.self_attn"
    parts = [(f"{at}.{n}_proj.weight", _PROJECTIONS[f"self_attn.{n}_proj"]) for n in "qkv"]
    weight = reader.linear(parts)
    assert weight.data.dtype == FP8 and weight.out_features == 128
    assert weight.scale is not None and weight.scale.shape == (128,)
    matrix = torch.cat([stand_for[name] * (8 if ".q_" in name else 1) for name, _ in parts])
    torch.testing.assert_close(dequantize(weight.data, weight.scale, torch.float32), matrix)
    # The same tensors, where a plain form is asked for.
    plain = WeightReader(stored.items(), torch.float32)
    torch.testing.assert_close(plain.fused(parts), matrix)


def test_a_fused_weight_with_a_plain_part_stays_plain() -> None:
    stored, stand_for = quantized("mixed")
    at = "model.layers.{}.self_attn"
    for layer, is_fp8 in ((0, False), (1, True)):
        parts = [
            (f"{at.format(layer)}.{n}_proj.weight", _PROJECTIONS[f"self_attn.{n}_proj"])
            for n in "qkv"
        ]
        for quantize in (False, True):  # does not touch what the checkpoint left alone
            reader = WeightReader(stored.items(), torch.float32, quantize=quantize)
            weight = reader.linear(parts)
            assert (weight.scale is not None) == is_fp8
        if not is_fp8:
            x = torch.randn(3, _HIDDEN, generator=torch.Generator().manual_seed(1))
            want = x @ torch.cat([stand_for[name] for name, _ in parts]).T
            torch.testing.assert_close(linear(x, weight), want)


@pytest.mark.parametrize("make", ["dummy", "plain"])
def test_plain_weights_are_quantized_at_load(make: str) -> None:
    names = ("mlp.gate_proj", "mlp.up_proj")
    parts = [(f"model.layers.0.{n}.weight", _PROJECTIONS[n]) for n in names]
    cpu = torch.device("cpu")

    def reader(quantize: bool) -> WeightReader:
        if make == "dummy":
            return DummyReader(torch.float32, 0, cpu, quantize)
        return WeightReader(plain_tensors().items(), torch.float32, cpu, quantize)

    x = torch.randn(4, _HIDDEN, generator=torch.Generator().manual_seed(1))
    matrix = reader(False).fused(parts)
    weight = reader(True).linear(parts)
    assert weight.scale is not None
    torch.testing.assert_close(linear(x, weight), fp8_linear_ref(x, *quantize_weight(matrix)))
    torch.testing.assert_close(linear(x, reader(False).linear(parts)), x @ matrix.T)
    head = reader(True).take("lm_head.weight", (_CONFIG["vocab_size"], _HIDDEN))
    assert head.dtype == torch.float32


def test_dummy_weights_are_those_of_before() -> None:
    generator = torch.Generator().manual_seed(0)
    want = torch.empty(6, 4).normal_(0.0, 0.5, generator=generator)
    assert torch.equal(DummyReader(torch.float32).take("x.weight", (6, 4)), want)


def test_a_head_or_embedding_in_fp8_is_dequantized() -> None:
    values, scale = quantize_weight(plain_tensors()["lm_head.weight"])
    tensors = {"lm_head.weight": values, "lm_head.weight_scale": scale.bfloat16()}
    reader = WeightReader(tensors.items(), torch.bfloat16)
    head = reader.take("lm_head.weight", tuple(values.shape))
    want = dequantize(values, scale.bfloat16().float(), torch.bfloat16)
    assert head.dtype == torch.bfloat16 and torch.equal(head, want)
    reader.finish(tied=False)
    WeightReader(tensors.items(), torch.bfloat16).finish(tied=True)


# -- KV scales ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "scales"),
    [
        ({"k_scale": 0.5, "v_scale": 0.25}, (0.5, 0.25)),
        ({"attn.k_scale": 0.5, "attn.v_scale": 0.25}, (0.5, 0.25)),
        ({"k_proj.k_scale": 0.5, "v_proj.v_scale": 0.25}, (0.5, 0.25)),
        ({"k_proj.output_scale": 0.5, "v_proj.output_scale": 0.25}, (0.5, 0.25)),
        ({"kv_scale": 2.0}, (2.0, 2.0)),
        ({}, (1.0, 1.0)),
    ],
)
@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_kv_scales_are_read(prefix: str, names: dict[str, float], scales: Any) -> None:
    tensors = {f"{prefix}model.layers.1.self_attn.{n}": torch.tensor([v]) for n, v in names.items()}
    reader = WeightReader(tensors.items(), torch.bfloat16)
    assert reader.has_kv_scales == bool(names)
    for _ in range(2):
        assert reader.kv_scales("model.layers.1") == scales
    assert reader.kv_scales("model.layers.0") == (1.0, 1.0)
    reader.finish(tied=False)
    assert not DummyReader(torch.float32).has_kv_scales
    assert DummyReader(torch.float32).kv_scales("model.layers.0") == (1.0, 1.0)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"k_scale": torch.ones(1)}, "only one KV scale.*lacks v_scale"),
        ({"v_scale": torch.ones(1)}, "only one KV scale.*lacks k_scale"),
        ({"k_scale": torch.ones(2), "v_scale": torch.ones(2)}, r"k_scale has the shape \(2,\)"),
        ({"k_scale": torch.zeros(1), "v_scale": torch.ones(1)}, r"k_scale is 0\.0"),
        ({"kv_scale": torch.tensor(float("nan"))}, "kv_scale is nan"),
    ],
)
def test_kv_scales_that_make_no_sense_are_named(tensors: Tensors, says: str) -> None:
    named = {f"model.layers.0.self_attn.{n}": t for n, t in tensors.items()}
    with pytest.raises(ModelLoadError, match=says):
        WeightReader(named.items(), torch.float32).kv_scales("model.layers.0")


def test_a_whole_checkpoint_with_scales_that_are_not_used(
    tmp_path: Path, make_engine: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    """KV scales with a KV cache in 16 bits; static activation scales: said once."""
    stored, stand_for = quantized("tensor")
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        stored |= {f"{at}.self_attn.{n}_scale": torch.tensor([0.02]) for n in "kv"}
        stored |= {f"{at}.{n}.input_scale": torch.ones(1) for n in _PROJECTIONS}
    static = {**FP8_CONFIG, "activation_scheme": "static", "kv_cache_scheme": "static"}
    folder = write(tmp_path / "fp8", stored, quantization_config=static)
    with caplog.at_level(logging.WARNING):
        got = logprobs(make_engine, folder)
    said = [record.getMessage() for record in caplog.records if "activation" in record.message]
    assert len(said) == 1 and str(folder) in said[0]
    want = logprobs(make_engine, write(tmp_path / "plain", stand_for))
    assert float((got - want).norm() / (want - want.mean(-1, keepdim=True)).norm()) < 0.15


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "want"),
    [
        (FP8_CONFIG, Quantization("fp8", False, False)),
        ({**FP8_CONFIG, "activation_scheme": "static"}, Quantization("fp8", True, False)),
        ({**FP8_CONFIG, "kv_cache_scheme": "static"}, Quantization("fp8", False, True)),
        (compressed(), Quantization("compressed-tensors", False, False)),
        (
            compressed(kv_cache_scheme={**_FLOAT8, "strategy": "tensor"}),
            Quantization("compressed-tensors", False, True),
        ),
        (
            compressed(group(), group(input_activations={**_FLOAT8, "strategy": "tensor"})),
            Quantization("compressed-tensors", True, False),
        ),
        (compressed(sparsity_config={"format": "dense"}), None),
        (compressed(sparsity_config={}, transform_config={}, format="naive-quantized"), None),
    ],
)
def test_what_is_built_is_understood(entry: dict[str, Any], want: Quantization | None) -> None:
    want = want or Quantization("compressed-tensors", False, False)
    assert checkpoint_quantization({"quantization_config": entry}) == want
    assert checkpoint_quantization({"text_config": {"quantization_config": entry}}) == want
    assert decoder_spec(_CONFIG | {"quantization_config": entry}) == decoder_spec(_CONFIG)


INT8 = {"type": "int", "num_bits": 8, "symmetric": True, "strategy": "channel"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method 'gptq' is unknown"),
        ({"quant_method": "fbgemm_fp8"}, "'fbgemm_fp8' is unknown"),
        ("awq", "'awq'"),
        ({**FP8_CONFIG, "weight_block_size": [128, 128]}, "per block.*128x128"),
        ({**FP8_CONFIG, "activation_scheme": "none"}, "activation_scheme 'none'"),
        ({**FP8_CONFIG, "scale_fmt": "ue8m0"}, "scale_fmt 'ue8m0'"),
        ({**FP8_CONFIG, "fmt": "e5m2"}, "fmt 'e5m2'"),
        (compressed(config_groups={}), "without config_groups"),
        (compressed(config_groups={"group_0": ["Linear"]}), "group_0: no object"),
        (compressed(format="pack-quantized"), "group_0: format 'pack-quantized'"),
        (compressed(group(format="nvfp4-pack-quantized")), "format 'nvfp4-pack-quantized'"),
        (compressed(group(weights=INT8)), "group_0: weights are int with 8 bits"),
        (compressed(group(weights={**_FLOAT8, "num_bits": 4})), "float with 4 bits"),
        (compressed(group(weights={**_FLOAT8, "strategy": "block"})), "weights.*'block'"),
        (compressed(group(weights={**_FLOAT8, "strategy": "channel", "symmetric": False})),
         "weights are not symmetric"),
        (compressed(group(weights=None)), "weights: no object"),
        (compressed(group(input_activations=None)), "weights alone"),
        (compressed(group(), group(input_activations={**_FLOAT8, "strategy": "group"})),
         "group_1: input_activations.*'group'"),
        (compressed(group(output_activations=_TOKEN)), "output_activations"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
        (compressed(transform_config={"config_groups": {"u": {}}}), "transform_config"),
        (compressed(kv_cache_scheme={**INT8, "strategy": "tensor"}), "kv_cache_scheme are int"),
        (compressed(kv_cache_scheme={**_FLOAT8, "strategy": "tensor", "dynamic": True}),
         "kv_cache_scheme: dynamic"),
        (compressed(kv_cache_scheme={**_FLOAT8, "strategy": "attn_head"}), "'attn_head'"),
    ],
)  # fmt: skip
def test_what_is_not_built_is_refused_by_name(entry: Any, says: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", plain_tensors(), quantization_config=entry)
    with pytest.raises(ModelLoadError, match=says) as raised:
        resolve_model(EngineConfig(model=str(folder)))
    assert str(folder) in str(raised.value)
    if isinstance(entry, dict):
        assert "use the checkpoint in 16 bits" in str(raised.value)
    with pytest.raises(ModelLoadError, match=says):
        decoder_spec(_CONFIG | {"quantization_config": entry})


_NAME = "model.layers.0.self_attn.o_proj.weight"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({f"{_NAME}_scale": None}, rf"{_NAME} is FP8, but.* no {_NAME}_scale"),
        ({f"{_NAME}_scale": torch.ones(2, 2)}, r"_scale has the shape \(2, 2\).*blocks"),
        ({f"{_NAME}_scale": torch.ones(63)}, r"nor one for each of 64 output channels"),
        ({f"{_NAME}_scale": torch.full((64,), -1.0)}, "negative or infinite"),
        ({f"{_NAME}_scale": torch.full((1,), float("nan"))}, "negative or infinite"),
        ({f"{_NAME}_scale": torch.ones(64, dtype=torch.uint8)}, "_scale is stored as torch.uint8"),
        ({_NAME: torch.zeros(64, 64, dtype=torch.int8)}, "stored as torch.int8"),
        ({_NAME: torch.zeros(64, 64).to(torch.float8_e5m2)}, "stored as torch.float8_e5m2"),
        ({_NAME: torch.zeros(64, 63).to(FP8)}, r"has the shape \(64, 63\)"),
        ({_NAME: None}, f"no tensor {_NAME}"),
    ],
)
def test_tensors_that_do_not_fit_are_named(changes: dict[str, Any], says: str) -> None:
    stored = {**quantized("channel")[0], **changes}
    tensors = {name: tensor for name, tensor in stored.items() if tensor is not None}
    for quantize in (False, True):
        reader = WeightReader(tensors.items(), torch.float32, quantize=quantize)
        with pytest.raises(ModelLoadError, match=says):
            reader.linear([(_NAME, (64, 64))])


def test_a_scale_that_nobody_took_is_named() -> None:
    tensors = {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}
    with pytest.raises(ModelLoadError, match=r"up_proj\.weight_scale"):
        WeightReader(tensors.items(), torch.float32).finish(tied=False)

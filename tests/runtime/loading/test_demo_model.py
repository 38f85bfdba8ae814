"""SmolLM2 as it comes out of the conversion: the known ids, and the answer that it gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rtlang.runtime.config import EngineConfig
from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.models import convert, smollm2
from rtlang.runtime.models.source import ModelFiles, resolve_model
from rtlang.runtime.models.weights import iterate_weights

pytestmark = pytest.mark.model

_SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
_CAPITAL = {"role": "user", "content": "What is the capital of France? Answer in one word."}


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return resolve_model(EngineConfig(model="smollm2"))


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> HFTokenizer:
    return HFTokenizer(files.path)


def test_the_config_is_smollm2s(files: ModelFiles) -> None:
    config: dict[str, Any] = files.hf_config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == 8192
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["vocab_size"] == 49152
    assert math.isclose(config["rms_norm_eps"], 1e-5, rel_tol=1e-6)
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == files.generation_config["eos_token_id"] == [2]


def test_there_are_all_tensors_once_in_fp32(files: ModelFiles) -> None:
    tensors = dict(iterate_weights(files.path))
    assert len(tensors) == 30 * 9 + 2  # layers, embeddings, last norm; no head
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert sum(tensor.numel() for tensor in tensors.values()) == 134_515_008


def test_a_warm_cache_needs_no_fetch_and_no_conversion(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(convert, "_default_converter")
    monkeypatch.delattr(smollm2, "_fetch")
    assert resolve_model(EngineConfig(model="smollm2")) == files


def test_the_chat_prompt_has_its_32_tokens(tokenizer: HFTokenizer) -> None:
    rendered = tokenizer.render_chat([_SYSTEM, _CAPITAL])
    assert tokenizer.plain(rendered) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France? Answer in one word.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.encode_rendered(rendered)
    assert len(ids) == 32
    assert [ids.count(token) for token in (1, 2)] == [3, 2]


def test_a_chat_of_two_turns_has_the_default_system_prompt(tokenizer: HFTokenizer) -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    assert tokenizer.plain(tokenizer.render_chat(turns, add_generation_prompt=False)) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
    )


def test_digits_are_tokens_of_their_own(tokenizer: HFTokenizer) -> None:
    digits = [tokenizer.encode(str(digit)) for digit in range(10)]
    assert [len(ids) for ids in digits] == [1] * 10
    assert tokenizer.encode("2026") == [digits[int(d)][0] for d in "2026"]


@pytest.mark.parametrize(
    "text",
    [
        "in 1999, 3.14159",
        "🙂 👩‍👩‍👧 🇫🇷",
        "日本語とかな",
        "a\n\n  b\t c  ",
        "naïve e\u0301",
        "<|im_end|>\n",
    ],
)
def test_text_comes_back_as_it_was(tokenizer: HFTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_all_control_tokens_are_special_and_no_bos_is_added(tokenizer: HFTokenizer) -> None:
    assert tokenizer.special_ids == set(range(17))
    assert tokenizer.encode("<|im_end|>") == [2]
    assert tokenizer.eos_ids == {2}


def test_the_greedy_answer_in_fp32(files: ModelFiles, tokenizer: HFTokenizer) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(files.path, dtype=torch.float32).eval()
    ids = tokenizer.encode_rendered(tokenizer.render_chat([_SYSTEM, _CAPITAL]))
    with torch.inference_mode():
        out = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
    assert out[0, len(ids) :].tolist() == [504, 3575, 282, 4649, 314, 7042, 30, 2]

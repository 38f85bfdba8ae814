"""J4 and FP8 weights on a GPU, with the real SmolLM2: scales are used, answers stay."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rtlang.runtime.engine import Engine
from rtlang.testing.tiny import TinyModel

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
    "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow", "Egypt": "Cairo",
    "Greece": "Athens", "Ireland": "Dublin", "Portugal": "Lisbon", "Austria": "Vienna",
    "Norway": "Oslo", "Sweden": "Stockholm", "Poland": "Warsaw", "Hungary": "Budapest",
    "Turkey": "Ankara", "India": "New Delhi", "Canada": "Ottawa", "Cuba": "Havana",
    "Peru": "Lima", "Chile": "Santiago", "Kenya": "Nairobi", "Iraq": "Baghdad",
    "Iran": "Tehran",
}  # fmt: skip
OPTIONS: dict[str, Any] = {
    "model": "smollm2",
    "device": "cuda",
    "scheduler_process": False,
    "max_running_requests": 64,
    "max_total_tokens": 65536,
    "context_length": 2048,
}

#: In nats a right answer. Plain torch in bf16 on a CPU loses 0.25 with keys and values rounded to
#: e4m3, and 0.20 with weights and activations; this model is small.
LARGEST_COST = 0.4


def questions() -> list[tuple[str, str, str]]:
    """(prompt, right, wrong): each country against four other capitals."""
    names = list(CAPITALS)
    return [
        (f"The capital of {country} is", " " + CAPITALS[country],
         " " + CAPITALS[names[(i + step) % len(names)]])
        for i, country in enumerate(names)
        for step in (1, 5, 9, 14)
    ]  # fmt: skip


def measure(prefix: str = "", **options: Any) -> tuple[float, float]:
    """(share of right answers, mean log-probability of the right ones)."""
    with Engine(**(OPTIONS | options)) as engine:
        encode = engine.tokenizer.encode
        right = total = 0.0
        for prompt, good, bad in questions():
            scores = []
            for answer in (good, bad):
                head = encode(prefix + prompt)
                ids = head + encode(answer)
                result = engine.generate(
                    ids, {"max_new_tokens": 1, "temperature": 0},
                    return_logprob=True, logprob_start_len=len(head),
                )  # fmt: skip
                scores.append(sum(e.logprob for e in result.prompt_logprobs))
            right += scores[0] > scores[1]
            total += scores[0]
        return right / len(questions()), total / len(questions())


@pytest.mark.model
@pytest.mark.parametrize("prefix", ["", "Some facts follow. " * 150])
def test_j4_answers_with_an_fp8_cache_are_those_with_a_16_bit_one(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = measure(prefix)
    with caplog.at_level(logging.WARNING):
        cached = measure(prefix, kv_cache_dtype="fp8")
    assert len([r for r in caplog.records if "scales" in r.message]) == 1
    assert abs(plain[0] - cached[0]) <= 0.0101, (plain, cached)  # a point, of 100 questions
    assert abs(cached[1] - plain[1]) <= LARGEST_COST, (plain, cached)


@pytest.mark.model
def test_answers_with_fp8_weights_are_near_those_with_16_bit_ones() -> None:
    plain, quantized = measure(), measure(quantization="fp8")
    assert abs(plain[0] - quantized[0]) <= 0.05, (plain, quantized)
    assert abs(quantized[1] - plain[1]) <= LARGEST_COST, (plain, quantized)


@pytest.mark.parametrize("backend", ["triton", "auto", "flashinfer"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_every_backend_reads_an_fp8_cache(backend: str, page_size: int) -> None:
    model = TinyModel(head_dim=128, hidden_size=256, num_attention_heads=8, num_key_value_heads=2)
    prompts = [[7, 8, 9] * 30, [5] * 40, list(range(1, 200))]
    params = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    found = []
    for dtype in ("auto", "fp8"):
        with Engine(
            model, device="cuda", attention_backend=backend, page_size=page_size,
            kv_cache_dtype=dtype, max_total_tokens=4096, context_length=512,
        ) as engine:  # fmt: skip
            first = [r.token_ids for r in engine.generate(prompts, params)]
            again = [r.token_ids for r in engine.generate(prompts, params)]  # a warm prefix
        found.append((first, again))
    (plain, _), (cached, warm) = found
    assert sum(a[0] == b[0] for a, b in zip(plain, cached, strict=True)) >= 2
    assert sum(a[0] == b[0] for a, b in zip(cached, warm, strict=True)) >= 2

"""Greedy ids of the real SmolLM2 in bf16: every backend against eager torch on the same GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rtlang.runtime.engine import Engine

pytestmark = [pytest.mark.gpu, pytest.mark.model, pytest.mark.timeout(300)]

NEW, LARGEST_GAP, MIN_EQUAL = 64, 0.25, 15
TOPICS = [
    "the sea", "a small town in winter", "how bread is made", "the history of printing",
    "two friends who lost a map", "why the sky is blue", "a recipe for soup", "prime numbers",
    "the first railway", "a cat on the roof", "planting a garden", "the moon and the tides",
    "learning to swim", "an old library", "how bridges carry weight", "a letter from abroad",
    "the colours of autumn", "sorting a list", "a storm at night", "music without words",
]  # fmt: skip
STARTS = ["Tell me about {}.", "Write a short story about {}:", "Explain {} to a child.\n"]
PARAMS: dict[str, Any] = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
OPTIONS: dict[str, Any] = {
    "model": "smollm2",
    "device": "cuda",
    "dtype": "bfloat16",
    "scheduler_process": False,
    "max_running_requests": 64,
    "max_total_tokens": 32768,
    "context_length": 1024,
}


def prompts() -> list[str]:
    return [STARTS[i % 3].format(topic) for i, topic in enumerate(TOPICS)]


Reference = list[tuple[list[int], list[float]]]  # ids; top-2 gaps


@pytest.fixture(scope="module")
def reference() -> Reference:
    """Eager torch: no graphs, no cache, no batching, plain operations."""
    with Engine(attention_backend="torch", disable_radix_cache=True, **OPTIONS) as engine:
        found = []
        for prompt in prompts():
            result = engine.generate(prompt, PARAMS, return_logprob=True, top_logprobs_num=2)
            gaps = [entry.top[0][1] - entry.top[1][1] for entry in result.logprobs]
            found.append((result.token_ids, gaps))
    return found


def check(ids: list[list[int]], reference: Reference) -> None:
    num_equal = 0
    for mine, (theirs, gaps) in zip(ids, reference, strict=True):
        differ = [i for i in range(NEW) if mine[i] != theirs[i]]
        num_equal += not differ
        if differ:
            assert gaps[differ[0]] <= LARGEST_GAP, (differ[0], gaps[differ[0]])
    print(f"{num_equal} of {len(ids)} equal throughout")
    assert num_equal >= MIN_EQUAL


@pytest.fixture(scope="module", params=["triton", "auto", "flashinfer"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    ("graphs", "page_size", "cache"), list(itertools.product([True, False], [1, 16], [True, False]))
)
def test_greedy_ids_are_those_of_eager_torch_up_to_near_ties(
    backend: str, graphs: bool, page_size: int, cache: bool, reference: Reference
) -> None:
    given = prompts()
    with Engine(
        attention_backend=backend,
        disable_cuda_graph=not graphs,
        page_size=page_size,
        disable_radix_cache=not cache,
        **OPTIONS,
    ) as engine:
        check([engine.generate(p, PARAMS).token_ids for p in given], reference)
        many = engine.generate([given[i % len(given)] for i in range(64)], PARAMS)
        for at in range(0, 60, 20):
            check([r.token_ids for r in many[at : at + 20]], reference)

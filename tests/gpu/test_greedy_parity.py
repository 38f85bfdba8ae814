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
#: Patterns, lists and forms, whose continuation is clear to the model, and some open sentences. In
#: bf16 the logits of this model carry noise of about 0.1, whatever the order of summation: eager
#: torch itself, one row or twenty at once, agrees on half of twenty open-ended prompts. ("yes no
#: yes no ..." was one of them once: there eager torch in bf16 leaves its own fp32 ids with a gap
#: of 1.3.)
PROMPTS = [
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "1 apple, 2 apples, 3 apples, 4 apples,",
    "cat, dog, cat, dog, cat, dog, cat,",
    "100, 200, 300, 400, 500,",
    "10, 9, 8, 7, 6, 5, 4,",
    "spring, summer, autumn, winter, spring, summer,",
    "5, 10, 15, 20, 25, 30, 35,",
    "Q: 1 + 1 = ? A: 2\nQ: 2 + 2 = ? A: 4\nQ: 3 + 3 = ? A:",
    "red, green, blue, red, green, blue, red, green,",
    "Chapter 1, Chapter 2, Chapter 3, Chapter 4,",
    "1 cat, 2 cats, 3 cats, 4 cats, 5 cats,",
    "Day 1, Day 2, Day 3, Day 4, Day 5,",
    "3, 6, 9, 12, 15, 18, 21,",
    "Step 1, Step 2, Step 3, Step 4, Step 5,",
    "Dear Sir or Madam,\n\nI am writing to",
    "I am, you are, he is, she is, it is, we are,",
    "class Dog:\n    def __init__(self, name):\n        self.name = name\n\nclass Cat:\n",
    "The first president of the United States was",
    "Water freezes at 0 degrees Celsius and boils at",
    "Mary had a little lamb, its fleece was white as",
]
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


Reference = list[tuple[list[int], list[float]]]  # ids; top-2 gaps


@pytest.fixture(scope="module")
def reference() -> Reference:
    """Eager torch: no graphs, no cache, no batching, plain operations."""
    with Engine(attention_backend="torch", disable_radix_cache=True, **OPTIONS) as engine:
        found = []
        for prompt in PROMPTS:
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
    given = PROMPTS
    with Engine(
        attention_backend=backend,
        disable_cuda_graph=not graphs,
        page_size=page_size,
        disable_radix_cache=not cache,
        **OPTIONS,
    ) as engine:
        check([engine.generate(p, PARAMS).token_ids for p in given], reference)
        few = [engine.generate(given[at : at + 10], PARAMS) for at in (0, 10)]
        check([r.token_ids for results in few for r in results], reference)
        many = engine.generate([given[i % len(given)] for i in range(64)], PARAMS)
        for at in range(0, 60, 20):
            check([r.token_ids for r in many[at : at + 20]], reference)

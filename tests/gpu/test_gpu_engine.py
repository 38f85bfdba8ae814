"""On a GPU: area j, backends against each other, graphs against eager."""

from __future__ import annotations

from typing import Any

import graph_cases
import pytest
from conftest import MakeEngine
from step_loop import StepLoop

from rtlang.testing.tiny import TinyModel

pytestmark = pytest.mark.gpu

#: A shape that every backend has kernels for.
WIDE: dict[str, Any] = {
    "head_dim": 64,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}


@pytest.mark.parametrize("backend", ["triton", "auto"])
def test_j1_padding_rows_touch_only_the_reserved_slot(backend: str) -> None:
    model = TinyModel(**WIDE)
    graph_cases.check_padding_rows_touch_only_the_reserved_slot(model, attention_backend=backend)


@pytest.mark.parametrize("backend", ["triton", "auto", "flashinfer"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_j2_nan_in_the_pool_changes_nothing(page_size: int, backend: str) -> None:
    graph_cases.check_nan_in_the_pool_changes_nothing(
        TinyModel(**WIDE), page_size=page_size, attention_backend=backend
    )


@pytest.mark.parametrize("largest", [12, 100, 200])
def test_j3_every_batch_size_gives_the_ids_of_one_alone(largest: int) -> None:
    sizes = list(range(1, 13)) if largest == 12 else graph_cases.spread(largest)
    graph_cases.check_every_size_gives_the_ids_of_one_alone(
        TinyModel(**WIDE), largest, sizes, dtype="float32"
    )


def test_features_do_not_depend_on_batch_mates() -> None:
    graph_cases.check_features_do_not_depend_on_batch_mates(TinyModel(), dtype="float32")


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_greedy_ids_are_those_of_the_cpu(
    make_engine: MakeEngine, architecture: str, page_size: int
) -> None:
    given = graph_cases.prompts(20, 5, 200)
    engine = make_engine(TinyModel(architecture, **WIDE), device="cpu", page_size=page_size)
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    plain = [result.token_ids for result in engine.generate(given, params)]
    for graphs in (True, False):
        loop = StepLoop(
            TinyModel(architecture, **WIDE), dtype="float32", page_size=page_size,
            disable_cuda_graph=not graphs, max_total_tokens=8192,
        )  # fmt: skip
        assert loop.run(given, 24) == plain
        assert loop.run(given, 24) == plain
        assert (loop.runner.graphs.num_replays > 0) == graphs


@pytest.mark.parametrize(
    "options",
    [
        {"attention_backend": "auto"},
        {"attention_backend": "flashinfer"},
        {"attention_backend": "torch"},
        {"attention_backend": "triton", "chunked_prefill_size": 64},
        {"attention_backend": "triton", "enable_mixed_chunk": False},
    ],
)
def test_backends_agree_in_half_precision(options: dict[str, Any]) -> None:
    given = graph_cases.prompts(12, 5, 300)
    model = TinyModel(**WIDE)
    base = StepLoop(model, dtype="float16", max_total_tokens=8192).run(given, 16)
    ids = StepLoop(model, dtype="float16", max_total_tokens=8192, **options).run(given, 16)
    assert sum(a == b for a, b in zip(base, ids, strict=True)) >= 10


def test_draws_are_those_of_the_cpu(make_engine: MakeEngine) -> None:
    params = {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "max_new_tokens": 24,
              "sampling_seed": 5, "ignore_eos": True}  # fmt: skip
    given = graph_cases.prompts(12)
    plain = make_engine(TinyModel(), device="cpu").generate(given, params)
    fast = make_engine(TinyModel(), device="cuda", dtype="float32").generate(given, params)
    assert [r.token_ids for r in fast] == [r.token_ids for r in plain]

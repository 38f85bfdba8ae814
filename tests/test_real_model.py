"""The real SmolLM2: greedy ids against transformers, and the examples as their users run them."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import rtlang as rt

pytestmark = pytest.mark.model
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
TOPICS = [
    "the sea", "a clock", "bread", "Paris", "winter", "a fast car", "prime numbers", "cats",
    "the moon", "music", "a lost key", "the Roman army", "tea", "glass", "a long bridge",
    "chess", "rain", "an old library", "volcanoes", "sleep",
]  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[rt.Engine]:
    with rt.Engine("smollm2", max_total_tokens=16384) as engine:
        yield engine
        engine.check()


@pytest.mark.timeout(400)
def test_greedy_ids_equal_transformers_with_the_cache_on_and_off(engine: rt.Engine) -> None:
    """20 prompts x 64 tokens, fp32. A difference is excused only where the two best logits are
    closer than 1e-3."""
    prompts = [
        engine.tokenizer.encode_rendered(
            engine.tokenizer.render_chat([{"role": "user", "content": f"Tell me about {topic}."}])
        )
        for topic in TOPICS
    ]
    greedy = {"max_new_tokens": 64, "temperature": 0}
    engine.flush_cache()
    cold = [r.token_ids for r in engine.generate(prompts, greedy)]
    warm = [r.token_ids for r in engine.generate(prompts, greedy)]
    assert engine.stats()["cached_tokens"] > 0
    assert warm == cold
    with rt.Engine("smollm2", max_total_tokens=4096, disable_radix_cache=True) as plain:
        assert [r.token_ids for r in plain.generate(prompts, greedy)] == cold
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        engine.model_path, dtype=torch.float32
    )
    for prompt, ids in zip(prompts, cold, strict=True):
        whole = torch.tensor([prompt + ids])
        with torch.inference_mode():
            logits = model(whole).logits[0, len(prompt) - 1 : -1]
        best = logits.argmax(-1).tolist()
        for at, (got, want) in enumerate(zip(ids, best, strict=True)):
            gap = float(logits[at, want] - logits[at, got])
            assert gap < 1e-3, f"token {at} of {ids}: {got} instead of {want}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(path: Path, engine: rt.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    rt.set_default_backend(engine)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        rt.set_default_backend(None)
    assert len(capsys.readouterr().out.splitlines()) >= 3

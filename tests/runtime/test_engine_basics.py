"""The engine on a scripted model: counts, shapes of results, siblings."""

from __future__ import annotations

from conftest import MakeEngine

from rtlang.testing import ScriptedModel


def test_second_turn_caches_exactly_what_the_first_computed(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["abc", "hi"]))
    first = engine.generate("x" * 100)
    second = engine.generate("x" * 100 + "abc" + "y" * 10)
    assert (first.usage.computed_tokens, first.usage.cached_tokens) == (100, 0)
    assert (second.usage.computed_tokens, second.usage.cached_tokens) == (10, 103)
    assert (first.text, second.text) == ("abc", "hi")

"""Models without a model, for benchmarks of what is around one: `scripted_models:babble`."""

from __future__ import annotations

from rtlang.testing import Reply, ScriptedModel

#: Longer than any answer that a benchmark asks for; one token a character.
_TEXT = "the quick brown fox jumps over the lazy dog " * 100


def babble() -> ScriptedModel:
    """Answers of any length, as fast as the scheduler goes."""
    return ScriptedModel(lambda _: Reply(_TEXT, eos=False))


def talk() -> ScriptedModel:
    """The same, at 200 tokens a second and sequence."""
    return ScriptedModel(lambda _: Reply(_TEXT, eos=False), step_s=0.005)

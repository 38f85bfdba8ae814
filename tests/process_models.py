"""Model sources that a scheduler's own process can import."""

from __future__ import annotations

from rtlang.testing import Reply, ScriptedModel


def slow() -> ScriptedModel:
    return ScriptedModel(lambda _: Reply("abcdefgh" * 500, eos=False), step_s=0.002)


def fast() -> ScriptedModel:
    return ScriptedModel(lambda _: "fine")

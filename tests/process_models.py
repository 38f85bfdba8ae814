"""Model sources that a scheduler's own process can import."""

from __future__ import annotations

import time

from rtlang.runtime.config import EngineConfig
from rtlang.testing import Reply, ScriptedModel
from rtlang.testing.scripted import ScriptedExecutor


def slow() -> ScriptedModel:
    return ScriptedModel(lambda _: Reply("abcdefgh" * 500, eos=False), step_s=0.002)


def fast() -> ScriptedModel:
    return ScriptedModel(lambda _: "fine")


def long_answers() -> ScriptedModel:
    """Answers of some seconds, but for prompts that say "short"."""
    return ScriptedModel(
        lambda p: "fine" if "short" in p else Reply("abcdefgh" * 500, eos=False), step_s=0.01
    )


class _NeverLoads(ScriptedModel):
    def create_executor(self, config: EngineConfig) -> ScriptedExecutor:
        time.sleep(600)
        return super().create_executor(config)


def never_loads() -> ScriptedModel:
    return _NeverLoads()


def breaks_in_loading() -> ScriptedModel:
    raise RuntimeError("no such weights")

"""Stand-ins for a model, so that programs and engines are tested without one.

``ScriptedModel`` answers from a script, or samples from given logits, while the real scheduler,
radix cache and memory accounting run. ``TinyModel`` really computes, with two random layers.
"""

from __future__ import annotations

from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.testing.scripted import Reply, ScriptedModel
from rtlang.testing.tiny import TinyModel

__all__ = ["ByteTokenizer", "Reply", "ScriptedModel", "TinyModel"]

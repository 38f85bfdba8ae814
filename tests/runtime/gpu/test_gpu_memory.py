"""What the start says of memory, and what it says when there is none left."""

from __future__ import annotations

import logging

import pytest
import torch

from rtlang.errors import ConfigError
from rtlang.runtime.gpu.memory import Ledger, out_of_memory_is_explained


def test_out_of_memory_names_what_was_done_and_the_option_to_turn() -> None:
    with (
        pytest.raises(ConfigError, match=r"making the KV pool: lower mem_fraction_static"),
        out_of_memory_is_explained("making the KV pool", "lower mem_fraction_static"),
    ):
        raise torch.OutOfMemoryError("2 GiB")


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="mine"), out_of_memory_is_explained("x", "y"):
        raise ValueError("mine")


def test_ledger_tells_where_the_time_of_the_start_went(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(None)
    ledger.note("weights")
    ledger.note("graphs")
    ledger.note("weights")
    with caplog.at_level(logging.INFO):
        ledger.report()
    assert list(ledger.seconds) == ["weights", "graphs"]
    assert "weights" in caplog.text and "graphs" in caplog.text

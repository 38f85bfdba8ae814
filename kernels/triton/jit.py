"""``triton.jit`` as type checkers accept it. Annotate a kernel's arguments as ``tl.tensor``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def jit(kernel: Callable[..., Any]) -> Any:
    return triton.jit(kernel)

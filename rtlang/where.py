"""Lines of the user's program, for errors and warnings."""

from __future__ import annotations

import sys

#: (file, line)
Where = tuple[str, int]


def caller(depth: int) -> Where:
    """Where the code stands that called, ``depth - 1`` calls up, the function that asks."""
    frame = sys._getframe(depth)
    return frame.f_code.co_filename, frame.f_lineno

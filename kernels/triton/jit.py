"""``triton.jit`` as type checkers accept it, and dependent launches.

Annotate a kernel's arguments as ``tl.tensor``.

Programmatic dependent launch: a kernel started with ``pdl_options()`` may begin while the kernels
before it still run. It calls ``await_earlier(PDL)`` once, in every program, before its first read
of what another kernel writes and before its first write; until then it may read weights alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl


def jit(kernel: Callable[..., Any]) -> Any:
    return triton.jit(kernel)


def jit_varying(
    *, ints: Sequence[str] = (), pointers: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """``jit`` for a kernel whose ``ints`` and the alignment of whose ``pointers`` differ from step
    to step: it is compiled once, not again for a number that 16 divides or a view that begins
    elsewhere. A compilation takes as long as dozens of steps."""
    decorator: Callable[[Callable[..., Any]], Any] = triton.jit(
        do_not_specialize=list(ints), do_not_specialize_on_alignment=list(pointers)
    )
    return decorator


@functools.cache
def pdl_supported() -> bool:
    """Compute capability 9 and above, and kernels that run on the GPU indeed."""
    if triton.knobs.runtime.interpret or torch.version.hip or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (9, 0)


def pdl_options(wanted: bool = True) -> dict[str, bool]:
    """Keyword arguments of a launch: the kernel's constexpr ``PDL``, and the option it needs."""
    if wanted and pdl_supported():
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@jit
def await_earlier(PDL: tl.constexpr) -> None:
    """All earlier kernels have ended and what they wrote is seen; later ones may be started."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

"""Which attention serves which step, by what the model, the device and the packages can do."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging

import torch

from rtlang.errors import ConfigError
from rtlang.kernels.attention.base import AttentionBackend
from rtlang.kernels.attention.split import SplitAttention
from rtlang.kernels.attention.torch_native import TorchAttention
from rtlang.kernels.attention.triton_backend import TritonAttention
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.layers.spec import DecoderSpec

logger = logging.getLogger(__name__)

#: Head dims for which FlashInfer brings compiled kernels; others would compile for minutes.
_FLASHINFER_DIMS = (64, 128, 256)


@dataclasses.dataclass(frozen=True, slots=True)
class Backends:
    decode: AttentionBackend
    extend: AttentionBackend  # steps with prompt tokens, any size
    captured: AttentionBackend | None  # steps with prompt tokens in a CUDA graph; None: never
    captures_decode: bool
    host_rows: bool  # one of them reads the slots on the host
    names: tuple[str, str]  # of decode and extend


def choose_backends(
    config: EngineConfig,
    spec: DecoderSpec,
    dtypes: tuple[torch.dtype, torch.dtype],
    device: torch.device,
    limits: tuple[int, int],
) -> Backends:
    """``dtypes``: of activations and KV; ``limits``: rows and tokens of the largest step.

    Raises ``ConfigError`` for a backend that cannot serve this model here.
    """
    wanted = config.attention_backend
    if wanted == "torch":
        if dtypes[1].itemsize == 1:
            raise ConfigError("attention_backend='torch' reads no FP8 KV cache; leave it out")
        torch_native = TorchAttention()
        return Backends(torch_native, torch_native, None, False, True, ("torch", "torch"))
    problem = _flashinfer_problem(spec, dtypes, device)
    if wanted == "flashinfer":
        if problem:
            raise ConfigError(f"attention_backend='flashinfer' does not fit: {problem}")
        decode = _flashinfer(config, spec, dtypes, device, decode=True)
        extend = _flashinfer_extend(decode, config, spec, dtypes, device)
        return Backends(decode, extend, None, False, False, ("flashinfer", "flashinfer"))
    group = spec.num_heads // spec.num_kv_heads
    if group > 64 or spec.head_dim > 256:
        raise ConfigError(
            f"the Triton kernels take up to 64 heads a KV head and head dims up to 256, not "
            f"{group} and {spec.head_dim}"
        )
    windows = tuple(dict.fromkeys(spec.windows)) or (None,)
    num_sms = 2  # the interpreter runs one program after the other
    if device.type == "cuda":
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    triton = TritonAttention(
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        windows=windows,
        max_rows=limits[0],
        max_tokens=limits[1],
        device=device,
        num_sms=num_sms,
    )
    if wanted == "triton" or problem:
        if wanted == "auto":
            logger.info("prefill attends with Triton kernels: %s", problem)
        return Backends(triton, triton, triton, True, False, ("triton", "triton"))
    extend = _flashinfer_extend(triton, config, spec, dtypes, device)
    return Backends(triton, extend, triton, True, False, ("triton", "flashinfer"))


def _flashinfer_problem(
    spec: DecoderSpec, dtypes: tuple[torch.dtype, torch.dtype], device: torch.device
) -> str:
    """Why FlashInfer cannot serve; "" if it can."""
    if device.type != "cuda":
        return "it needs an NVIDIA GPU"
    if importlib.util.find_spec("flashinfer") is None:
        return "the package flashinfer-python is not installed"
    if any(window is not None for window in spec.windows) or spec.soft_cap is not None:
        return "the model has sliding windows or a soft cap"
    if spec.head_dim not in _FLASHINFER_DIMS:
        return f"it has no kernels for head dim {spec.head_dim}"
    if dtypes[1].itemsize == 1 and spec.head_dim != 128:
        return f"it has no kernels for an FP8 cache with head dim {spec.head_dim}"
    if dtypes[0] not in (torch.bfloat16, torch.float16):
        return f"it has no kernels for {dtypes[0]}"
    return ""


def _flashinfer_extend(
    decode: AttentionBackend,
    config: EngineConfig,
    spec: DecoderSpec,
    dtypes: tuple[torch.dtype, torch.dtype],
    device: torch.device,
) -> AttentionBackend:
    # As below.
    from rtlang.kernels.attention.flashinfer_backend import FlashInferRagged  # noqa: PLC0415

    fresh = None
    if dtypes[0] == dtypes[1]:  # an FP8 pool holds something else than what the layer made
        sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        fresh = FlashInferRagged(*sizes, dtype=dtypes[0], scale=spec.score_scale, device=device)
    paged = _flashinfer(config, spec, dtypes, device, decode=False)
    return SplitAttention(decode, paged, fresh)


def _flashinfer(
    config: EngineConfig,
    spec: DecoderSpec,
    dtypes: tuple[torch.dtype, torch.dtype],
    device: torch.device,
    *,
    decode: bool,
) -> AttentionBackend:
    # An optional dependency, and one that takes seconds to import.
    from rtlang.kernels.attention.flashinfer_backend import FlashInferAttention  # noqa: PLC0415

    return FlashInferAttention(
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        page_size=config.page_size,
        dtype=dtypes[0],
        kv_dtype=dtypes[1],
        scale=spec.score_scale,
        device=device,
        decode=decode,
    )

"""The one configuration: a frozen dataclass, from which the command line and the docs are made."""

from __future__ import annotations

import dataclasses
from typing import Any

from rtlang.errors import ConfigError

POLICIES = ("fcfs", "lpm", "priority")
EVICTIONS = ("lru", "lfu", "slru")
DTYPES = ("auto", "float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
ATTENTION_BACKENDS = ("auto", "torch", "triton", "flashinfer")
#: Per device, what an option that is left out becomes.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {
        "max_running_requests": 64,
        "chunked_prefill_size": 512,
        "mem_fraction_static": 0.4,
        "scheduler_process": False,
    },
    "cuda": {
        "max_running_requests": 512,
        "chunked_prefill_size": 8192,
        "mem_fraction_static": 0.92,
        "scheduler_process": True,
    },
}


def option(default: Any, doc: str) -> Any:
    """A field of a configuration, with what the command line and the documentation say of it."""
    return dataclasses.field(default=default, metadata={"doc": doc})


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of ``Engine``. Raises ``ConfigError`` for a value out of range.

    Names are SGLang's where the meaning is the same.
    """

    model: str = option("smollm2", "alias, hub id, folder, or .gguf file")
    revision: str | None = option(None, "revision of a hub model")
    hub_token: str | None = option(None, "access token for the hub (else huggingface_hub's own)")
    load_format: str = option("auto", "auto | safetensors | gguf | dummy (random weights)")
    dtype: str = option("auto", "auto (CPU: float32) | float32 | bfloat16 | float16")
    kv_cache_dtype: str = option("auto", "auto: as dtype | fp8 (e4m3, on a GPU)")
    quantization: str | None = option(None, "fp8: weights in e4m3, a scale per channel")
    chat_template: str | None = option(None, "file with a Jinja chat template; none: the model's")
    trust_remote_code: bool = option(False, "not built: model code is never downloaded")
    context_length: int | None = option(None, "tokens; none: the model's own")
    device: str = option("auto", "auto: cuda where there is one, else cpu | cpu | cuda")
    tp_size: int = option(1, "tensor-parallel ranks; only 1 is built")
    attention_backend: str = option("auto", "auto | torch | triton | flashinfer (GPU)")
    disable_cuda_graph: bool = option(False, "launch every kernel from the host")
    cuda_graph_max_tokens: int = option(1024, "prompt tokens of a step that is captured")
    max_running_requests: int | None = option(None, "rows that run at once; CPU 64, GPU 512")
    max_total_tokens: int | None = option(None, "size of the KV pool in tokens; none: from memory")
    mem_fraction_static: float | None = option(
        None, "share of the memory that is left for the KV pool; CPU 0.4, GPU 0.92"
    )
    page_size: int = option(1, "slots per page: 1 or 16")
    chunked_prefill_size: int | None = option(
        None, "token budget of a step, decode rows included; CPU 512, GPU 8192"
    )
    schedule_policy: str = option("lpm", "fcfs | lpm (with ageing) | priority")
    max_queued_requests: int | None = option(None, "refuse requests beyond this queue length")
    enable_mixed_chunk: bool = option(True, "decode rows and prefill chunks share a step")
    enable_overlap: bool | None = option(
        None, "plan a step while the one before it computes; none: on a GPU"
    )
    disable_radix_cache: bool = option(False, "never share a prefix")
    radix_eviction_policy: str = option("lru", "lru | lfu | slru")
    fork_hold_fraction: float = option(0.5, "share of the pool that announced forks may lock")
    fork_hold_s: float = option(60.0, "seconds an announced prefix stays locked for its branches")
    grammar_backend: str = option(
        "auto", "auto (llguidance for what xgrammar cannot do, if installed) | xgrammar"
    )
    grammar_cache_mib: int = option(256, "memory for compiled constraints")
    grammar_timeout_s: float = option(10.0, "seconds after which compiling a constraint fails")
    jump_forward: str = option("off", "off | canonical: text that a constraint forces is appended")
    random_seed: int | None = option(None, "for the seeds of requests that give none")
    scheduler_process: bool | None = option(
        None, "run the scheduler in its own process; none: on a GPU, for a model by name"
    )
    debug: bool = option(False, "check the memory law after every step")

    def __post_init__(self) -> None:
        _choice(self, "load_format", LOAD_FORMATS)
        _choice(self, "dtype", DTYPES)
        _choice(self, "schedule_policy", POLICIES)
        _choice(self, "radix_eviction_policy", EVICTIONS)
        _choice(self, "attention_backend", ATTENTION_BACKENDS)
        _choice(self, "device", ("auto", "cpu", "cuda"))
        _choice(self, "kv_cache_dtype", ("auto", "fp8"))
        _choice(self, "page_size", (1, 16))
        _choice(self, "tp_size", (1,))
        _choice(self, "trust_remote_code", (False,))
        _choice(self, "quantization", (None, "fp8"))
        _choice(self, "grammar_backend", ("auto", "xgrammar"))
        _choice(self, "jump_forward", ("off", "canonical"))
        positive = ("context_length", "max_running_requests", "max_total_tokens",
                    "chunked_prefill_size", "max_queued_requests",
                    "cuda_graph_max_tokens", "grammar_cache_mib")  # fmt: skip
        for name in positive:
            value = getattr(self, name)
            optional = type(self).__dataclass_fields__[name].default is None
            if (value is None and not optional) or (value is not None and value < 1):
                raise ConfigError(f"{name} must be at least 1, got {value!r}")
        for name in ("mem_fraction_static", "fork_hold_fraction"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise ConfigError(f"{name} must be in (0, 1], got {value!r}")
        if not self.grammar_timeout_s > 0:
            raise ConfigError(f"grammar_timeout_s must be above 0, got {self.grammar_timeout_s!r}")

    def resolve(self, device: str) -> EngineConfig:
        """With ``device`` ("cpu" or "cuda") for "auto", and that device's defaults for what was
        left out. Resolving again changes nothing."""
        if self.device != "auto":
            device = self.device
        left = {k: v for k, v in _DEFAULTS[device].items() if getattr(self, k) is None}
        return dataclasses.replace(self, device=device, **left)

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> EngineConfig:
        """Raises ``ConfigError`` that names the nearest option for an unknown one."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in kwargs:
            if name not in known:
                raise ConfigError(
                    f"unknown option {name!r}; options are {', '.join(sorted(known))}"
                )
        return cls(**kwargs)


def _choice(config: EngineConfig, name: str, allowed: tuple[Any, ...]) -> None:
    value = getattr(config, name)
    if value not in allowed:
        options = ", ".join(repr(a) for a in allowed)
        raise ConfigError(f"{name}={value!r} is not built; it may be {options}")

"""The sizes of ``gpu.py``'s workloads, and the figures of other engines on one H200.

``peers``: their figures, each in a process of its own on the same host and ids. ``floor``: bytes
over 4.2 TB/s or FLOPs over 786 TFLOP/s, whichever takes longer, where each byte of weights, of
private KV and of shared KV is read once. ``reach``: what rtlang has to measure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks.gpu_constrained import Documents, Jump, Ratio
from benchmarks.gpu_measuring import Workload
from benchmarks.gpu_programs import AgentLatency, Agents, Forks, Free
from benchmarks.gpu_workloads import Chat, Nano, Offline, Prefill, StepTime


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """One row. ``less``: a smaller figure is the better one (a time, not a rate)."""

    reach: float
    peers: Mapping[str, float]
    floor: float | None = None
    stretch: float | None = None
    less: bool = False

    @property
    def best_peer(self) -> tuple[str, float]:
        best = min if self.less else max
        name = best(self.peers, key=lambda peer: self.peers[peer])
        return name, self.peers[name]

    def is_met(self, value: float) -> bool:
        return value <= self.reach if self.less else value >= self.reach


def _peers(sglang: float, vllm: float, mini: float, nano: float | None = None) -> dict[str, float]:
    found = {"SGLang": sglang, "vLLM": vllm, "mini-sglang": mini}
    return found if nano is None else {**found, "nano-vllm": nano}


def _sglang(reach: float, figure: float, *, less: bool = False) -> Goal:
    return Goal(reach, {"SGLang": figure}, less=less)


LLAMA8B = {
    "decode1": Goal(4.4, _peers(4.86, 4.95, 4.89), 3.57, 4.2, less=True),
    "decode64": Goal(7.2, _peers(7.80, 7.60, 7.73), 5.74, 6.9, less=True),
    "prefill": Goal(43_000, _peers(41_237, 40_947, 40_600), 50_000),
    "offline": Goal(6_800, _peers(5_839, 6_159, 6_128), 8_400),
    "chat": Goal(8_300, _peers(7_434, 7_430, 7_491)),
    "tree": Goal(5.0, _peers(10.08, 9.92, 9.05), 3.97, less=True),
}
QWEN06B = {
    "decode1": Goal(1.2, _peers(1.64, 1.72, 1.72, 2.13), 0.28, 0.95, less=True),
    "decode64": Goal(3.3, _peers(3.97, 3.63, 3.73, 4.06), 2.19, 3.0, less=True),
    "decode256": Goal(9.4, _peers(11.17, 10.30, 9.84, 11.10), 7.9, 9.0, less=True),
    "nano": Goal(25_000, _peers(21_286, 20_402, 20_694, 20_161)),
    "chat": Goal(15_000, _peers(12_697, 12_386, 9_524, 12_407)),
    "tree": Goal(1.6, _peers(6.00, 5.87, 8.58), 0.64, less=True),
}
SMOLLM2 = {
    "constrained1": _sglang(1_000, 479),
    "constrained32": _sglang(22_000, 14_615),
    "constrained128": _sglang(50_000, 32_439),
    "ratio1": _sglang(1.05, 1.20, less=True),
    "ratio32": _sglang(1.05, 1.46, less=True),
    "ratio128": _sglang(1.10, 1.68, less=True),
    "json256": _sglang(350, 145.9),
    "jump1": Goal(1.4, {"mask only": 1.0}),
    "agents": _sglang(50, 22.4),
    "forks": _sglang(40, 16.0),
    "agent_latency": _sglang(0.22, 0.483, less=True),
}
#: Shape -> workload -> goal; also which workloads a shape runs when no shape is named.
GOALS: dict[str, dict[str, Goal]] = {"llama8b": LLAMA8B, "qwen06b": QWEN06B, "smollm2": SMOLLM2}

_FULL: dict[str, Workload] = {
    "decode1": StepTime(1, 0, 64, 256),
    "decode64": StepTime(64, 0, 1024, 128),
    "decode256": StepTime(256, 0, 1024, 128),
    "prefill": Prefill(8, 4096),
    "offline": Offline(512, 1024, 256),
    "nano": Nano(256, 100, 1024),
    "chat": Chat(128, 4, 2048, 128, 256),
    "tree": StepTime(32, 8192, 16, 256),
    "constrained1": Free(1, 128),
    "constrained32": Free(32, 128),
    "constrained128": Free(128, 128),
    "ratio1": Ratio(1, 128),
    "ratio32": Ratio(32, 128),
    "ratio128": Ratio(128, 128),
    "json256": Documents(256, 200),
    "jump1": Jump(8, 300),
    "agents": Agents(64, 1100, 4, 64, 150, 16),
    "forks": Forks(32, 1100, 8, 64, 16),
    "agent_latency": AgentLatency(Agents(1, 1100, 4, 64, 150, 16)),
}
_TINY: dict[str, Workload] = {
    "decode1": StepTime(1, 0, 8, 4),
    "decode64": StepTime(4, 0, 16, 3),
    "decode256": StepTime(8, 0, 16, 3),
    "prefill": Prefill(2, 40),
    "offline": Offline(6, 16, 4),
    "nano": Nano(4, 5, 20),
    "chat": Chat(3, 3, 24, 6, 5),
    "tree": StepTime(3, 48, 4, 4),
    "constrained1": Free(1, 4),
    "constrained32": Free(2, 4),
    "constrained128": Free(4, 4),
    "ratio1": Ratio(1, 4),
    "ratio32": Ratio(2, 4),
    "ratio128": Ratio(4, 4),
    "json256": Documents(3, 12),
    "jump1": Jump(1, 12),
    "agents": Agents(3, 20, 2, 4, 5, 3),
    "forks": Forks(2, 20, 3, 4, 3),
    "agent_latency": AgentLatency(Agents(1, 20, 2, 4, 5, 3)),
}
#: Scale -> workload -> its sizes. "tiny" is for trying the workloads on a CPU.
SCALES = {"full": _FULL, "tiny": _TINY}

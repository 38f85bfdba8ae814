"""The sampling chain on the device against the one on the CPU: same ids, whatever the batch."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from rtlang.kernels.triton.sampling import (
    DEAD_END,
    FILTERED,
    GREEDY,
    MASKED,
    NUMERICAL_ERROR,
    OK,
    PENALISED,
    Edits,
    SampleRows,
    SamplerTuning,
    TritonSampler,
)
from rtlang.kernels.triton.sampling_draw import gaps, gumbel64, hash_state, hash_tokens
from rtlang.runtime.batch import Batch, ForwardMode
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.req import Req
from rtlang.runtime.sampling.draw import TokenHash, gumbel
from rtlang.runtime.sampling.filters import filter_plain
from rtlang.runtime.sampling.row_params import MAX_TEMPERATURE
from rtlang.runtime.sampling.sampler import Sampler
from rtlang.runtime.sampling_params import SamplingParams

# The interpreter is numpy, and says when a division overflows to -inf, as it may.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB = 331
WIDTH = 64
SMALL = SamplerTuning(
    block=128, filter_block=256, cut_block=512, history_block=16, history_split=2, edit_block=16
)
STATUS_OF = {"numerical_error": NUMERICAL_ERROR, "grammar_dead_end": DEAD_END}
EMPTY = np.zeros(0, np.int32)


@dataclass(slots=True)
class Want:
    """One request: its parameters and its history."""

    prompt: list[int] = field(default_factory=lambda: [0])
    output: list[int] = field(default_factory=list)
    seed: int = 0
    stop_ids: list[int] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)


def want(**given: Any) -> Want:
    own = {name: given.pop(name) for name in Want.__slots__ if name in given}
    return Want(**own, params=given)


class Bench:
    """The same requests on both chains."""

    def __init__(
        self,
        wants: list[Want],
        vocab_size: int = VOCAB,
        padding: int = 0,
        tuning: SamplerTuning = SMALL,
    ) -> None:
        self.vocab_size, self.padding = vocab_size, padding
        self.pool = ReqToTokenPool(len(wants) + 1, WIDTH)
        self.reqs = [self._place(w) for w in wants]
        self.cpu = Sampler(self.pool, vocab_size)
        num_rows = len(wants) + padding
        self.device = TritonSampler(num_rows, vocab_size, DEVICE, tuning=tuning)
        self.token_ids = torch.from_numpy(self.pool.token_ids.astype(np.int32)).to(DEVICE)

    def _place(self, w: Want) -> Req:
        req = Req(
            rid="",
            client=b"",
            ids=array("i", [*w.prompt, *w.output]),
            prompt_len=len(w.prompt),
            params=SamplingParams(**w.params).resolve(),
            seed=w.seed,
            limit_len=WIDTH,
            logprobs=None,
            stop_ids=frozenset(w.stop_ids),
        )
        req.row = self.pool.alloc()
        self.pool.token_ids[req.row, : len(req.ids)] = req.ids
        self.pool.lens[req.row] = len(req.ids)
        self.pool.prompt_lens[req.row] = req.prompt_len
        return req

    def on_cpu(
        self, logits: torch.Tensor, mask_bits: torch.Tensor | None = None
    ) -> tuple[list[int], list[int]]:
        """(ids, statuses)"""
        rows = np.array([req.row for req in self.reqs], np.int32)
        n = len(rows)
        lens, ones, samples = self.pool.lens[rows], np.ones(n, np.int32), np.arange(n)
        batch = Batch(
            ForwardMode.DECODE, self.reqs, rows, lens, ones, n, samples.astype(np.int32), self.pool
        )
        batch.masked = [] if mask_bits is None else list(range(n))
        result = self.cpu.sample(logits, batch, None if mask_bits is None else mask_bits.numpy())
        errors = result.errors
        statuses = [STATUS_OF[errors[j][0]] if j in errors else OK for j in range(n)]
        return result.next_ids.tolist(), statuses

    def rows(self, *, masked: bool) -> SampleRows:
        """What the host uploads; padding rows write to the pool's last line."""
        table = self.cpu._params
        table.refresh(self.reqs, [req.row for req in self.reqs])
        at = np.array([req.row for req in self.reqs])
        lens, prompt_lens = self.pool.lens[at], self.pool.prompt_lens[at]
        flags = table.greedy[at] * GREEDY + table.filtered[at] * FILTERED
        flags = flags + table.penalised[at] * PENALISED + masked * MASKED
        seed, pad = table.seed[at], self.padding
        i32, f32 = np.int32, np.float32

        def new(values: Any, dtype: Any, filler: float = 0) -> torch.Tensor:
            padded = np.append(np.asarray(values).astype(dtype), np.full(pad, filler, dtype))
            return torch.from_numpy(padded).to(DEVICE)

        return SampleRows(
            temperature=new(table.temperature[at], f32),
            top_k=new(np.minimum(table.top_k[at], 2**31 - 1), i32),
            top_p=new(table.top_p[at], f32),
            min_p=new(table.min_p[at], f32),
            seed_low=new((seed & 0xFFFFFFFF).astype(np.uint32).view(np.int32), i32),
            seed_high=new((seed >> 32).astype(np.int32), i32),
            position=new(lens - prompt_lens, i32),
            flags=new(flags, i32, GREEDY),
            repetition=new(table.repetition[at], f32),
            frequency=new(table.frequency[at], f32),
            presence=new(table.presence[at], f32),
            row=new(at, i32, self.pool.num_rows - 1),
            seq_len=new(lens, i32),
            prompt_len=new(prompt_lens, i32),
        )

    def edits(self, capacity: int = 40) -> Edits:
        found: list[tuple[int, int, float]] = []
        for j, req in enumerate(self.reqs):
            found += [(j, t, v) for t, v in (req.params.logit_bias or {}).items()]
            if len(req.ids) - req.prompt_len < req.params.min_new_tokens:
                found += [(j, t, -np.inf) for t in req.stop_ids]
        count = len(found)
        found += [(0, 5, 1000.0)] * (capacity - count)  # never applied
        sample, token, value = zip(*found, strict=True)
        return Edits(
            torch.tensor([count], dtype=torch.int32, device=DEVICE),
            torch.tensor(sample, dtype=torch.int32, device=DEVICE),
            torch.tensor(token, dtype=torch.int32, device=DEVICE),
            torch.tensor(value, dtype=torch.float32, device=DEVICE),
        )

    def on_device(
        self, logits: torch.Tensor, mask_bits: torch.Tensor | None = None, *, full: bool = True
    ) -> tuple[list[int], list[int]]:
        """(ids, statuses), after checks of what is written besides."""
        n, pad = len(self.reqs), self.padding
        logits = torch.cat([logits, torch.zeros(pad, self.vocab_size, dtype=logits.dtype)])
        if mask_bits is not None:
            mask_bits = torch.cat([mask_bits, mask_bits.new_zeros(pad, mask_bits.shape[1])])
        ids = torch.full((n + pad,), -1, dtype=torch.int32, device=DEVICE)
        status = torch.full_like(ids, -1)
        before = self.token_ids.cpu().clone()
        self.device.sample(
            logits.to(DEVICE),
            self.rows(masked=mask_bits is not None),
            *(self.token_ids, ids, status),
            full=full,
            mask_bits=None if mask_bits is None else mask_bits.to(DEVICE),
            edits=self.edits() if full else None,
        )
        assert not self.device._counts.any(), "counts are left"
        assert ids[n:].tolist() == [0] * pad and status[n:].tolist() == [OK] * pad
        for req, token in zip(self.reqs, ids.tolist(), strict=False):
            if len(req.ids) < WIDTH:
                before[req.row, len(req.ids)] = token
        if pad:
            before[-1, 0] = 0
        assert torch.equal(self.token_ids.cpu(), before)
        return ids[:n].tolist(), status[:n].tolist()

    def append(self, tokens: list[int]) -> None:
        for req, token in zip(self.reqs, tokens, strict=True):
            req.ids.append(token)
            self.pool.token_ids[req.row, len(req.ids) - 1] = token
            self.pool.lens[req.row] = len(req.ids)


def random_logits(n: int, vocab_size: int = VOCAB, seed: int = 0, scale: float = 2) -> torch.Tensor:
    return torch.randn(n, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def pack_mask(allowed: torch.Tensor) -> torch.Tensor:
    words = np.zeros((len(allowed), -(-allowed.shape[1] // 32)), np.uint32)
    for j, token in allowed.nonzero().tolist():
        words[j, token // 32] |= np.uint32(1 << (token % 32))
    return torch.from_numpy(words.view(np.int32))


MIXED = [
    want(temperature=0.8, seed=42),
    want(temperature=0.0),
    want(top_p=0.7, seed=-42),
    want(top_k=5, min_p=0.05, seed=2**63 - 1),
    want(prompt=[1, 2, 3] * 9, output=[4, 5, 4, 3], repetition_penalty=1.7, seed=-(2**63)),
    want(prompt=[9], output=[7] * 40, frequency_penalty=1.1, presence_penalty=-0.5, seed=9),
    want(temperature=0.0, logit_bias={3: 100.0, 4: -100.0, 330: 3.3}),
    want(min_new_tokens=9, stop_ids=[0, 1, 2], top_k=20, logit_bias={1: 50.0}, seed=5),
    want(temperature=1.5, top_k=30, top_p=0.9, min_p=0.01, repetition_penalty=0.8, seed=7),
    want(temperature=0.0, prompt=[*range(60)], repetition_penalty=2.0, frequency_penalty=0.3),
]


# -- the noise ------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def _noise_kernel(low, high, position, tokens, hashes, lacks, noise, N: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * N + tl.arange(0, N)
    state = hash_state(tl.load(low), tl.load(high), tl.load(position))
    h = hash_tokens(state, tl.load(tokens + i))
    tl.store(hashes + i, h.to(tl.int32, bitcast=True))
    tl.store(lacks + i, gaps(h))
    tl.store(noise + i, gumbel64(h))


def noise(seed: int, position: int, tokens: list[int]) -> tuple[np.ndarray, ...]:
    """(hashes, 1 - u in fp32, noise in fp64) of tokens, a power of two of them."""
    words = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, position], np.uint32)
    row = torch.from_numpy(words.view(np.int32)).to(DEVICE)
    ids = torch.tensor(tokens, dtype=torch.int32, device=DEVICE)
    out = [torch.empty_like(ids, dtype=d) for d in (torch.int32, torch.float32, torch.float64)]
    block = min(len(tokens), 1024)
    grid = (len(tokens) // block,)
    launch: Any = _noise_kernel[grid]
    launch(row[0:1], row[1:2], row[2:3], ids, *out, N=block)
    hashes, lacks, exact = (x.cpu().numpy() for x in out)
    return hashes.view(np.uint32), lacks, exact


@pytest.mark.parametrize(
    ("seed", "position", "token", "expected"),
    [
        (0, 0, 0, 0x8134CDF8),
        (42, 0, 0, 0x6F610FE4),
        (42, 7, 3, 0x399E25CC),
        (-1, 5, 49151, 0xBB599FFB),
        (2**63 - 1, 100000, 1, 0x650A1010),
        (7847, 12345, 1208, 0xFFFFFFFF),
    ],
)
def test_hash_vectors(seed: int, position: int, token: int, expected: int) -> None:
    hashes, _, exact = noise(seed, position, [token])
    assert int(hashes[0]) == expected
    assert np.isfinite(exact[0])
    assert exact[0] == pytest.approx(gumbel(hashes)[0], rel=1e-14)


def test_noise_is_as_close_as_the_race_assumes() -> None:
    tokens = list(range(1 << 16))
    hashes, lacks, exact = noise(42, 7, tokens)
    assert np.array_equal(hashes, TokenHash(len(tokens))(42, 7))
    true = (2.0**32 - 0.5 - hashes.astype(np.float64)) / 2.0**32
    assert np.abs(lacks / true - 1).max() < 2.0**-22
    np.testing.assert_allclose(exact, gumbel(hashes), rtol=1e-13, atol=1e-13)
    assert noise(7847, 12345, [1208])[1][0] == 2.0**-33


# -- against the CPU ------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.5, 2.0, 8.0])
def test_mixed_rows_equal_the_cpu_step_by_step(scale: float) -> None:
    bench = Bench(MIXED, padding=2)
    for step in range(2):
        logits = random_logits(len(MIXED), seed=step, scale=scale)
        expected = bench.on_cpu(logits)
        assert bench.on_device(logits) == expected
        assert expected[1] == [OK] * len(MIXED)
        bench.append(expected[0])


def test_masked_rows_equal_the_cpu() -> None:
    bench = Bench(MIXED)
    for step in range(2):
        logits = random_logits(len(MIXED), seed=step)
        allowed = torch.rand(logits.shape, generator=torch.Generator().manual_seed(step)) < 0.1
        allowed[:, 300] = True
        bits = pack_mask(allowed)
        expected = bench.on_cpu(logits, bits)
        assert bench.on_device(logits, bits) == expected
        assert all(allowed[j, t] for j, t in enumerate(expected[0]))


def random_want(rng: np.random.Generator) -> Want:
    """Every feature on or off."""
    given: dict[str, Any] = {"temperature": float(rng.choice([0.0, 0.3, 1.0, 1.7]))}
    options = {
        "top_k": int(rng.integers(1, 60)),
        "top_p": float(rng.uniform(0.05, 0.99)),
        "min_p": float(rng.uniform(0.001, 0.3)),
        "repetition_penalty": float(rng.uniform(0.5, 2)),
        "frequency_penalty": float(rng.uniform(-1, 1)),
        "presence_penalty": float(rng.uniform(-1, 1)),
        "logit_bias": {int(t): float(rng.normal()) for t in rng.integers(0, VOCAB, 2)},
    }
    given |= {name: value for name, value in options.items() if rng.random() < 0.5}
    return want(
        prompt=rng.integers(0, VOCAB, rng.integers(1, 30)).tolist(),
        output=rng.integers(0, 40, rng.integers(0, 30)).tolist(),
        seed=int(rng.integers(-(2**63), 2**63)),
        **given,
    )


def test_random_rows_equal_the_cpu() -> None:
    rng = np.random.default_rng(0)
    for case in range(4):
        bench = Bench([random_want(rng) for _ in range(8)])
        logits = random_logits(8, seed=case, scale=float(rng.choice([0.3, 2.0, 6.0])))
        if case % 2:
            logits = torch.round(logits * 2) / 2  # many ties
        assert bench.on_device(logits) == bench.on_cpu(logits)


def test_half_precision_logits_of_any_row_stride_equal_the_cpu() -> None:
    bench = Bench(MIXED)
    wide = random_logits(len(MIXED), VOCAB + 13).half()
    logits = wide[:, :VOCAB]
    dtypes = [torch.float16] + [torch.bfloat16] * torch.cuda.is_available()
    for dtype in dtypes:
        given = logits.to(dtype)
        assert bench.on_device(given) == bench.on_cpu(given)


def test_plain_and_full_variants_give_the_same() -> None:
    temperatures = [0.0, 1e-5, 0.01, 0.3, 1.0, 1.7, 50.0, MAX_TEMPERATURE]
    bench = Bench([want(temperature=t, seed=j) for j, t in enumerate(temperatures)], padding=1)
    for step in range(3):
        logits = random_logits(len(temperatures), seed=step, scale=3.0)
        expected = bench.on_cpu(logits)
        assert bench.on_device(logits, full=False) == expected
        assert bench.on_device(logits, full=True) == expected
        bench.append(expected[0])


def test_a_row_does_not_depend_on_its_batch_mates() -> None:
    logits = random_logits(len(MIXED), seed=3)
    together = Bench(MIXED).on_device(logits)[0]
    for j in range(len(MIXED)):
        assert Bench(MIXED[j : j + 1]).on_device(logits[j : j + 1])[0] == together[j : j + 1]
    order = np.random.default_rng(1).permutation(len(MIXED)).tolist()
    permuted = Bench([MIXED[j] for j in order], padding=3).on_device(logits[order])[0]
    assert permuted == [together[j] for j in order]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("full", [False, True])
def test_a_captured_graph_replays_on_new_rows_at_full_size(full: bool) -> None:
    size = 151_936
    rng = np.random.default_rng(5)
    wants = [want(temperature=0.9, seed=j) for j in range(16)]
    if full:
        wants = [random_want(rng) for _ in range(48)]
    n = len(wants)
    bench = Bench(wants, size, tuning=SamplerTuning())
    rows, edits = bench.rows(masked=False), bench.edits(200) if full else None
    logits = torch.zeros(n, size, dtype=torch.bfloat16, device=DEVICE)
    ids, status = (torch.zeros(n, dtype=torch.int32, device=DEVICE) for _ in range(2))

    def launch() -> None:
        bench.device.sample(logits, rows, bench.token_ids, ids, status, full=full, edits=edits)

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for step in range(6):
        logits.copy_(random_logits(n, size, seed=step, scale=3.0))
        rows.position.copy_(bench.rows(masked=False).position)
        rows.seq_len.copy_(bench.rows(masked=False).seq_len)
        graph.replay()
        expected = bench.on_cpu(logits.cpu())
        assert (ids.tolist(), status.tolist()) == expected
        assert not bench.device._counts.any()
        if int(bench.pool.lens.max()) < WIDTH:
            bench.append(expected[0])


# -- draws ----------------------------------------------------------------------------------


def log_probs(*probs: float) -> torch.Tensor:
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(np.array(probs)).astype(np.float32))


def test_first_draws_of_seed_42() -> None:
    wants = [want(output=[0] * position, seed=42, temperature=1.0) for position in range(16)]
    logits = log_probs(0.1, 0.2, 0.3, 0.4).repeat(16, 1)
    for full in (False, True):
        drawn = Bench(wants, 4).on_device(logits, full=full)[0]
        assert drawn == [3, 1, 3, 0, 3, 3, 2, 1, 2, 3, 2, 2, 1, 3, 0, 2]


def test_close_races_are_decided_in_fp64() -> None:
    """Tokens made to tie with the winner to a few units of fp32."""
    wants = [want(seed=s, temperature=1.0) for s in range(3)]
    size = 140
    hash_of = TokenHash(size)
    rows = [(4.0 - gumbel(hash_of(s, 0))).astype(np.float32) for s in range(3)]
    logits = torch.from_numpy(np.stack(rows))
    bench = Bench(wants, size)
    assert bench.on_device(logits, full=False) == bench.on_cpu(logits)
    assert bench.on_device(logits, full=True) == bench.on_cpu(logits)


def test_largest_noise_there_is() -> None:
    """u next to 1: token 1208 of this seed and position has the hash 0xffffffff."""
    output = [0] * 45
    for logit in (-torch.inf, -95.0, -60.0, -23.0, -12.0, -5.0):
        bench = Bench([want(output=output, seed=7847, temperature=1.0)], 1300)
        row = bench.rows(masked=False)
        row.position.fill_(12345)
        logits = torch.zeros(1, 1300)
        logits[0, 1208] = logit
        ids = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        bench.device.sample(
            logits.to(DEVICE), row, bench.token_ids, ids, torch.zeros_like(ids), full=False
        )
        scores = logits[0].numpy() + gumbel(TokenHash(1300)(7847, 12345))
        assert ids.item() == scores.argmax()


def test_equal_rows_and_ties() -> None:
    wants = [want(temperature=0.0), want(top_k=1), want(seed=3, temperature=1.0), want(top_p=0.5)]
    bench = Bench(wants)
    equal = torch.full((4, VOCAB), -7.25)
    ids, _ = bench.on_device(equal)
    assert (ids, [OK] * 4) == bench.on_cpu(equal)
    assert ids[0] == 0
    tied = random_logits(4)
    tied[:, [313, 200, 130]] = 99.0
    ids, _ = bench.on_device(tied)
    assert (ids, [OK] * 4) == bench.on_cpu(tied)
    assert ids[0] == 130


# -- filters --------------------------------------------------------------------------------


def device_cut(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> float:
    """The cut of one row of scaled logits (maximum 0)."""
    bench = Bench([want(top_k=top_k, top_p=top_p, min_p=min_p)], logits.shape[0])
    bench.on_device(logits[None])
    return bench.device._cuts.item()


@pytest.mark.parametrize(
    ("probs", "given", "expected"),
    [
        ([0.5, 0.25, 0.125, 0.125], {"top_p": 0.5}, [0]),
        ([0.5, 0.25, 0.125, 0.125], {"top_p": 0.75}, [0, 1]),
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.5}, [0]),
        ([0.4, 0.2, 0.2, 0.2], {"top_k": 2}, [0, 1, 2, 3]),
        ([0.25, 0.25, 0.25, 0.25], {"top_p": 0.5}, [0, 1, 2, 3]),
        ([0.3, 0.3, 0.3, 0.1], {"top_k": 2}, [0, 1, 2]),
        ([0.5, 0.25, 0.125, 0.125], {"min_p": 0.5}, [0, 1]),
        ([0.5, 0.25, 0.125, 0.125], {"min_p": 1.0}, [0]),
        ([0.5, 0.25, 0.125, 0.125], {"top_p": 1e-4}, [0]),
        ([0.5, 0.25, 0.125, 0.125], {"top_p": 5e-324}, [0]),
        ([0.125, 0.5, 0.125, 0.25], {"top_p": 0.76}, [0, 1, 2, 3]),
        ([0.5, 0.25, 0.125, 0.125], {"top_k": 100, "top_p": 0.999, "min_p": 0.3}, [0, 1]),
        ([0.5, 0.3, 0.2, 0.0], {"top_k": 3, "top_p": 0.999}, [0, 1, 2]),
        ([1.0], {"top_k": 1, "top_p": 0.1, "min_p": 1.0}, [0]),
    ],
)
def test_filter_table(probs: list[float], given: dict[str, float], expected: list[int]) -> None:
    logits = log_probs(*probs)
    logits -= logits.max()
    options = {"top_k": -1, "top_p": 1.0, "min_p": 0.0} | given
    cut = device_cut(logits, int(options["top_k"]), options["top_p"], options["min_p"])
    assert (logits >= cut).nonzero()[:, 0].tolist() == expected


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 8.0, 60.0])
@pytest.mark.parametrize("step", [None, 0.25])
def test_cuts_equal_the_plain_rule(scale: float, step: float | None) -> None:
    """Flat and peaked rows, with and without many ties, some tokens impossible."""
    rng = np.random.default_rng(9)
    size = 1000
    tuning = replace(SMALL, block=512, filter_block=512, cut_block=512)
    logits = (rng.standard_normal(size) * scale).astype(np.float32)
    if step is not None:
        logits = np.round(logits / np.float32(step)) * np.float32(step)
    logits[rng.random(size) < 0.1] = -np.inf
    logits -= logits.max()
    options = [
        (-1, 0.95, 0.0),
        (-1, 0.9999, 0.0),
        (-1, 1e-9, 0.0),
        (-1, 1.0, 0.05),
        (50, 0.9, 0.1),
        (700, 0.99, 0.0),
        (950, 0.99, 0.0),
        (size, 0.9, 0.0),
        (2**31 - 1, 1.0, 0.001),
    ]
    wants = [want(top_k=k, top_p=p, min_p=m) for k, p, m in options]
    bench = Bench(wants, size, tuning=tuning)
    bench.on_device(torch.from_numpy(logits).repeat(len(options), 1))
    cuts = bench.device._cuts.cpu().numpy()
    possible = logits > -np.inf  # whether the others are kept shows nowhere
    for cut, (top_k, top_p, min_p) in zip(cuts, options, strict=True):
        plain = filter_plain(logits, top_k, top_p, min_p)
        kept = logits >= cut
        assert kept[possible].tolist() == plain[possible].tolist(), (top_k, top_p, min_p)


# -- rows that cannot be sampled ------------------------------------------------------------


def test_status_of_bad_rows() -> None:
    wants = [want(temperature=0.0), want(temperature=1.0), want(top_p=0.5)] * 4
    logits = random_logits(12, seed=1)
    logits[0:2, 140] = torch.nan
    logits[3:5, 5] = torch.inf
    logits[6:8] = -torch.inf
    logits[9] = torch.nan
    logits[10, :300] = -torch.inf
    for full in (True, False):
        bench = Bench(wants)
        if not full:
            bench = Bench([w for w in wants if "top_p" not in w.params])
        some = logits if full else logits[[0, 1, 3, 4, 6, 7, 9, 10]]
        found = bench.on_device(some, full=full)
        assert found == bench.on_cpu(some)
        bad = [j for j, status in enumerate(found[1]) if status == NUMERICAL_ERROR]
        assert bad == ([0, 1, 3, 4, 6, 7, 9] if full else [0, 1, 2, 3, 4, 5, 6])


def test_status_of_masked_rows() -> None:
    wants = [want(temperature=0.0), want(temperature=1.0)] * 4
    logits = random_logits(8, seed=1)
    allowed = torch.ones(8, VOCAB, dtype=torch.bool)
    allowed[0:2] = False  # dead ends
    logits[2:4] = -torch.inf  # nothing finite, whatever the mask
    allowed[3] = False
    logits[4:6, 9] = torch.nan  # masked away ...
    allowed[4, 9] = False
    logits[6:8, 9] = torch.inf
    allowed[6, 9] = False
    bench = Bench(wants)
    bits = pack_mask(allowed)
    found = bench.on_device(logits, bits)
    assert found == bench.on_cpu(logits, bits)
    error = NUMERICAL_ERROR
    assert found[1] == [DEAD_END, DEAD_END, error, error, OK, error, OK, error]


def test_a_held_token_is_held_whatever_its_logit() -> None:
    bench = Bench([want(min_new_tokens=3, stop_ids=[4], temperature=0.0)])
    logits = random_logits(1)
    for bad in (torch.inf, torch.nan, 100.0):
        logits[0, 4] = bad
        assert bench.on_device(logits) == bench.on_cpu(logits)


def test_a_full_line_is_not_overrun() -> None:
    bench = Bench([want(output=[3] * (WIDTH - 1), temperature=0.0)])
    assert bench.on_device(random_logits(1)) == bench.on_cpu(random_logits(1))


def test_wrong_arguments_are_refused() -> None:
    bench = Bench([want(temperature=0.0)])
    rows, ids = bench.rows(masked=False), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    logits = random_logits(1).to(DEVICE)
    give = (rows, bench.token_ids, ids, ids.clone())
    with pytest.raises(ValueError, match="logits"):
        bench.device.sample(logits[:, 1:], *give, full=True)
    with pytest.raises(ValueError, match="full"):
        bench.device.sample(logits, *give, full=False, edits=bench.edits())
    with pytest.raises(ValueError, match="full"):
        TritonSampler(1, VOCAB, DEVICE, full=False).sample(logits, *give, full=True)

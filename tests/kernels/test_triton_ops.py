"""The decoder's fused kernels and the row tables against plain torch; on a GPU if there is one."""

from __future__ import annotations

import pytest
import torch

from rtlang.kernels.ops import TorchOps
from rtlang.kernels.triton.ops import TritonOps
from rtlang.kernels.triton.rows import decode_tokens, extend_tokens, write_runs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: The interpreter's bf16 rounds another way.
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
TORCH, TRITON = TorchOps(), TritonOps()

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert not got.isnan().any()
    tolerance = TOLERANCES.get(got.dtype, 1e-5)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@every_dtype
@pytest.mark.parametrize("shape", [(1, 8), (3, 576), (2, 4096), (5, 100)])
def test_rmsnorm_equals_its_plain_form(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[1], dtype=dtype, seed=1)
    close(TRITON.rmsnorm(x, weight, 1e-5), TORCH.rmsnorm(x, weight, 1e-5))


@every_dtype
def test_rmsnorm_reads_strided_rows(dtype: torch.dtype) -> None:
    wide, weight = random(4, 100, dtype=dtype), random(60, dtype=dtype, seed=1)
    close(TRITON.rmsnorm(wide[:, :60], weight, 1e-5), TORCH.rmsnorm(wide[:, :60], weight, 1e-5))


@every_dtype
@pytest.mark.parametrize("with_out", [True, False])
def test_add_rmsnorm_equals_its_plain_form(dtype: torch.dtype, with_out: bool) -> None:
    x, weight = random(3, 576, dtype=dtype), random(576, dtype=dtype, seed=1)
    residual = random(3, 576, dtype=dtype, seed=2)
    theirs = residual.clone()
    want = TORCH.add_rmsnorm(x.clone(), theirs, weight, 1e-5)
    out = torch.full_like(x, float("nan")) if with_out else None
    got = TRITON.add_rmsnorm(x.clone(), residual, weight, 1e-5, out)
    assert out is None or got is out
    close(residual, theirs)
    close(got, want)


@every_dtype
@pytest.mark.parametrize("kind", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("size", [4, 1500])
def test_gated_activations_equal_their_plain_forms(
    kind: str, size: int, dtype: torch.dtype
) -> None:
    gate_up = random(3, 2 * size, dtype=dtype)
    gate_up[0, :3] = torch.tensor([-50.0, 50.0, 0.0])
    close(TRITON.gated(gate_up, kind), TORCH.gated(gate_up.clone(), kind))


@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("dim", [16, 64, 96, 128])
@pytest.mark.parametrize("norm", [True, False])
def test_norm_rope_store_equals_its_plain_form(
    heads: tuple[int, int], dim: int, norm: bool
) -> None:
    num_heads, kv_heads = heads
    tokens, slots = 3, torch.tensor([7, 2, 5], device=DEVICE)
    qkv = random(tokens, num_heads + 2 * kv_heads, dim)
    positions = torch.tensor([0, 1, 5000], device=DEVICE)
    freqs = (10000.0 ** (-torch.arange(0, dim, 2) / dim)).to(DEVICE)
    norms = (random(dim, seed=3), random(dim, seed=4)) if norm else None
    pools = [torch.full((9, kv_heads, dim), 3.0, device=DEVICE) for _ in range(4)]
    want = TORCH.norm_rope_store(
        qkv.clone(), TORCH.angles(positions, freqs), norms, 1e-5, pools[0], pools[1], slots
    )
    table = TRITON.angles(positions.int(), freqs)
    got = TRITON.norm_rope_store(qkv, table, norms, 1e-5, pools[2], pools[3], slots.int())
    # Sines of large angles in fp32 differ in the last places.
    for mine, theirs in zip((*got, *pools[2:]), (*want, *pools[:2]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_an_fp8_pool_holds_values_over_their_scale() -> None:
    # Numbers that FP8 holds exactly: the interpreter rounds others another way.
    qkv = random(2, 4, 16).mul(4).round().clamp(-8, 8)
    qkv[0, 3, 0] = 1e6  # saturates
    nowhere = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    table = TRITON.angles(nowhere, torch.ones(8, device=DEVICE))
    pools = [torch.zeros(4, 1, 16, device=DEVICE).to(torch.float8_e4m3fn) for _ in range(2)]
    given = qkv.clone()
    slots = torch.tensor([1, 3], dtype=torch.int32, device=DEVICE)
    TRITON.norm_rope_store(given, table, None, 1e-5, pools[0], pools[1], slots, (0.5, 2.0))
    for pool, head, scale in ((pools[0], 2, 0.5), (pools[1], 3, 2.0)):
        want = (qkv[:, head] / scale).clamp(-448, 448)
        got = pool[slots.long()][:, 0].float()
        assert torch.equal(got, want)


def test_row_tables_follow_runs_and_steps() -> None:
    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    token_ids = torch.zeros((4, 2000), dtype=torch.int32, device=DEVICE)
    slot_table = token_ids.clone()
    long = torch.arange(1500, dtype=torch.int32, device=DEVICE)
    # Row 2 gets ids and slots from token 3 on; row 0 only a slot at token 9.
    runs = torch.stack((ints(2, 0), ints(3, 9), ints(1500, 1), ints(0, -1), ints(1500, 3000)))
    data = torch.cat((long, long + 5000, ints(77)))
    write_runs(runs, data, 1500, token_ids, slot_table)
    assert torch.equal(token_ids[2, 3:1503], long) and int(token_ids.count_nonzero()) == 1499
    assert torch.equal(slot_table[2, 3:1503], long + 5000) and slot_table[0, 9] == 77
    assert int(slot_table.count_nonzero()) == 1501

    token_ids[0, 9], token_ids[1, 0] = 41, 42
    out = (ints(*[9] * 3), ints(*[9] * 3), ints(*[9] * 3))
    decode_tokens(ints(0, 1, 3), ints(10, 1, 1), ints(50, 60, 0), token_ids, slot_table, out)
    assert [t.tolist() for t in out] == [[41, 42, 0], [9, 0, 0], [50, 60, 0]]
    assert slot_table[0, 9] == 50 and slot_table[1, 0] == 60

    # Row 0 with one query, row 2 with three, two tokens of padding.
    out = (ints(*[9] * 6), ints(*[9] * 6), ints(*[9] * 6))
    extend_tokens(
        ints(0, 1, 1, 1, -1, -1), ints(0, 2), ints(10, 8), ints(0, 1, 4), token_ids, slot_table, out
    )
    assert out[0].tolist() == [41, 2, 3, 4, 0, 0]
    assert out[1].tolist() == [9, 5, 6, 7, 0, 0]
    assert out[2].tolist() == [50, 5002, 5003, 5004, 0, 0]

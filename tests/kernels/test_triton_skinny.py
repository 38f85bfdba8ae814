"""Fused linear layers of few rows: each equals its plain form, and checks its border."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rtlang.kernels.activation import gelu_tanh_mul_ref, silu_mul_ref
from rtlang.kernels.norm import rmsnorm_ref
from rtlang.kernels.triton.skinny import (
    Config,
    choose,
    linear,
    linear_add,
    norm_gated,
    norm_linear,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16]
if DEVICE == "cuda":  # numpy, under the interpreter, has no bfloat16
    DTYPES.append(torch.bfloat16)
EPS = 1e-5
#: (n, k, bias): one short step; steps with a rest; outputs with a rest; whole steps.
SHAPES = [(10, 40, True), (13, 576, False), (18, 1032, True), (8, 2048, False)]
GATED_SHAPES = [(10, 40, False), (14, 576, True), (18, 1032, False)]
ROWS = (1, 2, 3, 5, 16)
REFERENCES = {"silu": silu_mul_ref, "gelu_pytorch_tanh": gelu_tanh_mul_ref}


def random(dtype: torch.dtype, *shape: int, seed: int) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, dtype)


class Case:
    def __init__(self, dtype: torch.dtype, m: int, n: int, k: int, *, bias: bool) -> None:
        self.x = random(dtype, m, k, seed=0) * 2
        self.gain = random(dtype, k, seed=1)
        self.weight = random(dtype, n, k, seed=2) * k**-0.5
        self.bias = random(dtype, n, seed=3) if bias else None
        self.tolerance = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]

    def product(self, *, norm: bool) -> torch.Tensor:
        """In fp32."""
        x = self.x.float()
        if norm:
            x = rmsnorm_ref(x, self.gain.float(), EPS)
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x, self.weight.float(), bias)

    def assert_close(self, got: torch.Tensor, wanted: torch.Tensor) -> None:
        assert got.dtype == self.x.dtype
        torch.testing.assert_close(got.float(), wanted, rtol=self.tolerance, atol=self.tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(("n", "k", "bias"), SHAPES)
def test_norm_linear_equals_its_plain_form(
    dtype: torch.dtype, m: int, n: int, k: int, bias: bool
) -> None:
    case = Case(dtype, m, n, k, bias=bias)
    got = norm_linear(case.x, case.gain, EPS, case.weight, case.bias)
    case.assert_close(got, case.product(norm=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(("n", "k", "bias"), SHAPES)
def test_linear_adds_to_the_residual_in_place(
    dtype: torch.dtype, m: int, n: int, k: int, bias: bool
) -> None:
    case = Case(dtype, m, n, k, bias=bias)
    residual = random(dtype, m, n, seed=4)
    wanted = residual.float() + case.product(norm=False)
    linear_add(case.x, case.weight, residual, case.bias)
    case.assert_close(residual, wanted)
    case.assert_close(linear(case.x, case.weight, case.bias), case.product(norm=False))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(("n", "k", "bias"), GATED_SHAPES)
@pytest.mark.parametrize("kind", REFERENCES)
def test_norm_gated_equals_its_plain_form(
    dtype: torch.dtype, m: int, n: int, k: int, kind: str, bias: bool
) -> None:
    case = Case(dtype, m, n, k, bias=bias)
    got = norm_gated(case.x, case.gain, EPS, case.weight, kind, case.bias)
    case.assert_close(got, REFERENCES[kind](case.product(norm=True)))


@pytest.mark.parametrize(
    "config",
    [
        Config(1, 256, 1),
        Config(8, 512, 2),
        Config(8, 64, 2, 3, dot=True),
        Config(64, 128, 4, 4, dot=True),
    ],
)
@pytest.mark.parametrize("m", [1, 4])
def test_every_config_gives_the_same(config: Config, m: int) -> None:
    case = Case(torch.float16, m, 18, 576, bias=True)
    wanted = case.product(norm=True)
    got = norm_linear(case.x, case.gain, EPS, case.weight, case.bias, config=config)
    case.assert_close(got, wanted)
    got = norm_gated(case.x, case.gain, EPS, case.weight, "silu", case.bias, config=config)
    case.assert_close(got, silu_mul_ref(wanted))


@pytest.mark.parametrize("m", [1, 2, 4, 16])
def test_a_chosen_step_fills_the_threads_with_whole_vectors(m: int) -> None:
    for n, k in ((576, 576), (6144, 4096), (4096, 14336), (151936, 1024)):
        for size in (2, 4):
            for gated in (False, True):
                c = choose(m, n, k, size, gated=gated)
                assert c.dot or c.block_k * size == 512 * c.num_warps
                assert not c.dot or c.block_n >= 8


def test_wrong_arguments_are_named() -> None:
    case = Case(torch.float32, 2, 8, 16, bias=True)
    x, gain, weight = case.x, case.gain, case.weight
    with pytest.raises(ValueError, match="weight"):
        linear(x, weight[:, :8])
    with pytest.raises(ValueError, match="weight"):
        linear(x, weight.half())
    with pytest.raises(ValueError, match="weight: expected a contiguous"):
        linear(x, random(torch.float32, 16, 8, seed=0).T)
    with pytest.raises(ValueError, match="gain"):
        norm_linear(x, gain[:8], EPS, weight)
    with pytest.raises(ValueError, match="bias"):
        norm_gated(x, gain, EPS, weight, "silu", gain[:4])
    with pytest.raises(ValueError, match="kind"):
        norm_gated(x, gain, EPS, weight, "relu")
    with pytest.raises(ValueError, match="residual"):
        linear_add(x, weight, x)
    with pytest.raises(ValueError, match="x: expected at most 16 rows"):
        linear(random(torch.float32, 17, 16, seed=0), weight)
    with pytest.raises(ValueError, match="multiple of 8"):
        linear(x[:, :12].contiguous(), weight[:, :12].contiguous())
    assert linear(x[:0], weight).shape == (0, 8)

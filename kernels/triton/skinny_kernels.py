"""The kernels of ``skinny``: see there.

Both own their outputs, so there is no split over K and nothing to merge. What a program needs of
the weights first is asked for before the earlier kernels have ended.
"""

from __future__ import annotations

import triton.language as tl

from rtlang.kernels.triton.jit import await_earlier, jit


@jit
def _prefetch_rows(
    at: tl.tensor, size: tl.constexpr, stride: tl.constexpr, ROWS: tl.constexpr
) -> None:
    """``size`` bytes of each of ROWS rows, ``stride`` bytes apart; thread i asks for row i."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .u32 t; .reg .u64 a; mov.u32 t, %tid.x; setp.lt.u32 p, t, $3; "
        "mad.wide.u32 a, t, $2, $1; @p cp.async.bulk.prefetch.L2.global [a], $4; "
        "mov.u32 $0, 0; }",
        "=r,l,r,r,r",
        [at.to(tl.int64), stride, ROWS, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@jit
def _prefetch(
    weight: tl.tensor,
    first: tl.tensor,
    N: tl.tensor,
    BEGIN: tl.constexpr,
    END: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GATED: tl.constexpr,
) -> None:
    """Asks L2 for elements [BEGIN, END) of this program's weight rows."""
    size: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
    stop: tl.constexpr = END if END < K else K
    if stop > BEGIN:  # noqa: SIM102 (this one is the compiler's)
        if first + BLOCK_N <= N:
            at = weight + first.to(tl.int64) * K + BEGIN
            _prefetch_rows(at, (stop - BEGIN) * size, K * size, BLOCK_N)
            if GATED:
                _prefetch_rows(at + N.to(tl.int64) * K, (stop - BEGIN) * size, K * size, BLOCK_N)


@jit
def _activate(gate: tl.tensor, GELU: tl.constexpr) -> tl.tensor:
    if GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        # (1 + tanh(z)) / 2 == sigmoid(2 z)
        return gate / (1.0 + tl.exp(-2.0 * inner))
    return gate / (1.0 + tl.exp(-gate))


@jit
def _load(at: tl.tensor, k: tl.tensor, K: tl.constexpr, EVEN: tl.constexpr) -> tl.tensor:
    if EVEN:
        return tl.load(at + k)
    return tl.load(at + k, mask=k < K, other=0.0)


@jit
def _load_weight(at: tl.tensor, k: tl.tensor, K: tl.constexpr, EVEN: tl.constexpr) -> tl.tensor:
    if EVEN:
        return tl.load(at + k, eviction_policy="evict_first")
    return tl.load(at + k, mask=k < K, other=0.0, eviction_policy="evict_first")


@jit
def _lines(first: tl.tensor, N: tl.tensor, BLOCK_N: tl.constexpr, GATED: tl.constexpr) -> tl.tensor:
    """[BLOCK_N] int64 rows of the weight from ``first`` on, or [2 BLOCK_N]: gate, up, gate, ..."""
    if GATED:
        i = tl.arange(0, 2 * BLOCK_N)
        return tl.minimum(first + i // 2, N - 1).to(tl.int64) + (i % 2) * N.to(tl.int64)
    else:
        return tl.minimum(first + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)


@jit
def _append(items: tl.tensor, item: tl.tensor) -> tl.tensor:
    return items + (item,)  # noqa: RUF005 (Triton has no starred expressions)


@jit
def _fold(product: tl.tensor, VEC: tl.constexpr) -> tl.tensor:
    """Sums within each thread: [lines, BLOCK_K] -> [lines, BLOCK_K / VEC]."""
    lines: tl.constexpr = product.shape[0]
    vectors: tl.constexpr = product.shape[1] // VEC
    return tl.sum(tl.reshape(product, [lines, vectors, VEC]), 2)


@jit
def _fma_step(
    sums: tl.tensor,  # ROWS times [LINES, BLOCK_K / VEC] fp32
    squares: tl.tensor,  # ROWS times [1, BLOCK_K / VEC] fp32
    w: tl.tensor,  # [LINES, BLOCK_K]
    xs: tl.tensor,  # ROWS times [1, BLOCK_K] for each step
    gain: tl.tensor,  # [1, BLOCK_K]
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    VEC: tl.constexpr,
) -> tl.tensor:
    w = w.to(tl.float32)
    gain = gain.to(tl.float32)
    new_sums, new_squares = (), ()
    for row in tl.static_range(ROWS):
        x = xs[STEP * ROWS + row].to(tl.float32)
        square = squares[row]
        if NORM:
            square += _fold(x * x, VEC)
            x = x * gain
        new_sums = _append(new_sums, sums[row] + _fold(w * x, VEC))
        new_squares = _append(new_squares, square)
    return new_sums, new_squares


@jit
def _load_rows(
    xs: tl.tensor,
    x: tl.tensor,
    k: tl.tensor,
    K: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    for row in tl.static_range(ROWS):
        xs = _append(xs, _load(x + row * K, k, K, EVEN))
    return xs


@jit
def _load_added(
    constant: tl.tensor,  # [LINES] fp32, the bias
    out: tl.tensor,  # pointer to the row
    lines: tl.tensor,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    N: tl.tensor,
) -> tl.tensor:
    """ROWS times [LINES] fp32, what is added to the product."""
    added = ()
    for row in tl.static_range(ROWS):
        more = constant
        if ADD:
            more += tl.load(out + row * N + lines).to(tl.float32)
        added = _append(added, more)
    return added


@jit
def fma_kernel(
    x: tl.tensor,  # [ROWS, K]
    gain: tl.tensor,  # [K], NORM
    weight: tl.tensor,  # [N, K]; GATED: [2 N, K]
    bias: tl.tensor,  # [N], BIAS; GATED: [2 N]
    out: tl.tensor,  # [ROWS, N]; ADD: also read
    eps: tl.tensor,
    N: tl.tensor,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    VEC: tl.constexpr,
    DEPTH: tl.constexpr,  # tiles in flight
    PREFETCH: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Program i: outputs from i * BLOCK_N on, of all rows."""
    EVEN: tl.constexpr = K % BLOCK_K == 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    AHEAD: tl.constexpr = DEPTH if DEPTH < STEPS else STEPS
    first = tl.program_id(0) * BLOCK_N
    lines = _lines(first, N, BLOCK_N, GATED)
    w_at = weight + lines[:, None] * K
    k = tl.arange(0, BLOCK_K)[None, :]
    constant = tl.zeros([LINES], tl.float32)
    if BIAS:
        constant += tl.load(bias + lines).to(tl.float32)
    ws, gains, xs, sums, squares = (), (), (), (), ()
    for step in tl.static_range(AHEAD):
        ws = _append(ws, _load_weight(w_at, k + step * BLOCK_K, K, EVEN))
        if NORM:
            gains = _append(gains, _load(gain, k + step * BLOCK_K, K, EVEN))
    _prefetch(weight, first, N, AHEAD * BLOCK_K, PREFETCH, K, BLOCK_N, GATED)
    await_earlier(PDL)

    for step in tl.static_range(AHEAD):
        xs = _load_rows(xs, x, k + step * BLOCK_K, K, EVEN, ROWS)
    added = _load_added(constant, out, lines, ADD, ROWS, N)
    for _ in tl.static_range(ROWS):
        sums = _append(sums, tl.zeros([LINES, BLOCK_K // VEC], tl.float32))
        squares = _append(squares, tl.zeros([1, BLOCK_K // VEC], tl.float32))
    for step in tl.static_range(STEPS):  # unrolled: a tile stays in the registers it came to
        g = gains[step] if NORM else k
        sums, squares = _fma_step(sums, squares, ws[step], xs, g, step, ROWS, NORM, VEC)
        if step + AHEAD < STEPS:
            at = k + (step + AHEAD) * BLOCK_K
            ws = _append(ws, _load_weight(w_at, at, K, EVEN))
            if NORM:
                gains = _append(gains, _load(gain, at, K, EVEN))
            xs = _load_rows(xs, x, at, K, EVEN, ROWS)

    n = first + tl.arange(0, BLOCK_N)
    for row in tl.static_range(ROWS):
        total = tl.sum(sums[row], 1)
        if NORM:
            total *= tl.rsqrt(tl.sum(squares[row]) / K + eps)
        total += added[row]
        if GATED:
            gate, up = tl.split(tl.reshape(total, [BLOCK_N, 2]))
            total = _activate(gate, GELU) * up
        tl.store(out + row * N + n, total.to(out.dtype.element_ty), mask=n < N)


@jit
def dot_kernel(
    x: tl.tensor,  # [num_rows, K]
    gain: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    N: tl.tensor,
    num_rows: tl.tensor,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PREFETCH: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    PDL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """As ``fma_kernel``, for up to 16 rows."""
    EVEN: tl.constexpr = K % BLOCK_K == 0
    LINES: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    first = tl.program_id(0) * BLOCK_N
    lines = _lines(first, N, BLOCK_N, GATED)
    w_at = weight + lines[:, None] * K
    k = tl.arange(0, BLOCK_K)[None, :]
    _prefetch(weight, first, N, 0, PREFETCH, K, BLOCK_N, GATED)
    await_earlier(PDL)

    m = tl.arange(0, 16)[:, None]
    x_at = x + m * K
    total = tl.zeros([16, LINES], tl.float32)
    added = tl.zeros([16, LINES], tl.float32)
    if BIAS:
        added += tl.load(bias + lines).to(tl.float32)[None, :]
    if ADD:
        out_at = out + m * N + lines[None, :]
        added += tl.load(out_at, mask=m < num_rows, other=0.0).to(tl.float32)
    square = tl.zeros([16, 16], tl.float32)
    for begin in range(0, K, BLOCK_K):
        at = k + begin
        w = _load_weight(w_at, at, K, EVEN)
        rows = tl.load(x_at + at, mask=(m < num_rows) & (at < K), other=0.0)
        if NORM:
            square = tl.dot(rows, rows.T, square, input_precision=PRECISION)
            g = _load(gain, at, K, EVEN)
            rows = (rows.to(tl.float32) * g.to(tl.float32)).to(rows.dtype)
        total = tl.dot(rows, w.T, total, input_precision=PRECISION)

    if NORM:
        j = tl.arange(0, 16)[None, :]
        mean = tl.sum(tl.where(m == j, square, 0.0), 1) / K
        total *= tl.rsqrt(mean + eps)[:, None]
    total += added
    if GATED:
        gate, up = tl.split(tl.reshape(total, [16, BLOCK_N, 2]))
        total = _activate(gate, GELU) * up
    n = first + tl.arange(0, BLOCK_N)[None, :]
    mask = (m < num_rows) & (n < N)
    tl.store(out + m * N + n, total.to(out.dtype.element_ty), mask=mask)

"""Fused CPU kernels (numba): one pass over the data, no intermediate matrices, vectorised by LLVM.

Why a polynomial exp: the library exp is a call per element and blocks vectorisation; on two AVX-512 cores the pairwise loop is
about six times faster with the inlined polynomial. Accuracy: 2e-7 relative in single precision (quadratic forms of scenarios,
summed in double precision per row), 3e-16 in double precision (everything that meets an inverse).

Determinism: parallel loops run over scenarios, chunks of points or grid lines, each computed by one thread in a fixed order, so
results do not depend on the number of threads. No compiler may choose an order or a rounding: sums over a tile are written out
in lanes, multiplications and additions are fused where `_fma32` and `_fma64` say so, and nowhere else. With flags that leave it
to the compiler, the process that compiled had other bits than those that loaded the same code later: code that is loaded was
optimised once more than what the compiling process executes. Compiled code is cached on disk; the first use on a machine
compiles. Kernels run without Python's global lock: other threads, such as a server's, go on meanwhile.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from safebo.compute import FloatArray, Indices, SingleArray, variance_floor

_TILE = 32  # centres per inner loop of the pairwise sums: two AVX-512 registers, and few pairs counted twice on the diagonal
_LANES = 8  # partial sums of a tile: one AVX-512 register of float64
_LINES = 64  # grid lines per task of the distance transform
_SHORT = 16  # points per line up to which the distance transform compares all pairs
_TASKS = 64  # of the transform of short lines
_BAND_CHUNK = 128  # points per task of `intersect`, which passes over its rows once per regulariser: L1
_CHUNK = 512  # points per task of `advance`: 30 samples x 512 points x 8 bytes stay in the L2 cache


@intrinsic
def _scale_f32(typingctx, value, exponent):  # type: ignore[no-untyped-def]
    """value * 2**exponent for an integral float32 exponent, by adding to the exponent bits; the result must be normal."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        shift = builder.shl(builder.fptosi(args[1], ir.IntType(32)), ir.Constant(ir.IntType(32), 23))
        return builder.bitcast(builder.add(builder.bitcast(args[0], ir.IntType(32)), shift), ir.FloatType())

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def _scale_f64(typingctx, value, exponent):  # type: ignore[no-untyped-def]
    """The same in float64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        narrow = builder.fptosi(args[1], ir.IntType(32))  # int32 first: vectorises without AVX-512
        shift = builder.shl(builder.sext(narrow, ir.IntType(64)), ir.Constant(ir.IntType(64), 52))
        return builder.bitcast(builder.add(builder.bitcast(args[0], ir.IntType(64)), shift), ir.DoubleType())

    return types.float64(types.float64, types.float64), codegen


def _fused(kind: Any) -> Any:
    """a * b + c, rounded once if the processor can, as all since 2013; rounding twice else, since in software it takes 50 ns."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        triple, _, features = context.codegen().magic_tuple()
        if "+fma" in features.split(",") or not triple.startswith(("x86", "i686")):
            return builder.fma(*args)
        return builder.fadd(builder.fmul(args[0], args[1]), args[2])

    return kind(kind, kind, kind), codegen


@intrinsic
def _fma32(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """a * b + c in float32."""
    return _fused(types.float32)


@intrinsic
def _fma64(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """a * b + c in float64."""
    return _fused(types.float64)


def _on_stack(kind: Any, size: int) -> Any:
    """Room for `size` numbers on the stack: no array can overlap it, which loops over it need to be vectorised."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        room = cgutils.alloca_once(builder, context.get_value_type(kind), size=size)
        room.align = 64
        return room

    return types.CPointer(kind)(), codegen


@intrinsic
def _lanes32(typingctx):  # type: ignore[no-untyped-def]
    """Room for one number per centre of a tile."""
    return _on_stack(types.float32, _TILE)


@intrinsic
def _lanes64(typingctx):  # type: ignore[no-untyped-def]
    """The same in float64."""
    return _on_stack(types.float64, _TILE)


def _folded(builder: Any, products: Any, kind: Any) -> Any:
    """(p_i + p_i+16) + (p_i+8 + p_i+24) of a tile for i < 8, as a vector: compilers make worse code of a loop."""
    vector = ir.VectorType(kind, _LANES)
    parts = []
    for place in range(0, _TILE, _LANES):
        at = builder.gep(products, [ir.Constant(ir.IntType(32), place)])
        parts.append(builder.load(builder.bitcast(at, vector.as_pointer()), align=32))
    return builder.fadd(builder.fadd(parts[0], parts[2]), builder.fadd(parts[1], parts[3]))


@intrinsic
def _add_lanes(typingctx, products, factor, sums):  # type: ignore[no-untyped-def]
    """Adds `factor` (a power of two) times the folded float32 products of a tile to the eight float64 `sums`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        wide = ir.VectorType(ir.DoubleType(), _LANES)
        folded = builder.fpext(_folded(builder, args[0], ir.FloatType()), wide)
        one = builder.insert_element(ir.Constant(wide, ir.Undefined), args[1], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
        scaled = builder.fmul(folded, builder.shuffle_vector(one, ir.Constant(wide, ir.Undefined), zeros))
        place = builder.bitcast(args[2], wide.as_pointer())
        builder.store(builder.fadd(scaled, builder.load(place, align=32)), place, align=32)
        return context.get_dummy_value()

    return types.void(types.CPointer(types.float32), types.float64, types.CPointer(types.float64)), codegen


@intrinsic
def _tile_sum(typingctx, products):  # type: ignore[no-untyped-def]
    """The sum of the float64 products of a tile."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector, size = _folded(builder, args[0], ir.DoubleType()), _LANES
        while size > 1:
            size //= 2
            order = ir.VectorType(ir.IntType(32), size)
            low, high = ir.Constant(order, list(range(size))), ir.Constant(order, list(range(size, 2 * size)))
            other = ir.Constant(vector.type, ir.Undefined)
            vector = builder.fadd(builder.shuffle_vector(vector, other, low), builder.shuffle_vector(vector, other, high))
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return types.float64(types.CPointer(types.float64)), codegen


_f = np.float32
_LOG2E32, _THIRD32, _HALF32, _ONE32 = _f(1.4426950408889634), _f(1.0 / 3.0), _f(0.5), _f(1.0)
_MAX32 = _f(80.0)  # e^-80 times a weight is still a normal number; denormal ones are slow
# Minimax polynomial of 2^f on |f| <= 1/2 (relative error 7.5e-8, one rounding of float32).
_P0, _P1, _P2 = _f(1.0000000716552193), _f(0.6931469670632637), _f(0.240221197211667)
_P3, _P4, _P5 = _f(0.05550713274651294), _f(0.009675541479840913), _f(0.0013276472028233442)
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93145751953125e-1, 1.42860682030941723212e-6

_OPTIONS = {"cache": True, "error_model": "numpy"}
_inlined = numba.njit(inline="always", **_OPTIONS)


class _Kernel:
    """A kernel with a parallel loop, compiled twice: for several threads, and for one.

    Handing a task to numba's threads takes a tenth of a millisecond, also if there is only one of them, and the caller naps
    meanwhile. In one dimension that is more than most tasks take. Each version is compiled when it is first needed; both give the
    same bits, since nothing is left to the compiler (see the module).
    """

    def __init__(self, function: Any):
        alone = FunctionType(function.__code__, function.__globals__, f"{function.__name__}_alone")
        alone.__qualname__ = alone.__name__  # numba caches by this name: the versions must not share a file
        self.many = numba.njit(parallel=True, nogil=True, **_OPTIONS)(function)
        self.alone = numba.njit(nogil=True, **_OPTIONS)(alone)

    def __call__(self, tasks: int, *arguments: object) -> None:
        """Run with these arguments; `tasks` is the number of iterations of the parallel loop."""
        (self.alone if tasks <= 1 or numba.config.NUMBA_NUM_THREADS == 1 else self.many)(*arguments)


@_inlined
def _exp_neg32(c):  # type: ignore[no-untyped-def]
    """exp(-c) for c >= 0 in float32."""
    y = (c if c < _MAX32 else _MAX32) * -_LOG2E32
    n = np.floor(y + _HALF32)
    f = y - n
    p = _fma32(f, _fma32(f, _fma32(f, _P5, _P4), _P3), _P2)
    return _scale_f32(_fma32(f, _fma32(f, p, _P1), _P0), n)


@_inlined
def _exp_neg64(c):  # type: ignore[no-untyped-def]
    """exp(-c) for c >= 0 in float64: 1 + f + f^2 q(f), q interpolates at Chebyshev nodes (error 2e-17), two-part ln 2."""
    c = c if c < 700.0 else 700.0
    n = np.floor(_fma64(-c, _LOG2E, 0.5))
    f = _fma64(-n, _LN2_LOW, _fma64(-n, _LN2_HIGH, -c))
    q = _fma64(f, 2.5100375832561234e-08, 2.7620075879983367e-07)
    q = _fma64(f, _fma64(f, q, 2.7557268480310024e-06), 2.4801521322368692e-05)
    q = _fma64(f, _fma64(f, q, 0.00019841269863040545), 0.0013888888917196719)
    q = _fma64(f, _fma64(f, q, 0.008333333333330065), 0.041666666666624164)
    q = _fma64(f, _fma64(f, q, 0.16666666666666669), 0.5000000000000001)
    return _scale_f64(_fma64(f, _fma64(f, q, 1.0), 1.0), n)


# -- scenarios -----------------------------------------------------------------------------------------------------------


# `axes` below is a tuple (0,) * n: its length is part of the compiled type, so distances of a tile live in registers; `terms`, a
# tuple too, has the length of the kernel's polynomial (1, 2, 3 for Matern 1/2, 3/2, 5/2; 0 for RBF): code for each kernel.


@_inlined
def _correlation32(d, terms):  # type: ignore[no-untyped-def]
    """kappa of a squared distance in units of the lengthscale (Matern: times 2 nu)."""
    if len(terms) == 0:
        return _exp_neg32(_HALF32 * d)
    r = np.sqrt(d)
    if len(terms) == 1:
        return _exp_neg32(r)
    if len(terms) == 2:
        return (_ONE32 + r) * _exp_neg32(r)
    return _fma32(r, _fma32(r, _THIRD32, _ONE32), _ONE32) * _exp_neg32(r)


@_inlined
def _correlation64(d, terms):  # type: ignore[no-untyped-def]
    """The same in double precision."""
    if len(terms) == 0:
        return _exp_neg64(0.5 * d)
    r = np.sqrt(d)
    if len(terms) == 1:
        return _exp_neg64(r)
    if len(terms) == 2:
        return (1.0 + r) * _exp_neg64(r)
    return _fma64(r, _fma64(r, 1.0 / 3.0, 1.0), 1.0) * _exp_neg64(r)


@_inlined
def _weighted_tile(z, a, block, first, second, w1, w2, axes, terms, factor, products, sums):  # type: ignore[no-untyped-def]
    """Adds factor sum_j a_j (w1 kappa(|first - z_j|) + w2 kappa(|second - z_j|)) over a tile of centres to the lanes of `sums`.

    z (n, tiles, 32), a (tiles, 32). Two centres at a time use every loaded coordinate twice; constant trip counts leave no
    remainder loop.
    """
    for j in range(_TILE):
        d1, d2 = _f(0.0), _f(0.0)
        for axis in range(len(axes)):
            coordinate = z[axis, block, j]
            e1, e2 = coordinate - first[axis], coordinate - second[axis]
            d1, d2 = _fma32(e1, e1, d1), _fma32(e2, e2, d2)
        k1, k2 = _correlation32(d1, terms), _correlation32(d2, terms)
        products[j] = a[block, j] * _fma32(w1, k1, w2 * k2)
    _add_lanes(products, factor, sums)


@numba.njit(**_OPTIONS)
def _pairs(z, a, inner, axes, terms):  # type: ignore[no-untyped-def]
    """a' kappa(Z, Z) a for one function, pairs without any of the first `inner` centres left out.

    Rows are the first `inner` centres. Tiles on the diagonal count once, those above it twice; on the diagonal a pair with one of
    the other centres has one row and counts twice.
    """
    tiles = a.shape[0]
    first, second = np.empty(len(axes), np.float32), np.empty(len(axes), np.float32)
    products, sums = _lanes32(), _lanes64()
    for j in range(_TILE):
        sums[j] = 0.0
    own = a.copy()
    for j in range(inner, tiles * _TILE):
        own[j // _TILE, j % _TILE] *= _f(2.0)
    for block in range(tiles):
        place = block * _TILE
        if place >= inner:
            break
        for i in range(0, _TILE, 2):
            w1 = a[block, i] if place + i < inner else _f(0.0)
            w2 = a[block, i + 1] if place + i + 1 < inner else _f(0.0)
            if w1 == _f(0.0) and w2 == _f(0.0):
                continue
            for axis in range(len(axes)):
                first[axis], second[axis] = z[axis, block, i], z[axis, block, i + 1]
            _weighted_tile(z, own, block, first, second, w1, w2, axes, terms, 1.0, products, sums)
            for other in range(block + 1, tiles):
                _weighted_tile(z, a, other, first, second, w1, w2, axes, terms, 2.0, products, sums)
    return _tile_sum(sums)


@numba.njit(**_OPTIONS)
def _values(x, z, a, axes, terms, result):  # type: ignore[no-untyped-def]
    """kappa(X, Z) a in double precision: the head coefficients multiply its error by the condition number of K + sigma^2 I."""
    tile, weight = np.empty((len(axes), _TILE)), np.empty(_TILE)
    products = _lanes64()
    for block in range(a.shape[0]):
        for axis in range(len(axes)):
            for j in range(_TILE):
                tile[axis, j] = np.float64(z[axis, block, j])
        for j in range(_TILE):
            weight[j] = np.float64(a[block, j])
        for k in range(x.shape[0]):
            at = x[k]
            for j in range(_TILE):
                squared = 0.0
                for axis in range(len(axes)):
                    difference = tile[axis, j] - at[axis]
                    squared = _fma64(difference, difference, squared)
                products[j] = weight[j] * _correlation64(squared, terms)
            result[k] += _tile_sum(products)


# Not `_Kernel`: it takes longest to compile, and its tasks take longer than handing them over.
@numba.njit(parallel=True, nogil=True, **_OPTIONS)
def _scenarios(x, z, a, inner, factor, axes, terms, quad, sums):  # type: ignore[no-untyped-def]
    """z (m, n, size) times factor and a (m, size), padded with weight 0 to whole tiles that stay in the L1 cache."""
    size = a.shape[1]
    tiles = (size + _TILE - 1) // _TILE
    for s in numba.prange(z.shape[0]):
        centres, weights = np.zeros((len(axes), tiles * _TILE), np.float32), np.zeros(tiles * _TILE, np.float32)
        for axis in range(len(axes)):
            for j in range(size):
                centres[axis, j] = factor * z[s, axis, j]
        for j in range(size):
            weights[j] = a[s, j]
        tiled, tiled_weights = centres.reshape((len(axes), tiles, _TILE)), weights.reshape((tiles, _TILE))
        result = np.zeros(x.shape[0])
        _values(x, tiled, tiled_weights, axes, terms, result)
        for k in range(x.shape[0]):
            sums[k, s] = result[k]
        quad[s] = _pairs(tiled, tiled_weights, inner[s], axes, terms)


@_Kernel
def _markov(x, order, z, a, factor, c1, c2, quad, sums):  # type: ignore[no-untyped-def]
    """One dimension, half-integer Matern: carry the sums of a e^-h, a h e^-h, a h^2 e^-h from one event to the next.

    Events are the sorted centres and the sorted samples (weight 0); factor = sqrt(2 nu); x comes multiplied by it.
    """
    for s in numba.prange(z.shape[0]):
        size, count = z.shape[1], x.shape[0]
        total = size + count
        step, decay, weight = np.empty(total), np.empty(total), np.empty(total)
        sample = np.empty(count, np.int64)
        i, k = 0, 0
        previous = 0.0
        for e in range(total):
            if k < count and (i >= size or x[k] <= factor * np.float64(z[s, i])):
                position, weight[e], sample[k] = x[k], 0.0, e
                k += 1
            else:
                position, weight[e] = factor * np.float64(z[s, i]), np.float64(a[s, i])
                i += 1
            step[e] = max(position - previous, 0.0) if e > 0 else 0.0
            previous = position
        for e in range(total):
            decay[e] = _exp_neg64(step[e])
        p0, p1, p2, q0, q1, q2 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0  # forward and backward carries
        diagonal, off = 0.0, 0.0
        left, right = np.zeros(count), np.zeros(count)
        k, kk = 0, count - 1
        for e in range(total):
            h, d, w = step[e], decay[e], weight[e]
            p2, p1, p0 = d * _fma64(h, _fma64(h, p0, 2.0 * p1), p2), d * _fma64(h, p0, p1), d * p0
            value = _fma64(c2, p2, _fma64(c1, p1, p0))
            diagonal = _fma64(w, w, diagonal)
            off = _fma64(w, value, off)
            if k < count and sample[k] == e:
                left[k] = value
                k += 1
            p0 += w
            b = total - 1 - e
            if kk >= 0 and sample[kk] == b:
                right[kk] = _fma64(c2, q2, _fma64(c1, q1, q0))
                kk -= 1
            q0 += weight[b]
            h, d = step[b], decay[b]
            q2, q1, q0 = d * _fma64(h, _fma64(h, q0, 2.0 * q1), q2), d * _fma64(h, q0, q1), d * q0
        quad[s] = diagonal + 2.0 * off
        for k in range(count):
            sums[order[k], s] = left[k] + right[k]


@_Kernel
def _solve(chol, rhs):  # type: ignore[no-untyped-def]
    """Forward and backward substitution in place for rhs (t, m); a task is a block of columns."""
    size, m = rhs.shape
    for task in numba.prange((m + _CHUNK - 1) // _CHUNK):
        first = task * _CHUNK
        last = min(first + _CHUNK, m)
        for r in range(size):
            row = rhs[r, first:last]
            for j in range(r):
                factor, other = -chol[r, j], rhs[j, first:last]
                for g in range(last - first):
                    row[g] = _fma64(factor, other[g], row[g])
            inverse = 1.0 / chol[r, r]
            for g in range(last - first):
                row[g] *= inverse
        for r in range(size - 1, -1, -1):
            row = rhs[r, first:last]
            for j in range(r + 1, size):
                factor, other = -chol[j, r], rhs[j, first:last]
                for g in range(last - first):
                    row[g] = _fma64(factor, other[g], row[g])
            inverse = 1.0 / chol[r, r]
            for g in range(last - first):
                row[g] *= inverse


# -- posterior on many points --------------------------------------------------------------------------------------------


@numba.njit(**_OPTIONS)
def _kernel_row(points, at, rbf, c1, c2, scale, row):  # type: ignore[no-untyped-def]
    """k(at, points) for one sample and one chunk of points (n, width)."""
    n, width = points.shape
    for g in range(width):
        row[g] = 0.0
    for axis in range(n):
        origin, column = at[axis], points[axis]
        for g in range(width):
            difference = column[g] - origin
            row[g] = _fma64(difference, difference, row[g])
    if rbf:
        for g in range(width):
            row[g] = scale * _exp_neg64(0.5 * row[g])
    else:
        for g in range(width):
            c = np.sqrt(row[g])
            row[g] = scale * _fma64(c, _fma64(c, c2, c1), 1.0) * _exp_neg64(c)


@numba.njit(**_OPTIONS)
def _advance_chunk(  # type: ignore[no-untyped-def]
    points, x, chol, white, betas, start, rbf, c1, c2, scale, basis, mean, variance, lower, upper, floor
):
    """`advance` on one chunk of points; one code path for extension and refit, so both give the same bits."""
    width = points.shape[1]
    row = np.empty(width)
    for r in range(start, x.shape[0]):
        _kernel_row(points, x[r], rbf, c1, c2, scale, row)
        for j in range(r):
            factor, older = -chol[r, j], basis[j]
            for g in range(width):
                row[g] = _fma64(factor, older[g], row[g])
        inverse, target, new = 1.0 / chol[r, r], white[r], basis[r]
        for g in range(width):
            value = row[g] * inverse
            new[g] = value
            mean[g] = _fma64(value, target, mean[g])
            variance[g] = _fma64(-value, value, variance[g])
        beta, smallest = betas[r], floor * (r + 2)
        if beta >= 0.0:
            for g in range(width):
                sd = np.sqrt(max(variance[g], smallest))
                lower[g] = max(lower[g], _fma64(-beta, sd, mean[g]))
                upper[g] = min(upper[g], _fma64(beta, sd, mean[g]))


@_Kernel
def _advance(  # type: ignore[no-untyped-def]
    points, factor, x, chol, white, betas, start, rbf, c1, c2, scale, basis, keep, mean, variance, lower, upper, floor, chunk
):
    size = points.shape[1]
    for task in numba.prange((size + chunk - 1) // chunk):
        g0 = task * chunk
        g1 = min(g0 + chunk, size)
        block = points[:, g0:g1] * factor
        rows = basis[:, g0:g1] if keep else np.empty((x.shape[0], g1 - g0))
        _advance_chunk(
            block, x, chol, white, betas, start, rbf, c1, c2, scale, rows,
            mean[g0:g1], variance[g0:g1], lower[g0:g1], upper[g0:g1], floor,
        )  # fmt: skip


@numba.njit(**_OPTIONS)
def _moments(rotated, squares, target, weight, scale, mu, var):  # type: ignore[no-untyped-def]
    """Mean and variance of one regulariser on one chunk, from U'k(X, points) and its squares; two rows per pass."""
    count, width = rotated.shape
    for g in range(width):
        mu[g], var[g] = 0.0, scale
    for j in range(0, count - 1, 2):
        t0, t1, w0, w1 = target[j], target[j + 1], weight[j], weight[j + 1]
        v0, v1, s0, s1 = rotated[j], rotated[j + 1], squares[j], squares[j + 1]
        for g in range(width):
            mu[g] = _fma64(t1, v1[g], _fma64(t0, v0[g], mu[g]))
        for g in range(width):
            var[g] = _fma64(-w1, s1[g], _fma64(-w0, s0[g], var[g]))
    if count % 2:
        t, w, value, square = target[count - 1], weight[count - 1], rotated[count - 1], squares[count - 1]
        for g in range(width):
            mu[g] = _fma64(t, value[g], mu[g])
        for g in range(width):
            var[g] = _fma64(-w, square[g], var[g])


@_Kernel
def _intersect(  # type: ignore[no-untyped-def]
    points, factor, x, vectors, weights, targets, factors, rbf, c1, c2, scale, floor, chunk, lower, upper, mean, variance
):
    size, count, bands = points.shape[1], x.shape[0], factors.shape[0]
    for task in numba.prange((size + chunk - 1) // chunk):
        g0 = task * chunk
        g1 = min(g0 + chunk, size)
        width = g1 - g0
        row, rotated, squares = np.empty(width), np.zeros((count, width)), np.empty((count, width))
        mu, var = np.empty(width), np.empty(width)
        low, high = lower[g0:g1], upper[g0:g1]
        block = points[:, g0:g1] * factor
        for i in range(count):
            _kernel_row(block, x[i], rbf, c1, c2, scale, row)
            for j in range(count):
                entry, sums = vectors[i, j], rotated[j]
                for g in range(width):
                    sums[g] = _fma64(entry, row[g], sums[g])
        for j in range(count):
            for g in range(width):
                squares[j, g] = rotated[j, g] * rotated[j, g]
        for p in range(bands):
            _moments(rotated, squares, targets[p], weights[p], scale, mu, var)
            width_in_sd = factors[p]
            for g in range(width):
                sd = np.sqrt(max(var[g], floor))
                low[g] = max(low[g], _fma64(-width_in_sd, sd, mu[g]))
                high[g] = min(high[g], _fma64(width_in_sd, sd, mu[g]))
        _moments(rotated, squares, targets[bands], weights[bands], scale, mu, var)
        for g in range(width):
            mean[g0 + g], variance[g0 + g] = mu[g], max(var[g], 0.0)


# -- distance transform --------------------------------------------------------------------------------------------------


@numba.njit(**_OPTIONS)
def _envelope_line(values, spacing, out, apex, start):  # type: ignore[no-untyped-def]
    """Lower envelope of the parabolas values[p] + ((q - p) spacing)^2 along one line, in O(length)."""
    length, last = values.shape[0], -1
    h2 = spacing * spacing
    for p in range(length):
        value = values[p]
        if value == np.inf:
            continue
        if value == -np.inf:  # one unbounded ball swallows the line
            for q in range(length):
                out[q] = -np.inf
            return
        while last >= 0:
            v = apex[last]
            cross = ((value - values[v]) / h2 + (p * p - v * v)) / (2.0 * (p - v))
            if cross > start[last]:
                break
            last -= 1
        last += 1
        apex[last] = p
        start[last] = cross if last > 0 else -np.inf
    if last < 0:
        for q in range(length):
            out[q] = np.inf
        return
    k = 0
    for q in range(length):
        while k < last and start[k + 1] < q:
            k += 1
        offset = (q - apex[k]) * spacing
        out[q] = offset * offset + values[apex[k]]


@_Kernel
def _short_axis(values, spacing, tasks):  # type: ignore[no-untyped-def]
    """The same as `_envelope_axis` by comparing all pairs: for short lines, many of which are handled at once."""
    before, length, after = values.shape
    for task in numba.prange(tasks):
        first, last = before * task // tasks, before * (task + 1) // tasks
        block = np.empty((length, after))
        for b in range(first, last):
            for p in range(length):
                for k in range(after):
                    block[p, k] = values[b, p, k]
            for q in range(length):
                out = values[b, q]
                for p in range(length):
                    offset = (q - p) * spacing
                    squared, line = offset * offset, block[p]
                    for k in range(after):
                        out[k] = min(out[k], squared + line[k])


@_Kernel
def _envelope_axis(values, spacing):  # type: ignore[no-untyped-def]
    """Transform values (before, length, after) along the middle axis, in place; a task is a block of neighbouring lines."""
    before, length, after = values.shape
    blocks = (after + _LINES - 1) // _LINES
    for task in numba.prange(before * blocks):
        b, first = task // blocks, (task % blocks) * _LINES
        line, out = np.empty(length), np.empty(length)
        apex, start = np.empty(length, np.int64), np.empty(length)
        for k in range(first, min(first + _LINES, after)):
            for p in range(length):
                line[p] = values[b, p, k]
            _envelope_line(line, spacing, out, apex, start)
            for p in range(length):
                values[b, p, k] = out[p]


# -- the backend ---------------------------------------------------------------------------------------------------------


_lock = threading.Lock()
_compiled: set[tuple[Any, ...]] = set()

if numba.config.THREADING_LAYER == "default":
    # GNU OpenMP, the usual default, aborts the process when a forked child uses it; the work queue survives a fork, and the lock
    # below keeps two Python threads from entering it at once.
    numba.config.THREADING_LAYER = "workqueue"


@contextmanager
def _exclusive(what: str, *key: object) -> Iterator[None]:
    """One parallel kernel at a time; say what is being compiled, or loaded, if its first call takes longer than a second."""
    with _lock:
        if (what, *key) in _compiled:
            yield
            return
        message = f"safebo: preparing {what} (compiled for this machine once, later loaded from disk) ...\n"
        timer = threading.Timer(1.0, lambda: sys.stderr.write(message))
        timer.daemon = True
        timer.start()
        try:
            yield
            _compiled.add((what, *key))
        finally:
            timer.cancel()


def _blocks(size: int, each: int) -> int:
    return (size + each - 1) // each


def _family(family: str) -> tuple[bool, float, float, float]:
    """(is RBF, c1, c2, factor) with kappa = (1 + c1 c + c2 c^2) e^-c and c = factor * r."""
    return {
        "matern12": (False, 0.0, 0.0, 1.0),
        "matern32": (False, 1.0, 0.0, math.sqrt(3.0)),
        "matern52": (False, 1.0, 1.0 / 3.0, math.sqrt(5.0)),
        "rbf": (True, 0.0, 0.0, 1.0),
    }[family]


class FusedCPU:
    """`Compute` on all cores of the CPU."""

    def scenario_parts(
        self,
        x: FloatArray,
        z: SingleArray,
        a: SingleArray,
        family: str,
        *,
        is_sorted: bool,
        inner: Indices | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """See `Compute.scenario_parts`."""
        rbf, c1, c2, factor = _family(family)
        m, n, size = z.shape
        quad, sums = np.empty(m), np.empty((len(x), m))
        if is_sorted and not rbf:
            order = np.argsort(x[:, 0], kind="stable")
            with _exclusive("the scenario sums (1-D)"):
                _markov(m, x[order, 0] * factor, order, z[:, 0, :], a, factor, c1, c2, quad, sums)
            return quad, sums
        terms = 0 if rbf else 1 + (c1 > 0.0) + (c2 > 0.0)
        counted = np.full(m, size, dtype=np.intp) if inner is None else inner
        with _exclusive("the scenario sums", n, terms):
            _scenarios(x * factor, z, a, counted, np.float32(factor), (0,) * n, (0,) * terms, quad, sums)
        return quad, sums

    def cholesky_solve(self, chol: FloatArray, rhs: FloatArray) -> FloatArray:
        """See `Compute.cholesky_solve`."""
        result = np.array(rhs, dtype=np.float64, order="C")
        with _exclusive("the triangular solves"):
            _solve(_blocks(result.shape[1], _CHUNK), chol, result)
        return result

    def advance(
        self,
        points: FloatArray,
        x: FloatArray,
        chol: FloatArray,
        white: FloatArray,
        betas: FloatArray,
        start: int,
        family: str,
        outputscale: float,
        basis: FloatArray | None,
        mean: FloatArray,
        variance: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> None:
        """See `Compute.advance`."""
        rbf, c1, c2, factor = _family(family)
        keep = basis is not None
        rows: NDArray[np.float64] = basis if basis is not None else np.empty((1, 1))
        floor = variance_floor(0, outputscale)  # grows with the number of samples, row by row
        with _exclusive("the posterior"):
            _advance(
                _blocks(points.shape[1], _CHUNK), points, factor, x * factor, chol, white, betas, start, rbf, c1, c2, outputscale,
                rows, keep, mean, variance, lower, upper, floor, _CHUNK,
            )  # fmt: skip

    def intersect(
        self,
        points: FloatArray,
        x: FloatArray,
        vectors: FloatArray,
        weights: FloatArray,
        targets: FloatArray,
        factors: FloatArray,
        family: str,
        outputscale: float,
        lower: FloatArray,
        upper: FloatArray,
        mean: FloatArray,
        variance: FloatArray,
    ) -> None:
        """See `Compute.intersect`."""
        rbf, c1, c2, factor = _family(family)
        with _exclusive("the intervals"):
            _intersect(
                _blocks(points.shape[1], _BAND_CHUNK), points, factor, x * factor, np.ascontiguousarray(vectors), weights,
                targets, factors, rbf, c1, c2, outputscale, variance_floor(len(x), outputscale), _BAND_CHUNK, lower, upper,
                mean, variance,
            )  # fmt: skip

    def lower_envelope(self, weights: FloatArray, spacing: FloatArray) -> FloatArray:
        """See `Compute.lower_envelope`."""
        result = np.array(weights, dtype=np.float64, order="C")
        for axis, length in enumerate(weights.shape):
            before, after = math.prod(weights.shape[:axis]), math.prod(weights.shape[axis + 1 :])
            lines = result.reshape(before, length, after)
            with _exclusive("the distance transform"):
                if length <= _SHORT:
                    tasks = min(before, _TASKS)
                    _short_axis(tasks, lines, float(spacing[axis]), tasks)
                else:
                    _envelope_axis(before * _blocks(after, _LINES), lines, float(spacing[axis]))
        return result


def create() -> FusedCPU:
    """The backend, for the registry."""
    return FusedCPU()

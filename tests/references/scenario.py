"""The scenario estimate of the norm, Algorithm 3, one random function at a time.

Notation
    X (t, n), y (t,)   samples of the sub-domain
    Z (T, n), a (T,)   tail centres and tail coefficients, T = N - t
    b (t,)             head coefficients, (K + sigma^2 I) b = y - k(X, Z) a
    m, r               number of random functions, number of discarded ones
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tests.references.kernels import Array, Kernel
from tests.references.posterior import mean_norm


def number_of_centres(lower: Array, upper: Array, t: int) -> int:
    """N = max(round(500 * longest edge), t + 10)."""
    return max(round(500 * float(np.max(upper - lower))), t + 10)


def draw_tail(rng: np.random.Generator, lower: Array, upper: Array, T: int, alpha_bar: float = 1.0) -> tuple[Array, Array]:
    """Centres uniform in the box, axis by axis, and coefficients uniform in [-abar, abar]."""
    return rng.uniform(lower, upper, size=(T, len(lower))), rng.uniform(-alpha_bar, alpha_bar, T)


def head_coefficients(kernel: Kernel, X: Array, y: Array, Z: Array, a: Array, sigma: float) -> Array:
    """b of the interpolation subject to noise: (K + sigma^2 I) b = y - k(X, Z) a."""
    M = kernel(X, X) + sigma**2 * np.eye(len(X))
    return np.asarray(np.linalg.solve(M, y - kernel(X, Z) @ a), dtype=np.float64)


def random_norm(kernel: Kernel, X: Array, y: Array, Z: Array, a: Array, sigma: float) -> float:
    """||rho||_k = sqrt(c' K c) with c = [b; a] and K the full Gram matrix of all centres [X; Z]."""
    coefficients = np.concatenate([head_coefficients(kernel, X, y, Z, a, sigma), a])
    centres = np.concatenate([X, Z])
    return math.sqrt(max(float(coefficients @ kernel(centres, centres) @ coefficients), 0.0))


def random_norms(
    kernel: Kernel,
    X: Array,
    y: Array,
    tails: Sequence[tuple[Array, Array]],
    sigma: float,
) -> Array:
    """The norms of all random functions, ascending, Algorithm 3 lines 2 and 3."""
    return np.array(sorted(random_norm(kernel, X, y, Z, a, sigma) for Z, a in tails))


def binomial_sum(m: int, r: int, gamma: float) -> Fraction:
    """sum_{i=0}^{r} C(m, i) gamma^i (1 - gamma)^(m - i), exact, gamma read as a decimal number."""
    g = Fraction(repr(gamma))
    p, q = g.numerator, g.denominator
    total = sum(math.comb(m, i) * p**i * (q - p) ** (m - i) for i in range(r + 1))
    return Fraction(total, q**m)


def smallest_m(gamma: float, kappa: float) -> int:
    """The smallest m with (1 - gamma)^m <= kappa: not even r = 0 is feasible below it."""
    g, limit = Fraction(repr(gamma)), Fraction(repr(kappa))
    m, left, right = 0, limit.denominator, limit.numerator
    while left > right:  # (q - p)^m / q^m > kappa
        m, left, right = m + 1, left * (g.denominator - g.numerator), right * g.denominator
    return m


def discards(m: int, gamma: float, kappa: float) -> int:
    """The largest r <= m - 1 with sum_{i=0}^{r} C(m,i) gamma^i (1-gamma)^(m-i) <= kappa.

    Sums integers: both sides are multiplied by the common denominator q^m of gamma = p / q.
    Raises ValueError where r = 0 is infeasible, naming the smallest m that works.
    """
    g, limit = Fraction(repr(gamma)), Fraction(repr(kappa))
    p, q = g.numerator, g.denominator
    allowed = limit * q**m
    total, r = 0, -1
    for i in range(m):
        total += math.comb(m, i) * p**i * (q - p) ** (m - i)
        if total > allowed:
            break
        r = i
    if r < 0:
        raise ValueError(f"{m=} is too small for {gamma=}, {kappa=}: use m >= {smallest_m(gamma, kappa)}")
    return r


def algorithm_3(norms: Array, gamma: float, kappa: float, floor: float = 0.0, previous: float = math.inf) -> float:
    """B_t of Algorithm 3 from the random norms.

    `floor` is the first estimate (the network's), `previous` is B_{t-1} of the sub-domain. Where
    the floor is below the largest random norm, r is the largest number of discards that is both
    feasible and keeps floor < ||rho_{m-r}||. The last line is read as B_t = min(B_t, B_{t-1}).
    """
    ascending = np.sort(norms)
    m = len(ascending)
    largest = discards(m, gamma, kappa)
    B = floor
    if floor < ascending[m - 1]:
        r = max(r for r in range(largest + 1) if floor < ascending[m - 1 - r])
        B = float(ascending[m - 1 - r])
    return min(B, previous)


def hoeffding_norm(norms: Array, smallest: float, largest: float, gamma: float) -> float:
    """Norm of 2024: mean + sqrt(log(1/gamma) (b - a)^2 / (2 m)), a and b the range of the norm."""
    spread = (largest - smallest) ** 2
    return float(np.mean(norms)) + math.sqrt(math.log(1.0 / gamma) * spread / (2 * len(norms)))


def hoeffding_range(
    kernel: Kernel,
    X: Array,
    y: Array,
    tails: Sequence[tuple[Array, Array]],
    sigma: float,
    alpha_bar: float,
    outputscale: float = 1.0,
) -> tuple[float, float]:
    """(a, b): norm of the data's interpolant (the posterior mean at sigma^2), and a + s_f T abar.

    rho = interpolant of y + (tail - interpolant of the tail's values), the second term at most as large as the tail.
    """
    smallest = mean_norm(kernel, X, y, sigma**2)
    return smallest, smallest + math.sqrt(outputscale) * len(tails[0][1]) * alpha_bar

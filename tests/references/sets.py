"""Safe set, maximisers and expanders over all pairs of points.

Every function takes arrays over points and returns a mask over them; B is the norm of the output
and d_k its metric, eq. (semi-metric). "lower" limits read f >= h, "upper" limits read f <= h.
"""

from __future__ import annotations

import numpy as np

from tests.references.kernels import Array, Kernel, Mask, metric


def continuity_lower(kernel: Kernel, B: float, sources: Array, l_sources: Array, points: Array, h: float) -> Mask:
    """Eq. (safe_set): a' with some source a such that l(a) - B d_k(a, a') >= h."""
    safe = np.zeros(len(points), dtype=bool)
    d = metric(kernel, sources, points)
    for i in range(len(sources)):
        for j in range(len(points)):
            if l_sources[i] - B * d[i, j] >= h:
                safe[j] = True
    return safe


def continuity_upper(kernel: Kernel, B: float, sources: Array, u_sources: Array, points: Array, h: float) -> Mask:
    """Eq. (safe_set) for an upper limit: some source a with u(a) + B d_k(a, a') <= h."""
    safe = np.zeros(len(points), dtype=bool)
    d = metric(kernel, sources, points)
    for i in range(len(sources)):
        for j in range(len(points)):
            if u_sources[i] + B * d[i, j] <= h:
                safe[j] = True
    return safe


def confidence_lower(lower: Array, h: float) -> Mask:
    """a' with l(a') >= h."""
    return np.array([bool(value >= h) for value in lower], dtype=bool)


def confidence_upper(upper: Array, h: float) -> Mask:
    """a' with u(a') <= h."""
    return np.array([bool(value <= h) for value in upper], dtype=bool)


def combine(rule: str, continuity: Mask, confidence: Mask) -> Mask:
    """The safe set of one limit under the named rule."""
    if rule == "continuity":
        return continuity
    if rule == "confidence":
        return confidence
    if rule == "union":
        return continuity | confidence
    raise ValueError(f"unknown safe set {rule!r}")


def maximisers(safe: Mask, upper: Array, best_lower: float) -> Mask:
    """Eq. (maximizer): a in S with u(a) >= the best lower bound."""
    return np.array([bool(s and u >= best_lower) for s, u in zip(safe, upper, strict=True)])


def expanders_lower(kernel: Kernel, B: float, points: Array, safe: Mask, upper: Array, h: float) -> Mask:
    """Eq. (expander): a in S with some a' outside S such that u(a) - B d_k(a, a') >= h."""
    chosen = np.zeros(len(points), dtype=bool)
    d = metric(kernel, points, points)
    for i in np.flatnonzero(safe):
        for j in np.flatnonzero(~safe):
            if upper[i] - B * d[i, j] >= h:
                chosen[i] = True
                break
    return chosen


def expanders_upper(kernel: Kernel, B: float, points: Array, safe: Mask, lower: Array, h: float) -> Mask:
    """Eq. (expander) for an upper limit: some a' outside S with l(a) + B d_k(a, a') <= h."""
    chosen = np.zeros(len(points), dtype=bool)
    d = metric(kernel, points, points)
    for i in np.flatnonzero(safe):
        for j in np.flatnonzero(~safe):
            if lower[i] + B * d[i, j] <= h:
                chosen[i] = True
                break
    return chosen

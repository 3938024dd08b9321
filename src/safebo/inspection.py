"""Looking into sub-domains: everything on the grid, and certificates for arbitrary points, rebuilt on request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safebo.domain import Cube, Grid
from safebo.intervals import Rules, interval_at
from safebo.outputs import Output
from safebo.sets import expanders, maximisers
from safebo.subdomain import SubDomain

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SubDomainView:
    """Everything about a sub-domain on its grid, rebuilt from its samples: for plots, tests and curious users."""

    cube: Cube
    points: FloatArray  # (G, n), unit cube
    norms: dict[str, float]
    lower: dict[str, FloatArray]
    upper: dict[str, FloatArray]
    safe: Mask
    maximisers: Mask
    expanders: Mask


def view(subdomain: SubDomain, rules: Rules, best_lower: float) -> SubDomainView:
    """Rebuild the arrays of a sub-domain on its grid."""
    grid = Grid(subdomain.cube, rules.shape)
    points, safe, near = grid.points(), subdomain.safe_mask(grid.size), subdomain.near_mask(grid.size)
    lower, upper, norms = {}, {}, {}
    expanding = np.zeros(grid.size, dtype=bool)
    for output, state in zip(rules.outputs, subdomain.outputs, strict=True):
        low, high = interval_at(state, output, points)
        lower[output.name], upper[output.name], norms[output.name] = low, high, state.norm
        if output.lower_limit is not None:
            expanding |= expanders(grid, output.kernel, state.norm, high - output.lower_limit, near)
        if output.upper_limit is not None:
            expanding |= expanders(grid, output.kernel, state.norm, output.upper_limit - low, near)
    objective = rules.outputs[0].name
    return SubDomainView(
        subdomain.cube, points, norms, lower, upper, safe, maximisers(upper[objective], near, best_lower), expanding
    )


def certifies(subdomain: SubDomain, rules: Rules, points: FloatArray) -> Mask:
    """Which points (p, n) of the cube are certified by the safe-set rule, with the sub-domain's own S_t and seeds as sources."""
    result = np.ones(len(points), dtype=bool)
    grid = Grid(subdomain.cube, rules.shape)
    sources: FloatArray | None = None
    if rules.safe_set != "confidence":
        on_grid = grid.points()[subdomain.safe_mask(grid.size)]
        sources = np.concatenate([on_grid, subdomain.outputs[0].posterior.x[subdomain.seeds]])
    for output, state in zip(rules.outputs, subdomain.outputs, strict=True):
        if not output.is_limit:
            continue
        low, high = interval_at(state, output, points)
        at_sources = interval_at(state, output, sources) if sources is not None and len(sources) else None
        for sign, limit in ((1.0, output.lower_limit), (-1.0, output.upper_limit)):
            if limit is None:
                continue
            margin = low - limit if sign > 0 else limit - high
            allowed = margin >= 0.0 if rules.safe_set != "continuity" else np.zeros(len(points), dtype=bool)
            if at_sources is not None and sources is not None and not allowed.all():
                source_margin = at_sources[0] - limit if sign > 0 else limit - at_sources[1]
                todo = np.flatnonzero(~allowed)
                allowed[todo] = _covers(output, state.norm, sources, source_margin, points[todo])
            result &= allowed
    return result


def _covers(output: Output, norm: float, sources: FloatArray, margin: FloatArray, points: FloatArray) -> Mask:
    """Eq. (6) at arbitrary points, pair by pair in blocks."""
    usable = margin >= 0.0
    sources, margin = sources[usable], margin[usable]
    result = np.zeros(len(points), dtype=bool)
    block = max(1, 4_000_000 // max(len(points), 1))
    for first in range(0, len(sources), block):
        piece = slice(first, first + block)
        result |= (norm * output.kernel.metric(points, sources[piece]) <= margin[piece]).any(axis=1)
    return result

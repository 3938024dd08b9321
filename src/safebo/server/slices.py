"""What an optimizer knows along one or two parameters, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError
from safebo.inspection import SubDomainView, view
from safebo.optimizer import SafeOptimizer, Trial
from safebo.report import scene

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_GRID_POINTS = 5_000_000
"""Grid points of all sub-domains together up to which maximisers and expanders are shown."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Mean, interval and sets on a mesh of one axis (p,) or two; of two, the second runs faster."""

    names: tuple[str, ...]
    axes: tuple[FloatArray, ...]
    fixed: dict[str, float]
    mean: FloatArray
    lower: FloatArray
    upper: FloatArray
    safe: Mask
    maximisers: Mask | None
    expanders: Mask | None


def sets_of(optimizer: SafeOptimizer) -> list[SubDomainView] | None:
    """Maximisers and expanders of every sub-domain, without the rest of its arrays; None if there are too many points."""
    analysis, settings = optimizer._require_analysis(), optimizer.state.settings
    if len(analysis.open) * int(np.prod(settings.shape)) > MOST_GRID_POINTS:
        return None
    nothing = np.empty((0, optimizer.domain.dim))
    full = (view(s, optimizer._rules, analysis.best_lower) for s in analysis.open.values())
    return [replace(v, points=nothing, lower={}, upper={}) for v in full]


def cut(
    optimizer: SafeOptimizer,
    names: Sequence[str],
    fixed: Mapping[str, float],
    output: str,
    points: int,
    sets: Sequence[SubDomainView] | None,
    trial: Trial | None = None,
) -> Cut:
    """The slice along `names`; parameters that `fixed` leaves open are those of `best()`.

    points   per axis at least; there are more around the trial and safe measurements, if nothing certified was seen there
    """
    overlap = [name for name in fixed if name in names]
    if overlap:
        raise InvalidValueError(f"{overlap[0]!r} is on an axis and cannot be fixed: leave it out of `at`.")
    where = scene.slice_of(optimizer, names, fixed)
    axes, certified = scene.certified_area(where, points, trial)
    mesh, safe = where.over(axes), certified.ravel()
    lower, upper = optimizer.bounds(mesh, output)
    return Cut(
        where.names,
        tuple(axes),
        where.fixed,
        optimizer.mean(mesh, output),
        lower,
        upper,
        safe,
        None if sets is None else safe & _on(where, axes, sets, "M"),
        None if sets is None else safe & _on(where, axes, sets, "G"),
    )


def _on(where: scene.Slice, axes: Sequence[FloatArray], sets: Sequence[SubDomainView], which: str) -> Mask:
    """A set at the points of the mesh; along a line, at those nearest to it."""
    if len(axes) == 2:
        return scene.raster(where, sets, which, axes).ravel()
    half = 0.5 * float(np.diff(axes[0]).max())
    result = np.zeros(len(axes[0]), dtype=bool)
    for low, high in scene.stretches(where, sets, which):
        result |= (axes[0] >= low - half) & (axes[0] <= high + half)
    return result

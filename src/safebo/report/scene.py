"""What a figure shows, as plain arrays: the slice through the domain, the sets on it, which samples were unsafe.

Notation
    n       number of parameters; points are in user units, (p, n), unless they are called unit
    slice   the one or two parameters on the axes, and a point that fixes the others
    view    `SubDomainView`: S, M and G of one sub-domain on its own grid
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safebo.domain import Cube
from safebo.exceptions import InvalidValueError
from safebo.inspection import SubDomainView
from safebo.optimizer import Best, SafeOptimizer, Trial
from safebo.outputs import Output
from safebo.state import State

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]
Truth = Callable[[FloatArray], ArrayLike]
Truths = Truth | Mapping[str, Truth] | None

SETS = {"S": "safe", "M": "maximisers", "G": "expanders"}

_ON_SLICE = 1e-6  # in the unit cube: samples this close to a slice are drawn as lying on it


@dataclass(frozen=True)
class Slice:
    """The parameters on the axes, by number, and the point (n,) in user units that fixes the others."""

    opt: SafeOptimizer
    vary: tuple[int, ...]
    base: FloatArray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the varied parameters."""
        return tuple(self.opt.domain.names[a] for a in self.vary)

    @property
    def fixed(self) -> dict[str, float]:
        """The other parameters and their values."""
        names = self.opt.domain.names
        return {names[a]: float(self.base[a]) for a in range(len(names)) if a not in self.vary}

    def extent(self, i: int) -> tuple[float, float]:
        """Bounds of the i-th varied parameter."""
        return float(self.opt.domain.low[self.vary[i]]), float(self.opt.domain.high[self.vary[i]])

    def mesh(self, points: int) -> tuple[list[FloatArray], FloatArray]:
        """The axes (points,) and all points (points ** len(vary), n), last axis fastest."""
        axes = [np.linspace(*self.extent(i), points) for i in range(len(self.vary))]
        return axes, self.over(axes)

    def over(self, axes: Sequence[FloatArray]) -> FloatArray:
        """All points over these axes, (product of their lengths, n), last axis fastest."""
        grid = np.meshgrid(*axes, indexing="ij")
        result = np.tile(self.base, (grid[0].size, 1))
        for axis, values in zip(self.vary, grid, strict=True):
            result[:, axis] = values.ravel()
        return result

    def user(self, axis: int, unit: FloatArray) -> FloatArray:
        """Unit cube -> user units for one parameter."""
        low, high = self.opt.domain.low[axis], self.opt.domain.high[axis]
        return np.asarray(low + unit * (high - low))

    def contains(self, points: FloatArray) -> Mask:
        """Which points (p, n) lie on the slice."""
        offset = np.abs(self.opt.domain.to_unit(points) - self.opt.domain.to_unit(self.base))
        offset[:, list(self.vary)] = 0.0
        return np.asarray((offset <= _ON_SLICE).all(axis=1))

    def layer(self, view: SubDomainView, which: str) -> tuple[list[FloatArray], Mask] | None:
        """A set of a sub-domain on the grid layer nearest to the slice: unit axes and mask; None if the slice misses the cube."""
        shape = self.opt.state.settings.shape
        mask = getattr(view, SETS[which]).reshape(shape)
        unit = self.opt.domain.to_unit(self.base)
        index: list[int | slice] = []
        for axis, (low, high) in enumerate(zip(view.cube.lower, view.cube.upper, strict=True)):
            if axis in self.vary:
                index.append(slice(None))
            elif low <= unit[axis] <= high:
                index.append(round((unit[axis] - low) / (high - low) * (shape[axis] - 1)))
            else:
                return None
        layer = mask[tuple(index)]
        axes = [np.linspace(view.cube.lower[a], view.cube.upper[a], shape[a]) for a in self.vary]
        return axes, layer if list(self.vary) == sorted(self.vary) else layer.T


def full(opt: SafeOptimizer, fixed: Mapping[str, float] | None) -> Slice:
    """All parameters that are not fixed; one or two must remain."""
    names = opt.domain.names
    rest = tuple(name for name in names if name not in (fixed or {}))
    if not 1 <= len(rest) <= 2:
        example = ", ".join(f"{name!r}: ..." for name in names[2:])
        advice = (
            f"draw a slice with plot_state(opt, fixed={{{example}}}), or with plot_slice(opt, vary={names[:2]!r}), "
            "which fixes the others at best()."
            if rest
            else "fix fewer."
        )
        raise InvalidValueError(f"A figure shows one or two parameters, not {len(rest)} {list(rest)}: {advice}")
    return slice_of(opt, rest, fixed)


def slice_of(opt: SafeOptimizer, vary: str | Sequence[str], fixed: Mapping[str, float] | Best | None) -> Slice:
    """The slice along the named parameters; whatever `fixed` leaves open is taken from best()."""
    names = opt.domain.names
    wanted = (vary,) if isinstance(vary, str) else tuple(vary)
    unknown = [name for name in wanted if name not in names]
    if unknown or len(set(wanted)) != len(wanted) or not 1 <= len(wanted) <= 2:
        raise InvalidValueError(f"vary takes one or two different parameters of {list(names)}, got {vary!r}.")
    given = dict(fixed.params if isinstance(fixed, Best) else fixed or {})
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InvalidValueError(f"Cannot fix {unknown}: the domain has the parameters {list(names)}.")
    middle = dict(zip(names, (0.5 * (opt.domain.low + opt.domain.high)).tolist(), strict=True))
    open_names = [name for name in names if name not in wanted and name not in given]
    base = {**middle, **(opt.best().params if open_names else {}), **given}
    return Slice(opt, tuple(names.index(name) for name in wanted), opt.domain.point(base))


# -- sets ----------------------------------------------------------------------------------------------------------------


def stretches(cut: Slice, views: Sequence[SubDomainView], which: str) -> list[tuple[float, float]]:
    """A set on a one-dimensional slice, united over the sub-domains: disjoint intervals in user units, ascending."""
    found: list[tuple[float, float]] = []
    for view in views:
        layer = cut.layer(view, which)
        if layer is None:
            continue
        (axis,), mask = layer
        edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
        found.extend((float(axis[a]), float(axis[b - 1])) for a, b in zip(edges[::2], edges[1::2], strict=True))
    finest = 1.0 / (cut.opt.state.settings.shape[cut.vary[0]] - 1)  # neighbours on the global grid belong together
    merged: list[tuple[float, float]] = []
    for low, high in sorted(found):
        if merged and low <= merged[-1][1] + finest:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    users = cut.user(cut.vary[0], np.array(merged).reshape(-1, 2))
    return [(float(low), float(high)) for low, high in users]


def certified_area(cut: Slice, points: int, trial: Trial | None = None) -> tuple[list[FloatArray], Mask]:
    """Axes with at least so many points, and which of their mesh are certified, (len(axis),) * len(vary).

    Where the trial or a safe measurement would fall between points that are not certified, the axes are refined around it: what
    is certified is seen, however small the safe set is, and nothing else is drawn as safe.
    """
    axes, mesh = cut.mesh(points)
    safe = cut.opt.is_safe(mesh).reshape([points] * len(axes))
    known = certified_points(cut, trial)[:, list(cut.vary)]
    nearest = [np.abs(axis[None, :] - known[:, i, None]).argmin(axis=1) for i, axis in enumerate(axes)]
    lost = known[~safe[tuple(nearest)]]
    if len(lost):
        axes = [_refined(axis, lost[:, i]) for i, axis in enumerate(axes)]
        safe = cut.opt.is_safe(cut.over(axes)).reshape([len(axis) for axis in axes])
    return axes, safe


def certified_points(cut: Slice, trial: Trial | None = None) -> FloatArray:
    """Safe measurements and the trial, where they lie on the slice and are certified by what is known now, (p, n)."""
    state = cut.opt.state
    points = points_of(state)[state.inside()]
    if trial is not None:
        points = np.concatenate([points, cut.opt.domain.point(dict(trial.params))[None, :]])
    points = points[cut.contains(points)]
    return np.asarray(points[cut.opt.is_safe(points)])


def _refined(axis: FloatArray, values: FloatArray) -> FloatArray:
    """An axis with these values, and a point on each side of them a quarter of a step away."""
    step = axis[1] - axis[0]
    beside = np.concatenate([axis, values - 0.25 * step, values + 0.25 * step])
    beside = beside[(beside >= axis[0]) & (beside <= axis[-1])]
    exact = np.unique(values)
    far = np.abs(beside[:, None] - exact[None, :]).min(axis=1) > 0.05 * step  # leaves room for the exact ones
    return np.unique(np.concatenate([beside[far], exact]))


def certified_stretches(cut: Slice, points: int, trial: Trial | None = None) -> list[tuple[float, float]]:
    """The safe set on a one-dimensional slice: intervals in user units, ascending, each between certified points."""
    (axis,), safe = certified_area(cut, points, trial)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], safe, [False]]).astype(np.int8)))
    return [(float(axis[a]), float(axis[b - 1])) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def raster(cut: Slice, views: Sequence[SubDomainView], which: str, axes: Sequence[FloatArray]) -> Mask:
    """A set on a two-dimensional slice, united over the sub-domains, at the nearest grid points of each, over these axes."""
    spans = [cut.extent(i) for i in range(2)]
    pixels = [(axis - low) / (high - low) for axis, (low, high) in zip(axes, spans, strict=True)]
    result = np.zeros([len(axis) for axis in axes], dtype=bool)
    for view in views:
        layer = cut.layer(view, which)
        if layer is None or not layer[1].any():
            continue
        own, mask = layer
        inside = [np.flatnonzero((at >= axis[0]) & (at <= axis[-1])) for at, axis in zip(pixels, own, strict=True)]
        nearest = [
            np.rint((at[rows] - axis[0]) / (axis[-1] - axis[0]) * (len(axis) - 1)).astype(np.intp)
            for at, rows, axis in zip(pixels, inside, own, strict=True)
        ]
        result[np.ix_(*inside)] |= mask[np.ix_(*nearest)]
    return result


# -- samples -------------------------------------------------------------------------------------------------------------


def output_number(state: State, output: str | None) -> int:
    """Index of a named output; the objective by default."""
    names = [o.name for o in state.outputs]
    if output is not None and output not in names:
        raise InvalidValueError(f"Unknown output {output!r}: choose one of {names}.")
    return 0 if output is None else names.index(output)


def points_of(state: State) -> FloatArray:
    """Samples in user units, (t, n)."""
    return np.array([s.point for s in state.samples], dtype=np.float64).reshape(state.step, state.settings.domain.dim)


def initial_of(state: State) -> Mask:
    """Which samples were told without a trial, (t,)."""
    return np.array([s.trial is None for s in state.samples], dtype=bool)


def truths_by_name(state: State, truth: Truths, output: str | None) -> dict[str, Truth]:
    """Output name -> true function; a single function belongs to the shown output."""
    if truth is None:
        return {}
    names = [o.name for o in state.outputs]
    if callable(truth):
        return {names[output_number(state, output)]: truth}
    unknown = [name for name in truth if name not in names]
    if unknown:
        raise InvalidValueError(f"truth names the outputs {unknown}: choose from {names}.")
    return dict(truth)


def evaluate(truth: Truth, points: FloatArray) -> FloatArray:
    """The true function at points (p, n), (p,)."""
    values = np.asarray(truth(points), dtype=np.float64)
    if values.size != len(points):
        raise InvalidValueError(
            f"truth is called with points of shape {points.shape} in user units and must return one value per point, "
            f"got shape {values.shape}; for a function of one point pass lambda x: [f(p) for p in x]."
        )
    return values.reshape(-1)


def violations_of(state: State, truths: Mapping[str, Truth]) -> Mask:
    """Samples that were measured outside a limit, or whose true value lies outside one, (t,)."""
    unsafe = ~state.inside()
    points = points_of(state)
    for output in state.outputs:
        if output.name in truths and output.is_limit and len(points):
            unsafe |= outside(output, evaluate(truths[output.name], points))
    return np.asarray(unsafe)


def outside(output: Output, values: FloatArray) -> Mask:
    """Which values lie outside the limits of an output."""
    return np.array([not output.satisfied(float(v)) for v in values], dtype=bool)


def margin(output: Output, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """How far inside the limits an interval lies: the nearer one counts; negative where it may lie outside."""
    inside = np.full(len(lower), np.inf)
    if output.lower_limit is not None:
        inside = np.minimum(inside, lower - output.lower_limit)
    if output.upper_limit is not None:
        inside = np.minimum(inside, output.upper_limit - upper)
    return inside


def limits_of(output: Output) -> list[float]:
    """The limits of an output that exist."""
    return [limit for limit in (output.lower_limit, output.upper_limit) if limit is not None]


def value_range(state: State, number: int, truths: Mapping[str, Truth], cut: Slice) -> tuple[float, float]:
    """A range that shows measurements, limits and the true function with room around them."""
    output = state.outputs[number]
    values = [*state.values()[:, number].tolist(), *limits_of(output)]
    if output.name in truths:
        values.extend(evaluate(truths[output.name], cut.mesh(201 if len(cut.vary) == 1 else 41)[1]).tolist())
    low, high = min(values), max(values)
    room = 0.15 * (high - low) if high > low else max(abs(high), 1.0)
    return low - room, high + room


def roles(cut: Slice, truths: Mapping[str, Truth]) -> dict[str, Mask]:
    """Every sample in exactly one role: unsafe (on the slice or not), off the slice, initial, or any other."""
    state = cut.opt.state
    unsafe, initial, on = violations_of(state, truths), initial_of(state), cut.contains(points_of(state))
    return {
        "elsewhere": ~unsafe & ~on,
        "sample": ~unsafe & on & ~initial,
        "initial": ~unsafe & on & initial,
        "violation": unsafe,
    }


def was_rejected(reason: str) -> bool:
    """Whether an experiment without a measurement was refused by a person, by the reason in the record."""
    return reason == "rejected" or reason.startswith("rejected: ")


def given_up(cut: Slice) -> list[tuple[str, bool, FloatArray]]:
    """Experiments without a measurement: role, whether they lie on the slice, and point (n,)."""
    aborts = cut.opt.state.aborts
    points = np.array([a.point for a in aborts], dtype=np.float64).reshape(len(aborts), cut.opt.domain.dim)
    on = cut.contains(points)
    roles = ["rejected" if was_rejected(a.reason) else "aborted" for a in aborts]
    return [(role, bool(here), point) for role, here, point in zip(roles, on, points, strict=True)]


def cubes_of(cut: Slice, views: Sequence[SubDomainView], which: bool | str, trial: Trial | None) -> list[Cube]:
    """The local sub-domains that the slice passes through: all of them, or the one that certifies the next trial."""
    unit = cut.opt.domain.to_unit(cut.base)
    whole = Cube.whole(cut.opt.domain.dim)
    if which == "next":
        candidates = [] if trial is None else [trial.cube]
    else:
        candidates = [view.cube for view in views if view.cube != whole]
    others = [a for a in range(cut.opt.domain.dim) if a not in cut.vary]
    return [c for c in candidates if all(c.lower[a] <= unit[a] <= c.upper[a] for a in others)]

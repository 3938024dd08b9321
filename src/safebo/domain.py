"""Domains: the box of named parameters, sub-domains inside the unit cube, and their grids.

Notation
    n       number of parameters
    params  point in the user's units, dict name -> value or array (n,)
    x, a    the same point in the unit cube, array (n,)
    c       sub-domain: an axis-parallel box inside the unit cube (the paper's "local cube")
    G       number of grid points of a sub-domain
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safebo.exceptions import InvalidValueError
from safebo.naming import unmatched

FloatArray = NDArray[np.float64]

LARGEST_BOUND, SMALLEST_RANGE = 1e100, 1e-305
"""Bounds beyond the one and ranges below the other are refused: they do not survive a change of units."""

EDGE = 1e-12
"""Points outside a bound by less than this fraction of its range are taken to be on it."""

MAX_GRID_POINTS = 5_000_000
"""More points than this in one sub-domain is refused: 40 MB per array, several arrays per sub-domain."""


class Box:
    """Named parameters with bounds: `Box({"kp": (0.0, 5.0), "kd": (0.0, 1.0)})`, or `Box.unit(n)`."""

    def __init__(self, bounds: Mapping[str, tuple[float, float]]) -> None:
        if not isinstance(bounds, Mapping) or not bounds:
            raise InvalidValueError(f"Box takes a non-empty mapping name -> (low, high), got {bounds!r}.")
        checked: dict[str, tuple[float, float]] = {}
        for name, pair in bounds.items():
            if not isinstance(name, str) or not name:
                raise InvalidValueError(f"Parameter names are non-empty strings, got {name!r}.")
            try:
                low, high = _as_float_array(pair, "bounds").tolist()
            except (TypeError, ValueError):
                raise InvalidValueError(f"The bounds of {name!r} must be two numbers (low, high), got {pair!r}.") from None
            if not (low < high and math.isfinite(high - low)):
                raise InvalidValueError(f"The bounds of {name!r} must be finite with low < high, got ({low}, {high}).")
            if max(abs(low), abs(high)) > LARGEST_BOUND or high - low < SMALLEST_RANGE:
                raise InvalidValueError(f"The bounds of {name!r}, ({low}, {high}), are beyond what is sensible: change its unit.")
            checked[name] = (low, high)
        self._bounds = checked
        self.names: tuple[str, ...] = tuple(checked)
        self.low: FloatArray = np.array([b[0] for b in checked.values()])
        self.high: FloatArray = np.array([b[1] for b in checked.values()])
        self.low.flags.writeable = self.high.flags.writeable = False
        if self.rounding > 1e-6:
            worst = self.names[int(np.argmax(np.maximum(np.abs(self.low), np.abs(self.high)) / (self.high - self.low)))]
            raise InvalidValueError(
                f"The bounds of {worst!r}, {checked[worst]}, are too close together for their size: floating point cannot tell "
                "its values apart. Use the difference to a reference value as the parameter."
            )

    @classmethod
    def unit(cls, n: int) -> Box:
        """The unit cube with parameters x1, ..., xn."""
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise InvalidValueError(f"The dimension must be a positive integer, got {n!r}.")
        return cls({f"x{i + 1}": (0.0, 1.0) for i in range(int(n))})

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return len(self.names)

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """A copy of the bounds, name -> (low, high)."""
        return dict(self._bounds)

    @property
    def rounding(self) -> float:
        """How far, in the unit cube, a point may move on its way to user units and back: large where a range is far from zero."""
        size = np.maximum(np.abs(self.low), np.abs(self.high)) / (self.high - self.low)
        return max(EDGE, 4.0 * float(np.finfo(np.float64).eps * size.max()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and list(self._bounds.items()) == list(other._bounds.items())

    def __hash__(self) -> int:
        return hash(tuple(self._bounds.items()))

    def __repr__(self) -> str:
        return f"Box({self._bounds!r})"

    # -- points ---------------------------------------------------------------------------------------------------------

    def point(self, params: Mapping[str, float] | ArrayLike) -> FloatArray:
        """One validated point in user units, (n,), from a dict or an array-like."""
        if isinstance(params, Mapping):
            if wrong := unmatched(params, self.names):
                raise InvalidValueError(f"The parameters are {list(self.names)}: {wrong}")
            values: Any = [params[name] for name in self.names]
        else:
            values = params
        point = _as_float_array(values, "parameters").reshape(-1)
        if point.size != self.dim:
            raise InvalidValueError(f"Expected one point with {self.dim} parameters {list(self.names)}, got {params!r}.")
        return np.asarray(self.points(point)[0])

    def points(self, x: ArrayLike) -> FloatArray:
        """Validated points in user units, (p, n), inside the box."""
        values = _as_float_array(x, "parameters")
        if values.ndim == 0:
            values = values.reshape(1)
        if values.ndim == 1:
            values = values.reshape(-1, 1) if self.dim == 1 and values.size != 1 else values.reshape(1, -1)
        if values.ndim != 2 or values.shape[1] != self.dim:
            raise InvalidValueError(
                f"Expected points with {self.dim} parameters {list(self.names)}, got an array of shape {np.shape(x)}."
            )
        if not np.isfinite(values).all():
            raise InvalidValueError(f"Parameters must be finite, got {values[~np.isfinite(values).all(axis=1)][0].tolist()}.")
        slack = EDGE * (self.high - self.low)
        outside = (values < self.low - slack) | (values > self.high + slack)
        if outside.any():
            row, axis = np.argwhere(outside)[0]
            raise InvalidValueError(
                f"Parameter {self.names[axis]!r} = {float(values[row, axis])} lies outside its bounds "
                f"[{self.low[axis]}, {self.high[axis]}]: stay inside the domain, or enlarge it."
            )
        return np.clip(values, self.low, self.high)

    def to_unit(self, points: FloatArray) -> FloatArray:
        """User units -> unit cube."""
        return np.clip((points - self.low) / (self.high - self.low), 0.0, 1.0)

    def from_unit(self, x: FloatArray) -> FloatArray:
        """Unit cube -> user units."""
        return np.clip(self.low + x * (self.high - self.low), self.low, self.high)

    def as_dict(self, point: FloatArray) -> dict[str, float]:
        """One point in user units as name -> value."""
        return {name: float(value) for name, value in zip(self.names, point, strict=True)}


def _as_float_array(values: object, what: str) -> FloatArray:
    try:
        array = np.asarray(values)
        if array.dtype == bool or array.dtype.kind not in "iuf":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidValueError(f"Expected numbers for {what}, got {values!r}.") from None


@dataclass(frozen=True)
class Cube:
    """A sub-domain: an axis-parallel box inside the unit cube. Two cubes are the same if their corners are."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        valid = len(self.lower) == len(self.upper) > 0 and all(
            math.isfinite(a) and math.isfinite(b) and a < b for a, b in zip(self.lower, self.upper, strict=True)
        )
        if not valid:
            raise InvalidValueError(f"A sub-domain needs finite corners with lower < upper, got {self.lower}, {self.upper}.")

    @classmethod
    def whole(cls, n: int) -> Cube:
        """The global domain c_0."""
        return cls((0.0,) * n, (1.0,) * n)

    @classmethod
    def around(cls, centre: FloatArray, edge: float) -> Cube:
        """The cube of the given edge length centred at a sample, clipped to the unit cube."""
        lower, upper = np.maximum(centre - 0.5 * edge, 0.0), np.minimum(centre + 0.5 * edge, 1.0)
        return cls(tuple(lower.tolist()), tuple(upper.tolist()))

    @property
    def dim(self) -> int:
        """Number of axes."""
        return len(self.lower)

    @property
    def width(self) -> float:
        """Longest edge."""
        return max(b - a for a, b in zip(self.lower, self.upper, strict=True))

    def contains(self, x: FloatArray, slack: float = 0.0) -> NDArray[np.bool_]:
        """Which rows of x (p, n) lie in the closed box, or outside it by no more than rounding (`slack`)."""
        if slack:
            return np.asarray(((x >= np.subtract(self.lower, slack)) & (x <= np.add(self.upper, slack))).all(axis=1))
        return np.asarray(((x >= self.lower) & (x <= self.upper)).all(axis=1))

    def encloses(self, other: Cube) -> bool:
        """Whether the other box lies inside this one."""
        return all(a <= b for a, b in zip(self.lower, other.lower, strict=True)) and all(
            a >= b for a, b in zip(self.upper, other.upper, strict=True)
        )


class Locality(Protocol):
    """Which sub-domains exist, given the samples."""

    def cubes(self, x: FloatArray) -> list[Cube]:
        """Sub-domains for samples x (t, n) in the order they were taken, the global domain first."""
        ...


@dataclass(frozen=True)
class LocalCubes:
    """N cubes of edge length Delta, 2 Delta, ..., N Delta around every sample, clipped, and the global domain (Alg. 4)."""

    n: int = 5
    delta: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 0:
            raise InvalidValueError(f"LocalCubes.n, the cubes per sample, must be an integer >= 0, got {self.n!r}.")
        if isinstance(self.delta, bool) or not (
            isinstance(self.delta, (int, float)) and math.isfinite(self.delta) and self.delta > 0.0
        ):
            raise InvalidValueError(f"LocalCubes.delta, the edge length step, must be positive, got {self.delta!r}.")

    def cubes(self, x: FloatArray) -> list[Cube]:
        """The global domain, then the cubes of the first sample from small to large, of the second, and so on."""
        found = {Cube.whole(x.shape[1]): None}
        for centre in x:
            for k in range(1, self.n + 1):
                found.setdefault(Cube.around(centre, k * self.delta), None)
        return list(found)


@dataclass(frozen=True)
class DoublingCubes:
    """`n` cubes of edge length `smallest`, twice that, four times that, ... around samples, clipped, and the global domain. Ours.

    Where a sample lies within `spacing` half-edges of the centre of a cube, no other cube of that size is added: it would know
    nearly the same.
    """

    n: int = 5
    smallest: float = 0.025
    spacing: float = 0.25

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 0:
            raise InvalidValueError(f"DoublingCubes.n, the number of sizes, must be an integer >= 0, got {self.n!r}.")
        for name, smallest in (("smallest", np.nextafter(0.0, 1.0)), ("spacing", 0.0)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not (number and value >= smallest):
                raise InvalidValueError(
                    f"DoublingCubes.{name} must be finite and {'positive' if smallest else '>= 0'}, got {value!r}."
                )

    def cubes(self, x: FloatArray) -> list[Cube]:
        """The global domain, then the cubes of the first sample from small to large, of the second, and so on."""
        found = {Cube.whole(x.shape[1]): None}
        centres, number = np.empty((self.n, *x.shape)), [0] * self.n  # per size, the samples with a cube of their own
        for centre in x:
            for k, taken in enumerate(centres):
                edge = self.smallest * 2.0**k
                if (np.abs(taken[: number[k]] - centre).max(axis=1) <= 0.5 * self.spacing * edge).any():
                    continue
                taken[number[k]] = centre
                number[k] += 1
                found.setdefault(Cube.around(centre, edge), None)
        return list(found)


def default_cubes(lengthscale: float, dim: int) -> DoublingCubes:
    """Edges from a quarter of a lengthscale, in three to six dimensions from less, to four lengthscales.

    The first step from a start with a small margin is often less than a hundredth of a lengthscale. In three to six dimensions
    the smallest cubes are such that their default grid is as fine as in two: with a quarter of a lengthscale 6 of 40 runs in
    three and 12 of 16 in six found no way on along points of the grid. Beyond, more sizes take more time than most runs have.
    """
    n = {3: 7, 4: 8, 5: 9, 6: 9}.get(dim, 5)
    return DoublingCubes(n=n, smallest=4.0 * lengthscale / 2.0 ** (n - 1))


@dataclass(frozen=True)
class GlobalDomain:
    """No locality: the global domain only (Alg. 1)."""

    def cubes(self, x: FloatArray) -> list[Cube]:
        """The unit cube."""
        return [Cube.whole(x.shape[1])]


@dataclass(frozen=True)
class SampleHull:
    """The locality of PACSBO (2024): the global domain, the hull of the samples, and the box half-way between the two.

    Sub-domains are boxes, so beyond one dimension the hull is the bounding box of the samples. It needs two samples that differ
    in every parameter; until then there is only the global domain.
    """

    def cubes(self, x: FloatArray) -> list[Cube]:
        """Global domain, intermediate box, hull."""
        whole = Cube.whole(x.shape[1])
        lower, upper = x.min(axis=0), x.max(axis=0)
        if not (upper > lower).all():
            return [whole]
        middle = Cube(tuple((0.5 * lower).tolist()), tuple((0.5 * (1.0 + upper)).tolist()))
        return list({whole: None, middle: None, Cube(tuple(lower.tolist()), tuple(upper.tolist())): None})


@dataclass(frozen=True)
class Grid:
    """The regular grid of a sub-domain, corners included; point number g is in C order (last axis fastest)."""

    cube: Cube
    shape: tuple[int, ...]
    axes: tuple[FloatArray, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        axes = tuple(np.linspace(a, b, p) for a, b, p in zip(self.cube.lower, self.cube.upper, self.shape, strict=True))
        object.__setattr__(self, "axes", axes)

    @property
    def size(self) -> int:
        """Number of points G."""
        return math.prod(self.shape)

    @property
    def spacing(self) -> FloatArray:
        """Distance of neighbouring points per axis, (n,)."""
        edges = np.subtract(self.cube.upper, self.cube.lower)
        return np.asarray(edges / (np.asarray(self.shape) - 1))

    def points(self) -> FloatArray:
        """All points, (G, n)."""
        return np.asarray(self.columns().T)

    def columns(self) -> FloatArray:
        """All points with one row per axis, (n, G), contiguous: the layout that vectorises."""
        mesh = np.empty((len(self.shape), *self.shape))
        for axis, values in enumerate(self.axes):
            mesh[axis] = values.reshape([-1 if i == axis else 1 for i in range(len(self.shape))])
        return mesh.reshape(len(self.shape), -1)

    def at(self, index: NDArray[np.intp]) -> FloatArray:
        """Points number g for every g in index, (k, n)."""
        where = np.unravel_index(index, self.shape)
        return np.stack([axis[i] for axis, i in zip(self.axes, where, strict=True)], axis=-1)


def resolve_points_per_axis(points: int | Sequence[int] | None, dim: int) -> tuple[int, ...]:
    """Points per axis of every sub-domain's grid.

    Default: about 1000 points in one dimension, 10^4 to 10^5 in higher ones, where a sub-domain costs milliseconds.
    """
    if points is None:
        per_axis = {1: 1000, 2: 100, 3: 31, 4: 15, 5: 9, 6: 7, 7: 5, 8: 5}.get(dim, 3)
        shape = (per_axis,) * dim
    elif isinstance(points, (int, np.integer)) and not isinstance(points, bool):
        shape = (int(points),) * dim
    else:
        try:
            shape = tuple(operator.index(p) for p in points)  # type: ignore[union-attr]
        except (TypeError, ValueError):
            raise InvalidValueError(f"points_per_axis must be an integer or one per axis, got {points!r}.") from None
    if len(shape) != dim:
        raise InvalidValueError(f"points_per_axis has {len(shape)} entries {shape}, the domain has {dim} parameters.")
    if min(shape) < 2:
        raise InvalidValueError(f"points_per_axis must be at least 2 on every axis, got {shape}.")
    if math.prod(shape) > MAX_GRID_POINTS:
        raise InvalidValueError(
            f"points_per_axis {shape} makes {math.prod(shape):,} points per sub-domain; at most {MAX_GRID_POINTS:,} are handled: "
            "use fewer points per axis (local cubes keep the grid fine where it matters)."
        )
    return shape

"""Hypothesis strategies shared by the tests, and the profile they run with."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from safebo.domain import Box, Cube
from safebo.kernels import RBF, Matern, StationaryKernel

settings.register_profile("safebo", deadline=None)  # a busy machine is not a failure
settings.load_profile("safebo")

seeds = st.integers(0, 2**32 - 1)
dims = st.integers(1, 4)


def scales(low: float = 0.02, high: float = 5.0) -> st.SearchStrategy[float]:
    """A positive number."""
    return st.floats(low, high, allow_nan=False)


@st.composite
def kernels(draw: st.DrawFn, dim: int | None = None) -> StationaryKernel:
    """A kernel of any family: one lengthscale, or with `dim` possibly one per axis."""
    lengthscale = draw(scales() if dim is None else st.one_of(scales(), st.tuples(*[scales()] * dim)))
    family = draw(st.sampled_from([0.5, 1.5, 2.5, None]))
    outputscale = draw(scales(0.05, 20.0))
    return RBF(lengthscale, outputscale) if family is None else Matern(family, lengthscale, outputscale)


@st.composite
def points(draw: st.DrawFn, dim: int, min_size: int = 1, max_size: int = 12) -> np.ndarray:
    """Points of the unit cube, (p, dim)."""
    count = draw(st.integers(min_size, max_size))
    return draw(hnp.arrays(np.float64, (count, dim), elements=st.floats(0.0, 1.0)))


@st.composite
def boxes(draw: st.DrawFn, dim: int | None = None) -> Box:
    """A box of named parameters in user units."""
    n = draw(dims) if dim is None else dim
    names = draw(st.lists(st.text("abcxyz", min_size=1, max_size=4), min_size=n, max_size=n, unique=True))
    lows = draw(st.lists(st.floats(-1e3, 1e3), min_size=n, max_size=n))
    widths = draw(st.lists(st.floats(1e-2, 1e3), min_size=n, max_size=n))
    return Box({name: (low, low + width) for name, low, width in zip(names, lows, widths, strict=True)})


@st.composite
def cubes(draw: st.DrawFn, dim: int, min_width: float = 0.02) -> Cube:
    """A sub-domain of the unit cube."""
    lower = [draw(st.floats(0.0, 1.0 - min_width)) for _ in range(dim)]
    upper = [draw(st.floats(a + min_width, 1.0)) if a + min_width < 1.0 else 1.0 for a in lower]
    return Cube(tuple(lower), tuple(upper))

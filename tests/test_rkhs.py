"""RKHS functions: norms against dense algebra, local norms, chunked evaluation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safebo.domain import Cube
from safebo.exceptions import InvalidValueError
from safebo.kernels import RBF, Matern
from safebo.rkhs import RKHSFunction, random_function
from tests.strategies import cubes, dims, kernels, points, seeds


@st.composite
def functions(draw, max_centres: int = 60):
    dim = draw(dims)
    return random_function(
        draw(kernels(dim=dim)), dim, draw(st.floats(0.1, 50.0)), draw(seeds), draw(st.integers(1, max_centres))
    )


# -- norm and values ----------------------------------------------------------------------------------------------------


@given(functions())
def test_norm_is_that_of_the_dense_form(f):
    a = f.coefficients
    dense = math.sqrt(a @ f.kernel(f.centres, f.centres) @ a)
    assert f.norm == pytest.approx(dense, rel=1e-7)


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("n_centres", [1, 126, 127, 700])
def test_norm_and_values_over_several_chunks(dim, n_centres):
    f = random_function(Matern(2.5, 0.2, 1.7), dim, 3.0, 5, n_centres)
    a, K = f.coefficients, f.kernel(f.centres, f.centres)
    assert f.norm == pytest.approx(math.sqrt(a @ K @ a), rel=1e-11)
    X = np.random.default_rng(1).random((1001, dim))
    np.testing.assert_allclose(f(X), f.kernel(X, f.centres) @ a, rtol=1e-10, atol=1e-12)


@given(functions(), st.floats(1e-3, 1e3))
def test_scaled_function_has_the_norm_and_is_a_multiple(f, norm):
    g = f.scaled_to(norm)
    assert g.norm == pytest.approx(norm, rel=1e-6)
    X = np.random.default_rng(0).random((5, f.dim))
    np.testing.assert_allclose(g(X) * f.norm, f(X) * norm, rtol=1e-9, atol=1e-9 * norm * f.norm)


@given(functions(), st.data())
def test_norm_bounds_the_change_of_a_function(f, data):
    """|f(a) - f(a')| <= ||f|| d_k(a, a'), the inequality behind the continuity safe set."""
    x = data.draw(points(f.dim, min_size=2, max_size=8))
    values = f(x)
    change = np.abs(values[:, None] - values[None, :])
    assert (change <= f.norm * f.kernel.metric(x, x) + 1e-6 * f.norm).all()


def test_no_points_no_values():
    assert random_function(RBF(0.2), 2, 1.0, 0, 10)(np.empty((0, 2))).shape == (0,)


# -- local norm ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(functions(), st.data())
def test_local_norm_never_exceeds_the_norm(f, data):
    assert f.local_norm(data.draw(cubes(f.dim)), points=4) <= f.norm * (1.0 + 1e-6)


@pytest.mark.parametrize("kernel", [Matern(0.5, 0.2), Matern(1.5, 0.1, 2.0), Matern(2.5, 0.3), RBF(0.1)], ids=lambda k: k.family)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_local_norm_of_the_whole_domain_is_the_norm(kernel, dim):
    f = random_function(kernel, dim, 5.0, 3, 200)
    assert f.local_norm(Cube.whole(dim), points=3) == pytest.approx(5.0, rel=1e-5)


@pytest.mark.parametrize("kernel", [Matern(0.5, 0.1), Matern(1.5, 0.1), Matern(2.5, 0.1)], ids=lambda k: k.family)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_local_norm_grows_with_the_box(kernel, dim, seed):
    f = random_function(kernel, dim, 5.0, seed, 300)
    centre = np.random.default_rng(seed).random(dim)
    norms = np.array([f.local_norm(Cube.around(centre, edge), 300 if dim == 1 else 17) for edge in (0.1, 0.2, 0.4, 0.8, 2.0)])
    assert (np.diff(norms) > 0.0).all()
    assert norms[-1] == pytest.approx(5.0, rel=1e-6)


@pytest.mark.parametrize("kernel", [Matern(1.5, 0.1), RBF(0.2)], ids=lambda k: k.family)
def test_local_norm_converges_from_below(kernel):
    f = random_function(kernel, 1, 5.0, 7, 300)
    norms = [f.local_norm(Cube((0.4,), (0.6,)), points) for points in (3, 9, 33, 129, 513)]  # each grid contains the last
    assert (np.diff(norms) > -1e-9).all()
    assert norms[-1] == pytest.approx(norms[-2], rel=2e-3)


def test_local_norm_of_one_centre_far_away_is_exact():
    """Matern 1/2 on a line: beyond its centre, a k(., z) is the multiple a e^-r of k(., edge), whose norm is known."""
    f = RKHSFunction(Matern(0.5, 0.5), [[0.1]], [3.0])
    assert f.local_norm(Cube((0.6,), (1.0,))) == pytest.approx(3.0 * math.exp(-1.0), rel=1e-8)


# -- random functions ---------------------------------------------------------------------------------------------------


def test_random_functions_are_determined_by_the_seed():
    first, again, other = (random_function(Matern(1.5), 2, 5.0, seed, 50) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first.centres, again.centres)
    np.testing.assert_array_equal(first.coefficients, again.coefficients)
    assert not np.array_equal(first.centres, other.centres)


def test_number_of_centres_from_a_range():
    counts = {len(random_function(Matern(1.5), 1, 1.0, seed, (3, 6)).centres) for seed in range(60)}
    assert counts == {3, 4, 5, 6}


# -- validation ---------------------------------------------------------------------------------------------------------


def test_functions_are_frozen_and_own_their_arrays():
    centres = np.array([[0.5]])
    f = RKHSFunction(RBF(), centres, [1.0])
    centres[0] = 0.9
    assert f.centres[0, 0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        f.coefficients[0] = 2.0
    with pytest.raises(AttributeError):
        f.kernel = RBF(0.2)


@pytest.mark.parametrize(
    ("centres", "coefficients", "named"),
    [
        ([0.1, 0.2], [1.0, 2.0], r"\(2,\)"),
        ([[0.1], [0.2]], [1.0], r"\(2, 1\) and \(1,\)"),
        (np.empty((0, 2)), [], r"\(0, 2\)"),
        ([[math.nan]], [1.0], "NaN"),
        ([[0.1]], [math.inf], "infinity"),
    ],
)
def test_bad_expansions_are_named(centres, coefficients, named):
    with pytest.raises(InvalidValueError, match=named):
        RKHSFunction(RBF(), centres, coefficients)


def test_bad_arguments_are_named():
    f = random_function(RBF(0.2), 2, 1.0, 0, 10)
    for bad in (np.zeros(2), np.zeros((4, 3))):
        with pytest.raises(InvalidValueError, match=r"\(p, 2\)"):
            f(bad)
    with pytest.raises(InvalidValueError, match="2 lengthscales"):
        RKHSFunction(RBF((0.1, 0.2)), [[0.5]], [1.0])
    with pytest.raises(InvalidValueError, match=r"-1\.0"):
        f.scaled_to(-1.0)
    with pytest.raises(InvalidValueError, match="zero function"):
        f.scaled_to(0.0).scaled_to(1.0)
    with pytest.raises(InvalidValueError, match="3 axes"):
        f.local_norm(Cube.whole(3))
    with pytest.raises(InvalidValueError, match="got 1"):
        f.local_norm(Cube.whole(2), points=1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"norm": 0.0}, "0.0"),
        ({"norm": math.nan}, "nan"),
        ({"seed": -1}, "-1"),
        ({"seed": 1.5}, "1.5"),
        ({"n_centres": 0}, "0"),
        ({"n_centres": (5, 3)}, "(5, 3)"),
        ({"n_centres": 2.5}, "2.5"),
    ],
)
def test_bad_draws_are_named(change, named):
    with pytest.raises(InvalidValueError) as error:
        random_function(**{"kernel": RBF(), "dim": 1, "norm": 1.0, "seed": 0, "n_centres": 5} | change)
    assert named in str(error.value)

"""Confidence bounds against their transcriptions, their coverage, and the refutation of norms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from safebo.bounds import AbbasiYadkori, MartingaleMixture, Paper, intersection, is_scaled, norm_lower_bound, residual_radius
from safebo.exceptions import InvalidValueError
from safebo.kernels import RBF, Matern
from safebo.posterior import Posterior, scaled_columns
from safebo.rkhs import random_function
from tests.references import bounds as reference
from tests.references.kernels import transcribed
from tests.strategies import kernels, seeds

NOISE, DELTA = 0.05, 0.01


def fitted(kernel, x, y, regulariser):
    return Posterior.empty(kernel, x.shape[1], regulariser).extend(x, y)


def interval(bound, posterior, points, norm, noise, delta):
    """Both ends at points (p, n)."""
    field = intersection(bound, posterior, scaled_columns(points.T, posterior.kernel), norm, noise, delta)
    return field.lower, field.upper


@st.composite
def problems(draw):
    """Kernel, samples, noise, norm and delta."""
    dim = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(seeds))
    t = draw(st.integers(1, 10))
    kernel = draw(kernels(dim))
    x, y = rng.random((t, dim)), draw(st.floats(0.1, 3.0)) * rng.normal(size=t)
    return kernel, x, y, draw(st.floats(0.01, 1.0)), draw(st.floats(0.1, 50.0)), draw(st.floats(1e-4, 0.5))


# -- scaled bounds ------------------------------------------------------------------------------------------------------


@given(problems())
def test_paper_is_the_printed_equation(problem):
    kernel, x, y, noise, norm, delta = problem
    bound = Paper()
    assert bound.regulariser(noise) == noise**2
    beta = bound.beta(fitted(kernel, x, y, noise**2), norm, noise, delta)
    assert beta == pytest.approx(reference.paper_beta(transcribed(kernel, x.shape[1])(x, x), norm, noise, delta), rel=1e-9)


@given(problems(), st.one_of(st.floats(0.01, 10.0), st.sampled_from(["noise", "noise_variance"])))
def test_abbasi_yadkori_is_the_theorem(problem, lam):
    kernel, x, y, noise, norm, delta = problem
    bound = AbbasiYadkori(lam)
    regulariser = {"noise": noise, "noise_variance": noise**2}.get(lam, lam)
    assert bound.regulariser(noise) == regulariser
    beta = bound.beta(fitted(kernel, x, y, regulariser), norm, noise, delta)
    gram = transcribed(kernel, x.shape[1])(x, x)
    assert beta == pytest.approx(reference.abbasi_yadkori_beta(regulariser)(gram, norm, noise, delta), rel=1e-9)


@given(problems())
def test_the_printed_beta_belongs_to_regulariser_sigma(problem):
    kernel, x, y, noise, norm, delta = problem
    printed = Paper().beta(fitted(kernel, x, y, noise**2), norm, noise, delta)
    derived = AbbasiYadkori("noise").beta(fitted(kernel, x, y, noise), norm, noise, delta)
    assert printed == pytest.approx(derived, rel=1e-9)


def test_default_regulariser_is_the_noise_variance():
    assert AbbasiYadkori() == AbbasiYadkori("noise_variance")
    assert AbbasiYadkori().regulariser(0.3) == 0.3**2


@pytest.mark.parametrize("bound", [Paper(), AbbasiYadkori(), AbbasiYadkori("noise"), AbbasiYadkori(0.5)], ids=repr)
def test_beta_grows_with_norm_and_confidence(bound):
    x, y = np.random.default_rng(0).random((5, 1)), np.ones(5)
    posterior = fitted(Matern(1.5), x, y, bound.regulariser(NOISE))
    assert is_scaled(bound)
    beta = bound.beta(posterior, 3.0, NOISE, DELTA)
    assert beta > 3.0
    assert bound.beta(posterior, 4.0, NOISE, DELTA) == pytest.approx(beta + 1.0)
    assert bound.beta(posterior, 3.0, NOISE, DELTA / 10) > beta
    more = fitted(Matern(1.5), np.concatenate([x, [[0.5]]]), np.ones(6), bound.regulariser(NOISE))
    assert bound.beta(more, 3.0, NOISE, DELTA) > beta


# -- mixture ------------------------------------------------------------------------------------------------------------


def mixture_problem(kernel, norm, seed, dim=1, t=12, noise=NOISE):
    f = random_function(kernel, dim, norm, seed, 150)
    rng = np.random.default_rng(10_000 + seed)
    x = rng.random((t, dim))
    return f, x, f(x) + noise * rng.normal(size=t), rng.random((60, dim))


@pytest.mark.parametrize("kernel", [Matern(0.5, 0.2), Matern(1.5, 0.1, 2.0), Matern(2.5, (0.3, 0.1)), RBF(0.2)], ids=repr)
@pytest.mark.parametrize("norm", [2.0, 10.0])
def test_mixture_equals_the_transcription(kernel, norm):
    dim = 2
    _, x, y, points = mixture_problem(kernel, norm, 1, dim)
    naive, bound = transcribed(kernel, dim), MartingaleMixture()
    posterior = fitted(kernel, x, y, bound.regulariser(NOISE))
    np.testing.assert_allclose(bound.alphas(NOISE), reference.alpha_grid(NOISE), rtol=1e-12)
    radius = reference.mixture_radius_squared(naive(x, x), y, NOISE, DELTA)
    assert residual_radius(posterior, NOISE, DELTA) == pytest.approx(radius, rel=1e-9)
    lower, upper = interval(bound, posterior, points, norm, NOISE, DELTA)
    low, high = reference.mixture_interval(naive, x, y, points, sigma=NOISE, delta=DELTA, B=norm)
    np.testing.assert_allclose(lower, low, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(upper, high, rtol=1e-7, atol=1e-7)
    assert not is_scaled(bound)


def test_mixture_with_one_alpha_is_a_scaled_interval():
    kernel = Matern(1.5, 0.2)
    _, x, y, points = mixture_problem(kernel, 3.0, 2)
    posterior = fitted(kernel, x, y, NOISE**2)
    lower, upper = interval(MartingaleMixture(1.0, 1.0, 1), posterior, points, 3.0, NOISE, DELTA)
    mean, sd = posterior.at(points)
    beta = math.sqrt(9.0 + posterior.log_det - 2.0 * math.log(DELTA))  # R^2 / sigma^2 + B^2 - y'(K + sigma^2 I)^-1 y
    np.testing.assert_allclose(lower, mean - beta * sd, rtol=1e-8)
    np.testing.assert_allclose(upper, mean + beta * sd, rtol=1e-8)


def test_more_alphas_only_narrow_the_interval():
    kernel = Matern(2.5, 0.2)
    _, x, y, points = mixture_problem(kernel, 3.0, 3)
    posterior = fitted(kernel, x, y, NOISE**2)
    few_low, few_high = interval(MartingaleMixture(points=3), posterior, points, 3.0, NOISE, DELTA)
    low, high = interval(MartingaleMixture(points=25), posterior, points, 3.0, NOISE, DELTA)  # 24 is a multiple of 2
    assert (low >= few_low - 1e-9).all() and (high <= few_high + 1e-9).all()


def test_mixture_at_a_measured_point_with_many_repetitions_keeps_its_width():
    kernel = RBF(0.3)
    x, y = np.full((300, 1), 0.4), np.full(300, 1.0)
    posterior = fitted(kernel, x, y, 1e-4)
    lower, upper = interval(MartingaleMixture(), posterior, x[:1], 2.0, 0.01, DELTA)
    assert lower[0] < upper[0]


# -- refutation ---------------------------------------------------------------------------------------------------------


@given(problems())
def test_norm_lower_bound_is_the_largest_refutation(problem):
    kernel, x, y, noise, _, delta = problem
    gram = transcribed(kernel, x.shape[1])(x, x)
    found = norm_lower_bound(fitted(kernel, x, y, noise**2), noise, delta)
    alphas = noise**2 * np.logspace(-2, 6, 65)
    expected = reference.falsification_bound(gram, y, noise, delta, alphas)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert found >= reference.falsification_bound(gram, y, noise, delta) - 1e-6


def rough_data():
    """Ten samples of a wave that needs a large norm in this space."""
    x = np.linspace(0.0, 1.0, 10)[:, None]
    return Matern(1.5, 0.3), x, 5.0 * np.sin(20.0 * x[:, 0])


def test_a_refuted_norm_gives_crossing_ends_and_never_a_point():
    kernel, x, y = rough_data()
    posterior, points = fitted(kernel, x, y, 1e-4), np.linspace(0.0, 1.0, 41)[:, None]
    least = reference.falsification_bound(kernel(x, x), y, 0.01, DELTA)
    assert least > 1.0
    for factor in (0.01, 0.5, 1.0 - 1e-9):
        lower, upper = interval(MartingaleMixture(), posterior, points, factor * least, 0.01, DELTA)
        assert (lower > upper).all()
    for factor in (1.0 + 1e-9, 1.2, 3.0):
        lower, upper = interval(MartingaleMixture(), posterior, points, factor * least, 0.01, DELTA)
        assert (lower != upper).all()  # crossing ends are a refutation by the interval itself
    lower, upper = interval(MartingaleMixture(), posterior, points, 1.2 * least, 0.01, DELTA)
    assert (lower < upper).all()


def test_a_norm_above_the_lower_bound_is_not_refuted():
    kernel, x, y = rough_data()
    posterior = fitted(kernel, x, y, 1e-4)
    least = norm_lower_bound(posterior, 0.01, DELTA)
    lower, upper = interval(MartingaleMixture(), posterior, x, least * (1.0 + 1e-9), 0.01, DELTA)
    assert np.isfinite(lower).all() and np.isfinite(upper).all()


def test_zero_data_refute_nothing():
    x = np.random.default_rng(5).random((6, 2))
    assert norm_lower_bound(fitted(RBF(0.2), x, np.zeros(6), 0.01), 0.1, DELTA) == 0.0


# -- coverage -----------------------------------------------------------------------------------------------------------

FUNCTIONS, RATE = 80, 0.1
ALLOWED = int(binom.ppf(0.999, FUNCTIONS, RATE))  # a bound that fails with probability 0.1 misses more once in a thousand studies


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", [Matern(0.5, 0.15), Matern(1.5, 0.15), RBF(0.15, 2.0)], ids=repr)
@pytest.mark.parametrize("bound", [AbbasiYadkori(), AbbasiYadkori("noise"), AbbasiYadkori(1.0), MartingaleMixture()], ids=repr)
def test_valid_bounds_cover_functions_of_the_told_norm(kernel, bound):
    """The whole function, at every step up to t = 12, with delta = 0.1."""
    missed = 0
    grid = np.linspace(0.0, 1.0, 80)[:, None]
    for seed in range(FUNCTIONS):
        f, x, y, _ = mixture_problem(kernel, 3.0, seed)
        truth, posterior, covered = f(grid), Posterior.empty(kernel, 1, bound.regulariser(NOISE)), True
        for t in range(len(y)):
            posterior = posterior.extend(x[t], y[t])
            if is_scaled(bound):
                mean, sd = posterior.at(grid)
                half = bound.beta(posterior, 3.0, NOISE, RATE) * sd
                lower, upper = mean - half, mean + half
            else:
                lower, upper = interval(bound, posterior, grid, 3.0, NOISE, RATE)
            covered &= bool(((lower <= truth) & (truth <= upper)).all())
        missed += not covered
    assert missed <= ALLOWED


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", [Matern(0.5, 0.1), Matern(1.5, 0.1, 0.5), RBF(0.1)], ids=repr)
@pytest.mark.parametrize("noise", [0.001, 0.1])
def test_the_true_norm_is_rarely_refuted(kernel, noise):
    """At any of the steps up to t = 12, with delta = 0.1."""
    refuted, informative = 0, 0
    for seed in range(FUNCTIONS):
        _, x, y, _ = mixture_problem(kernel, 3.0, seed, noise=noise)
        posterior, largest = Posterior.empty(kernel, 1, noise**2), 0.0
        for t in range(len(y)):
            posterior = posterior.extend(x[t], y[t])
            largest = max(largest, norm_lower_bound(posterior, noise, RATE))
        refuted += largest > 3.0
        informative += largest > 0.3
    assert refuted <= ALLOWED
    assert informative > FUNCTIONS // 2  # it is not zero either


# -- validation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True, None, "sigma", [1.0]])
def test_bad_regularisers_are_named(bad):
    with pytest.raises(InvalidValueError, match="lam") as error:
        AbbasiYadkori(bad)
    assert repr(bad) in str(error.value)


@pytest.mark.parametrize(
    "bad", [{"low": 0.0}, {"low": -1.0}, {"low": 2.0, "high": 1.0}, {"high": math.inf}, {"low": math.nan}, {"points": 0}]
)
def test_bad_mixtures_are_named(bad):
    with pytest.raises(InvalidValueError) as error:
        MartingaleMixture(**bad)
    assert all(f"{name}={value!r}" in str(error.value) for name, value in bad.items())

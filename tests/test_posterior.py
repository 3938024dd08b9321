"""Posterior: extension, refit and direct inverse are one; numerical rescues are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import safebo.posterior
from safebo.exceptions import InvalidValueError, JitterWarning, NotPositiveDefiniteError
from safebo.kernels import RBF, Matern
from safebo.posterior import PointField, Posterior, scaled_columns
from tests.references import posterior as reference
from tests.references.kernels import transcribed
from tests.strategies import kernels, seeds

FAMILIES = [Matern(0.5, 0.2), Matern(1.5, 0.2), Matern(2.5, 0.2, 3.0), RBF(0.2, 0.3)]
IDS = [k.family for k in FAMILIES]


def samples(seed, count, dim):
    rng = np.random.default_rng(seed)
    return rng.random((count, dim)), rng.normal(size=count)


def fitted(kernel, x, y, regulariser):
    return Posterior.empty(kernel, x.shape[1], regulariser).extend(x, y)


def one_by_one(kernel, x, y, regulariser):
    posterior = Posterior.empty(kernel, x.shape[1], regulariser)
    for point, value in zip(x, y, strict=True):
        posterior = posterior.extend(point, value)
    return posterior


@st.composite
def problems(draw, max_size=12):
    """A kernel, samples, a regulariser, and points to predict at."""
    dim = draw(st.integers(1, 3))
    x, y = samples(draw(seeds), draw(st.integers(1, max_size)), dim)
    kernel = draw(kernels(dim))
    return kernel, x, y, draw(st.floats(1e-2, 2.0)) ** 2, samples(draw(seeds), 20, dim)[0]


# -- values -------------------------------------------------------------------------------------------------------------


@given(problems())
def test_extension_refit_and_direct_inverse_agree(problem):
    kernel, x, y, regulariser, points = problem
    refit, extended = fitted(kernel, x, y, regulariser), one_by_one(kernel, x, y, regulariser)
    np.testing.assert_array_equal(extended.chol, refit.chol)
    np.testing.assert_array_equal(extended.white, refit.white)
    mean, sd = refit.at(points)
    naive_mean, naive_sd = reference.posterior(transcribed(kernel, x.shape[1]), x, y, regulariser, points)
    scale = math.sqrt(kernel.outputscale)
    np.testing.assert_allclose(mean, naive_mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(sd**2, naive_sd**2, rtol=1e-8, atol=1e-8 * scale**2)
    for ours, again in zip(extended.at(points), (mean, sd), strict=True):
        np.testing.assert_array_equal(ours, again)


@given(problems())
def test_log_det_norm_weights_and_solves(problem):
    kernel, x, y, regulariser, _ = problem
    posterior, naive = fitted(kernel, x, y, regulariser), transcribed(kernel, x.shape[1])
    gram = naive(x, x)
    inverse = np.linalg.inv(gram + regulariser * np.eye(len(y)))
    assert posterior.log_det == pytest.approx(reference.log_det(gram, regulariser), rel=1e-8, abs=1e-10)
    np.testing.assert_allclose(posterior.weights, inverse @ y, rtol=1e-8, atol=1e-7)
    np.testing.assert_allclose(posterior.solve(gram), inverse @ gram, rtol=1e-8, atol=1e-7)
    assert posterior.mean_norm == pytest.approx(reference.mean_norm(naive, x, y, regulariser), rel=1e-8, abs=1e-8)
    assert posterior.white @ posterior.white == pytest.approx(y @ inverse @ y, rel=1e-8)


@given(problems(), st.data())
def test_prefix_is_the_posterior_of_the_first_samples(problem, data):
    kernel, x, y, regulariser, points = problem
    size = data.draw(st.integers(0, len(y)))
    prefix, early = fitted(kernel, x, y, regulariser).prefix(size), Posterior.empty(kernel, x.shape[1], regulariser)
    early = early.extend(x[:size], y[:size]) if size else early
    np.testing.assert_array_equal(prefix.chol, early.chol)
    np.testing.assert_array_equal(prefix.white, early.white)
    assert prefix.log_det == pytest.approx(early.log_det, rel=1e-12, abs=1e-14)
    for ours, theirs in zip(prefix.at(points), early.at(points), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_without_samples_it_is_the_prior():
    prior = Posterior.empty(Matern(1.5, 0.1, 4.0), 2, 0.01)
    mean, sd = prior.at(np.array([[0.1, 0.2], [0.3, 0.4]]))
    assert mean.tolist() == [0.0, 0.0] and sd.tolist() == [2.0, 2.0]
    assert (prior.size, prior.log_det, prior.mean_norm, prior.jitter) == (0, 0.0, 0.0, 0.0)


@given(problems(), seeds)
def test_data_never_raise_the_variance(problem, seed):
    kernel, x, y, regulariser, points = problem
    further, values = samples(seed, 4, x.shape[1])
    posterior = fitted(kernel, x, y, regulariser)
    _, before = posterior.at(points)
    for point, value in zip(further, values, strict=True):
        posterior = posterior.extend(point, value)
        _, after = posterior.at(points)
        assert (after <= before).all()
        before = after
    assert (before <= math.sqrt(kernel.outputscale)).all()


def test_extending_leaves_the_old_posterior_as_it_was():
    x, y = samples(0, 6, 2)
    old = fitted(FAMILIES[1], x[:4], y[:4], 1e-2)
    chol, white = old.chol.copy(), old.white.copy()
    old.extend(x[4:], y[4:])
    assert old.size == 4
    np.testing.assert_array_equal(old.chol, chol)
    np.testing.assert_array_equal(old.white, white)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_regulariser_is_named(bad):
    with pytest.raises(InvalidValueError, match=str(bad)):
        Posterior.empty(RBF(), 1, bad)


def test_wrong_number_of_lengthscales_is_named():
    with pytest.raises(InvalidValueError, match="2 lengthscales"):
        Posterior.empty(RBF((0.1, 0.2)), 3, 0.01)


# -- repetitions and jitter ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", FAMILIES, ids=IDS)
def test_a_repeated_sample_is_one_sample_with_less_noise(kernel):
    x, points = np.array([[0.4, 0.6]]), samples(1, 30, 2)[0]
    twice = fitted(kernel, np.repeat(x, 2, axis=0), np.array([1.0, 2.0]), 0.02)
    once = fitted(kernel, x, np.array([1.5]), 0.01)
    for ours, theirs in zip(twice.at(points), once.at(points), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_thousand_samples_at_one_place():
    kernel, noise = Matern(1.5, 0.1), 0.01
    x, y = np.full((1000, 1), 0.3), 2.0 + noise * np.random.default_rng(2).normal(size=1000)
    posterior = fitted(kernel, x, y, noise**2)
    mean, sd = posterior.at(np.array([[0.3], [0.9]]))
    assert posterior.jitter == 0.0
    assert sd[0] ** 2 == pytest.approx(noise**2 / (1000 + noise**2), rel=1e-6)
    assert mean[0] == pytest.approx(y.mean() * 1000 / (1000 + noise**2), rel=1e-9)
    assert posterior.log_det == pytest.approx(math.log1p(1000 / noise**2), rel=1e-9)


def test_jitter_is_named_recorded_and_kept():
    kernel = RBF(0.5, 4.0)
    posterior = fitted(kernel, np.array([[0.2], [0.6]]), np.array([1.0, -1.0]), 1e-20)
    assert posterior.jitter == 0.0
    with pytest.warns(JitterWarning, match=r"3 samples.*1e-10 x outputscale.*1e-20.*larger noise"):
        repeated = posterior.extend(np.array([[0.2]]), np.array([1.0]))
    assert repeated.jitter == 1e-10
    further = repeated.extend(np.array([[0.9]]), np.array([0.5]))  # no second warning
    assert further.jitter == 1e-10
    mean, sd = further.at(further.x)
    np.testing.assert_allclose(mean, further.y, atol=1e-6)
    assert (sd < 1e-4).all()
    naive = transcribed(kernel, 1)
    effective = 1e-20 + 1e-10 * 4.0
    points = np.linspace(0.0, 1.0, 11)[:, None]
    for ours, theirs in zip(further.at(points), reference.posterior(naive, further.x, further.y, effective, points), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert further.mean_norm == pytest.approx(reference.mean_norm(naive, further.x, further.y, effective), rel=1e-5)


def test_a_larger_jitter_where_the_smaller_one_fails():
    """Thirty samples of a very smooth function: 1e-10 and more are tried in turn."""
    x = np.linspace(0.4, 0.6, 30)[:, None]
    with pytest.warns(JitterWarning):
        posterior = fitted(RBF(1.0), x, np.sin(x[:, 0]), 1e-30)
    assert posterior.jitter in safebo.posterior.JITTERS[1:]
    mean, _ = posterior.at(x)
    np.testing.assert_allclose(mean, np.sin(x[:, 0]), atol=1e-3)


def test_a_matrix_that_no_jitter_repairs(monkeypatch):
    monkeypatch.setattr(safebo.posterior, "JITTERS", (0.0, 1e-18))
    with pytest.raises(NotPositiveDefiniteError, match=r"2 samples.*1e-18.*larger noise"):
        fitted(RBF(0.1), np.full((2, 1), 0.5), np.ones(2), 1e-30)


# -- fields -------------------------------------------------------------------------------------------------------------


def extended_field(kernel, x, y, regulariser, columns, betas, *, keep_basis):
    """The field after one sample at a time, with the posterior it belongs to."""
    posterior, field = Posterior.empty(kernel, x.shape[1], regulariser), PointField.prior(columns.shape[1], kernel)
    for t in range(len(y)):
        posterior = posterior.extend(x[t], y[t])
        field = field.advanced(columns, posterior, betas[: t + 1], keep_basis=keep_basis)
    return field, posterior


def assert_same_field(first, second):
    for name in ("mean", "variance", "lower", "upper"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


@pytest.mark.parametrize("kernel", FAMILIES, ids=IDS)
def test_fields_have_the_same_bits_with_and_without_a_basis(kernel):
    x, y = samples(3, 12, 2)
    columns, betas = scaled_columns(samples(4, 600, 2)[0].T, kernel), np.linspace(1.0, 3.0, 12)
    betas[[2, 5]] = -1.0
    kept, posterior = extended_field(kernel, x, y, 1e-4, columns, betas, keep_basis=True)
    rebuilt, _ = extended_field(kernel, x, y, 1e-4, columns, betas, keep_basis=False)
    refit = PointField.prior(600, kernel).advanced(columns, posterior, betas, keep_basis=False)
    assert_same_field(kept, rebuilt)
    assert_same_field(kept, refit)
    assert kept.basis is not None and rebuilt.basis is None and kept.nbytes > rebuilt.nbytes


def test_fields_drop_and_regain_their_basis():
    kernel = FAMILIES[1]
    x, y = samples(5, 8, 1)
    columns, betas = scaled_columns(samples(6, 40, 1)[0].T, kernel), np.full(8, 2.0)
    field, posterior = PointField.prior(40, kernel), Posterior.empty(kernel, 1, 1e-2)
    for t, keep in enumerate([True, True, False, False, True, True, False, True]):
        posterior = posterior.extend(x[t], y[t])
        field = field.advanced(columns, posterior, betas[: t + 1], keep_basis=keep)
    assert_same_field(field, PointField.prior(40, kernel).advanced(columns, posterior, betas, keep_basis=False))


def test_fields_have_the_same_bits_where_the_variance_vanishes():
    """At samples measured almost without noise the variance is below what rounding can tell from zero."""
    kernel = FAMILIES[1]
    x, y = samples(7, 6, 1)
    columns, betas = scaled_columns(x.T, kernel), np.full(6, 2.0)
    kept, posterior = extended_field(kernel, x, y, 1e-17, columns, betas, keep_basis=True)
    assert_same_field(kept, PointField.prior(6, kernel).advanced(columns, posterior, betas, keep_basis=False))
    last = PointField.prior(6, kernel).advanced(columns, posterior, np.array([-1.0] * 5 + [2.0]), keep_basis=False)
    assert (last.lower < last.upper).all()  # Q of one step is never empty, however small the variance


def test_fields_have_the_same_bits_after_a_jitter():
    """A jitter changes every row of the factor, so a stored basis must not be extended."""
    kernel = RBF(0.3)
    x, y = np.array([[0.2], [0.5], [0.5], [0.8]]), np.array([1.0, 0.4, 0.4, -1.0])
    columns, betas = scaled_columns(samples(8, 50, 1)[0].T, kernel), np.full(4, 2.0)
    with pytest.warns(JitterWarning):
        kept, posterior = extended_field(kernel, x, y, 1e-20, columns, betas, keep_basis=True)
    assert_same_field(kept, PointField.prior(50, kernel).advanced(columns, posterior, betas, keep_basis=False))


def test_two_continuations_of_a_field_do_not_touch_each_other():
    kernel = FAMILIES[1]
    x, y = samples(9, 4, 1)
    columns = scaled_columns(samples(10, 30, 1)[0].T, kernel)
    trunk, base = extended_field(kernel, x[:1], y[:1], 1e-2, columns, np.ones(1), keep_basis=True)
    first = base.extend(x[1], y[1])
    left = trunk.advanced(columns, first, np.ones(2), keep_basis=True)
    trunk.advanced(columns, base.extend(x[2], y[2]), np.ones(2), keep_basis=True)
    last = first.extend(x[3], y[3])
    left = left.advanced(columns, last, np.ones(3), keep_basis=True)
    assert_same_field(left, PointField.prior(30, kernel).advanced(columns, last, np.ones(3), keep_basis=False))

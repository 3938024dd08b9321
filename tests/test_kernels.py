"""Kernels against GPyTorch, and the metric against its inverse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safebo.exceptions import InvalidValueError
from safebo.kernels import RBF, Matern, StationaryKernel
from tests.strategies import kernels, points

FAMILIES = [Matern(0.5), Matern(1.5), Matern(2.5), RBF()]
IDS = [k.family for k in FAMILIES]


def with_scales(kernel, lengthscale, outputscale):
    if isinstance(kernel, Matern):
        return Matern(kernel.nu, lengthscale, outputscale)
    return RBF(lengthscale, outputscale)


# -- values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
@pytest.mark.parametrize("lengthscale", [0.07, (0.3, 0.05, 1.7)], ids=["isotropic", "ard"])
def test_values_equal_gpytorch(family, lengthscale):
    torch = pytest.importorskip("torch")
    pytest.importorskip("gpytorch")
    kernel = with_scales(family, lengthscale, 2.3)
    rng = np.random.default_rng(0)
    a, b = rng.random((20, 3)), rng.random((7, 3))
    expected = kernel.to_gpytorch()(torch.as_tensor(a), torch.as_tensor(b)).to_dense().numpy()
    np.testing.assert_allclose(kernel(a, b), expected, rtol=1e-9, atol=1e-12)


@given(kernels(dim=3))
def test_gpytorch_round_trip(kernel):
    pytest.importorskip("gpytorch")
    back = StationaryKernel.from_gpytorch(kernel.to_gpytorch())
    assert back.family == kernel.family
    assert isinstance(back.lengthscale, tuple) == isinstance(kernel.lengthscale, tuple)
    np.testing.assert_allclose(back.lengthscale, kernel.lengthscale, rtol=1e-12)
    assert back.outputscale == pytest.approx(kernel.outputscale, rel=1e-12)


def test_gpytorch_without_scale_kernel_has_outputscale_one():
    gpytorch = pytest.importorskip("gpytorch")
    module = gpytorch.kernels.MaternKernel(nu=2.5).double()
    module.lengthscale = 0.25
    back = StationaryKernel.from_gpytorch(module)
    assert (back.family, back.outputscale) == ("matern52", 1.0)
    assert back.lengthscale == pytest.approx(0.25)


def test_gpytorch_kernels_that_mean_something_else_are_refused():
    gpytorch = pytest.importorskip("gpytorch")
    torch = pytest.importorskip("torch")
    known = gpytorch.kernels
    with pytest.raises(InvalidValueError, match="PeriodicKernel"):
        StationaryKernel.from_gpytorch(known.ScaleKernel(known.PeriodicKernel()))
    with pytest.raises(InvalidValueError, match="RBFKernelGrad"):
        StationaryKernel.from_gpytorch(known.RBFKernelGrad())
    with pytest.raises(InvalidValueError, match="subset"):
        StationaryKernel.from_gpytorch(known.RBFKernel(active_dims=[0]))
    with pytest.raises(InvalidValueError, match="batch"):
        StationaryKernel.from_gpytorch(known.RBFKernel(batch_shape=torch.Size([2])))
    with pytest.raises(InvalidValueError, match="str"):
        StationaryKernel.from_gpytorch("rbf")


@given(kernels(dim=2), points(2), points(2))
def test_kernel_depends_on_scaled_distance_only(kernel, a, b):
    r = np.linalg.norm((a[:, None, :] - b[None, :, :]) / kernel.lengthscales(2), axis=2)
    np.testing.assert_allclose(kernel.scaled_distance(a, b), r, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(kernel(a, b), kernel.outputscale * kernel.correlation(r), rtol=1e-9, atol=1e-12)


@given(kernels(), st.floats(0.0, 1e6))
def test_correlation_and_decay_sum_to_one(kernel, r):
    assert kernel.correlation(r) + kernel.decay(r) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("kernel", FAMILIES, ids=IDS)
def test_infinite_distance_means_no_correlation(kernel):
    assert kernel.correlation(np.inf) == 0.0
    assert kernel.metric_of_distance(np.inf) == pytest.approx(math.sqrt(2.0))


# -- metric and radius --------------------------------------------------------------------------------------------------


@given(kernels(dim=2), points(2), points(2))
def test_metric_is_that_of_the_kernel(kernel, a, b):
    direct = np.sqrt(2.0 * kernel.outputscale * (1.0 - kernel(a, b) / kernel.outputscale))
    np.testing.assert_allclose(kernel.metric(a, b), direct, rtol=1e-6, atol=1e-7 * math.sqrt(kernel.outputscale))


@pytest.mark.parametrize("kernel", FAMILIES, ids=IDS)
def test_decay_near_zero_keeps_its_digits(kernel):
    """Against the leading term of the series, where 1 - kappa(r) has lost all digits."""
    r = np.array([1e-9, 1e-12, 1e-15])
    leading = {"matern12": r, "matern32": 1.5 * r**2, "matern52": 5.0 / 6.0 * r**2, "rbf": 0.5 * r**2}[kernel.family]
    np.testing.assert_allclose(kernel.decay(r), leading, rtol=1e-8)


@pytest.mark.parametrize("kernel", [Matern(1.5), Matern(2.5)], ids=["matern32", "matern52"])
def test_decay_is_continuous_where_the_series_ends(kernel):
    c = np.array([1e-2 * (1.0 - 1e-13), 1e-2])
    below, above = kernel.decay(c / math.sqrt(2.0 * kernel.nu))
    assert below == pytest.approx(above, rel=1e-11)


@given(kernels(), st.floats(1e-7, 12.0))
def test_radius_inverts_the_metric(kernel, r):
    """What the metric itself resolves: near its plateau many r share one value, so compare in metric, not in r."""
    d = kernel.metric_of_distance(r)
    radius = kernel.radius(d)
    assert kernel.metric_of_distance(radius) == pytest.approx(float(d), rel=1e-12)
    if kernel.correlation(r) > 1e-4:
        assert radius == pytest.approx(r, rel=1e-9)


@given(kernels(), st.floats(1e-60, 1e-9))
def test_radius_of_tiny_distances(kernel, share):
    d = share * math.sqrt(2.0 * kernel.outputscale)
    assert kernel.metric_of_distance(kernel.radius(d)) == pytest.approx(d, rel=1e-9)


@given(kernels(), st.floats(1.0, 1e300))
def test_radius_beyond_the_largest_metric_is_infinite(kernel, factor):
    assert kernel.radius(factor * math.sqrt(2.0 * kernel.outputscale) * (1.0 + 1e-12)) == np.inf


@given(kernels())
def test_radius_of_zero_and_negative_values(kernel):
    assert kernel.radius(0.0) == 0.0
    np.testing.assert_array_equal(kernel.radius([-1e-300, -1.0, -np.inf, np.inf]), [-np.inf, -np.inf, -np.inf, np.inf])


@given(kernels(), st.lists(st.floats(0.0, 2.0), min_size=2, max_size=40))
def test_radius_and_metric_are_monotone(kernel, shares):
    d = np.sort(shares) * math.sqrt(kernel.outputscale)
    radius = kernel.radius(d)
    with np.errstate(invalid="ignore"):  # inf - inf
        steps = np.diff(radius)
    assert (steps[np.isfinite(radius[:-1])] >= -1e-9).all()
    assert (np.diff(kernel.metric_of_distance(np.sort(shares))) >= 0.0).all()


# -- construction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "0.1", None, True, (0.1, -2.0), (0.1, "x")])
def test_bad_lengthscale_is_named(bad):
    offender = next((v for v in bad if v != 0.1), None) if isinstance(bad, tuple) else bad
    for build in (lambda: RBF(bad), lambda: Matern(1.5, bad)):
        with pytest.raises(InvalidValueError, match="lengthscale") as error:
            build()
        assert str(offender) in str(error.value)


def test_empty_lengthscale_is_refused():
    with pytest.raises(InvalidValueError, match="empty"):
        RBF(())


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, False])
def test_bad_outputscale_is_named(bad):
    with pytest.raises(InvalidValueError, match="outputscale") as error:
        Matern(outputscale=bad)
    assert str(bad) in str(error.value)


@pytest.mark.parametrize("nu", [1.0, 3.5, "1.5", None, math.nan, np.array([0.5, 1.5])])
def test_unknown_nu_is_refused(nu):
    with pytest.raises(InvalidValueError, match=r"nu 0\.5, 1\.5 and 2\.5"):
        Matern(nu)


def test_kernels_are_values():
    assert Matern(1.5, [0.1, 0.2]) == Matern(1.5, (0.1, 0.2))
    assert hash(Matern(1.5, 0.1)) == hash(Matern(nu=1.5, lengthscale=0.1))
    assert len({Matern(0.5), Matern(1.5), RBF(), RBF(0.2)}) == 4
    with pytest.raises(AttributeError):
        RBF().lengthscale = 1.0


def test_wrong_number_of_axes_is_named():
    with pytest.raises(InvalidValueError, match="2 lengthscales"):
        RBF((0.1, 0.2))(np.zeros((1, 3)), np.zeros((1, 3)))
    with pytest.raises(InvalidValueError, match=r"\(4, 2\) and \(5, 3\)"):
        RBF(0.1)(np.zeros((4, 2)), np.zeros((5, 3)))

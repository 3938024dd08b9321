"""One conformance suite for every compute backend: against dense numpy, brute force, and each other."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safebo.compute import backend, fused_cpu, variance_floor
from safebo.exceptions import InvalidValueError
from tests.references.kernels import PROFILES, make_kernel
from tests.references.posterior import posterior
from tests.strategies import seeds

BACKENDS = ["numba", "torch"]
FAMILIES = sorted(PROFILES)
EXACT, SINGLE = 1e-10, 5e-6  # double precision throughout; pairs in single precision, row sums in double


@pytest.fixture(params=BACKENDS)
def name(request):
    if request.param == "torch":
        pytest.importorskip("torch")
    return request.param


@pytest.fixture
def compute(name):
    return backend(name)


# -- scenario sums ------------------------------------------------------------------------------------------------------


def functions(n, *, m=5, size=150, samples=6, spread=10.0, is_sorted=False, seed=0):
    """Samples x (t, n), centres z (m, n, T) and coefficients a (m, T) in a box of `spread` lengthscales."""
    rng = np.random.default_rng(seed)
    z = (spread * rng.random((m, n, size))).astype(np.float32)
    if is_sorted:
        z = np.sort(z, axis=2)
    return spread * rng.random((samples, n)), z, rng.uniform(-2.0, 2.0, (m, size)).astype(np.float32)


def dense_parts(x, z, a, family):
    """Quadratic forms and sums from whole kernel matrices, and the same with absolute values: the scale of rounding."""
    quad, sums, quad_scale, sums_scale = [], [], [], []
    kernel = make_kernel(family, np.ones(z.shape[1]))
    for centres, weights in zip(z.astype(np.float64), a.astype(np.float64), strict=True):
        gram, cross = kernel(centres.T, centres.T), kernel(x, centres.T)
        quad.append(weights @ gram @ weights)
        sums.append(cross @ weights)
        quad_scale.append(abs(weights) @ gram @ abs(weights))
        sums_scale.append(cross @ abs(weights))
    return np.array(quad), np.array(sums).T, np.array(quad_scale), np.array(sums_scale).T


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("n", "is_sorted"), [(1, True), (1, False), (2, False), (3, False), (8, False)])
def test_scenario_parts_equal_dense_algebra(name, compute, family, n, is_sorted):
    x, z, a = functions(n, is_sorted=is_sorted, seed=n)
    quad, sums = compute.scenario_parts(x, z, a, family, is_sorted=is_sorted)
    expected_quad, expected_sums, _, scale = dense_parts(x, z, a, family)
    exact = name == "torch" or (is_sorted and family != "rbf")
    tolerance = EXACT if exact else SINGLE
    assert quad.shape == (5,) and sums.shape == (6, 5)
    np.testing.assert_allclose(quad, expected_quad, rtol=tolerance)
    assert (abs(sums - expected_sums) <= tolerance * scale).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("n", "is_sorted"), [(1, True), (1, False), (2, False)])
@pytest.mark.parametrize("spread", [0.05, 300.0])
def test_scenario_parts_in_very_small_and_very_large_boxes(name, compute, family, n, is_sorted, spread):
    """All correlations near one (the sums cancel), or nearly all zero."""
    x, z, a = functions(n, is_sorted=is_sorted, spread=spread, seed=7)
    quad, sums = compute.scenario_parts(x, z, a, family, is_sorted=is_sorted)
    expected_quad, expected_sums, quad_scale, sums_scale = dense_parts(x, z, a, family)
    exact = name == "torch" or (is_sorted and family != "rbf")
    tolerance = EXACT if exact else SINGLE + 1e-6 * spread  # a coordinate of 300 lengthscales is rounded by 1e-5
    assert (abs(quad - expected_quad) <= tolerance * quad_scale).all()
    assert (abs(sums - expected_sums) <= tolerance * (sums_scale + 1e-30)).all()  # single precision ends at e^-80


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 63, 64, 65])
@pytest.mark.parametrize(("n", "is_sorted"), [(1, True), (2, False)])
def test_scenario_parts_of_every_number_of_centres(compute, family, size, n, is_sorted):
    x, z, a = functions(n, m=3, size=size, samples=2, is_sorted=is_sorted, seed=size)
    quad, sums = compute.scenario_parts(x, z, a, family, is_sorted=is_sorted)
    expected_quad, expected_sums, _, scale = dense_parts(x, z, a, family)
    np.testing.assert_allclose(quad, expected_quad, rtol=SINGLE)
    assert (abs(sums - expected_sums) <= SINGLE * scale).all()


@pytest.mark.parametrize(("n", "is_sorted"), [(1, True), (2, False)])
def test_scenario_parts_without_samples(compute, n, is_sorted):
    x, z, a = functions(n, samples=0, is_sorted=is_sorted)
    quad, sums = compute.scenario_parts(x, z, a, "matern32", is_sorted=is_sorted)
    np.testing.assert_allclose(quad, dense_parts(x, z, a, "matern32")[0], rtol=SINGLE)
    assert sums.shape == (0, 5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("n", "size"), [(1, 64), (2, 150), (3, 31), (2, 1)])
def test_pairs_without_an_inner_centre_do_not_count(name, compute, family, n, size):
    """The whole quadratic form less that of the other centres, for none, one, some and all of them; sums are not affected."""
    x, z, a = functions(n, m=6, size=size, seed=size)
    inner = np.minimum([0, 1, 32, 33, size // 2, size], size)
    quad, sums = compute.scenario_parts(x, z, a, family, is_sorted=False, inner=inner)
    others = np.where(np.arange(size) >= inner[:, None], a, np.float32(0.0))
    whole, expected_sums, quad_scale, scale = dense_parts(x, z, a, family)
    tolerance = EXACT if name == "torch" else SINGLE
    assert (abs(quad - (whole - dense_parts(x, z, others, family)[0])) <= tolerance * quad_scale).all()
    assert (abs(sums - expected_sums) <= tolerance * scale).all()
    assert quad[0] == 0.0
    every = compute.scenario_parts(x, z, a, family, is_sorted=False)[0]
    assert np.array_equal(every, compute.scenario_parts(x, z, a, family, is_sorted=False, inner=np.full(6, size))[0])


def test_samples_that_coincide_with_centres_and_each_other(compute):
    x, z, a = functions(1, is_sorted=True)
    x = np.concatenate([x, x, z[0, :, :3].T.astype(np.float64), z[0, :, -1:].T.astype(np.float64)])
    _, sums = compute.scenario_parts(x, z, a, "matern52", is_sorted=True)
    np.testing.assert_allclose(sums, dense_parts(x, z, a, "matern52")[1], rtol=EXACT, atol=EXACT)


# -- triangular solves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("columns", [1, 600])
def test_cholesky_solve(compute, size, columns):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(size, size))
    matrix, rhs = root @ root.T + np.eye(size), rng.normal(size=(size, columns))
    kept = rhs.copy()
    result = compute.cholesky_solve(np.linalg.cholesky(matrix), rhs)
    np.testing.assert_allclose(result, np.linalg.solve(matrix, rhs), rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(rhs, kept)


# -- posterior on many points -------------------------------------------------------------------------------------------

T, G, LAMBDA, SCALE = 9, 700, 1e-2, 2.5  # more points than one task takes


def advance_problem(n, family, seed=0):
    """Arguments of `advance` with scaled points, and the naive results after every sample."""
    rng = np.random.default_rng(seed)
    points, x, y = 6.0 * rng.random((G, n)), 6.0 * rng.random((T, n)), rng.normal(size=T)
    kernel = make_kernel(family, np.ones(n), SCALE)
    chol = np.linalg.cholesky(kernel(x, x) + LAMBDA * np.eye(T))
    betas = rng.uniform(0.5, 3.0, T)
    betas[[0, 3, 4]] = -1.0
    lower, upper = np.full(G, -np.inf), np.full(G, np.inf)
    for t in np.flatnonzero(betas >= 0.0):
        mean, sd = posterior(kernel, x[: t + 1], y[: t + 1], LAMBDA, points)
        lower, upper = np.maximum(lower, mean - betas[t] * sd), np.minimum(upper, mean + betas[t] * sd)
    mean, sd = posterior(kernel, x, y, LAMBDA, points)
    given_ = np.ascontiguousarray(points.T), x, chol, np.linalg.solve(chol, y), betas
    return given_, (mean, sd**2, lower, upper)


def advanced(compute, given_, family, stops, *, keep_basis=True):
    """mean, variance, lower and upper after `advance` in pieces that end at `stops`."""
    points, x, chol, white, betas = given_
    state = np.zeros(G), np.full(G, SCALE), np.full(G, -np.inf), np.full(G, np.inf)
    basis = np.full((T + 3, G), np.nan) if keep_basis else None
    start = 0
    for stop in stops:
        old = None if basis is None else basis[:start].copy()
        square = np.ascontiguousarray(chol[:stop, :stop])
        compute.advance(points, x[:stop], square, white[:stop], betas[:stop], start, family, SCALE, basis, *state)
        if basis is not None:
            np.testing.assert_array_equal(basis[:start], old)
            assert np.isfinite(basis[:stop]).all() and np.isnan(basis[stop:]).all()
        start = stop
    return state


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_advance_is_the_posterior_and_the_nested_interval(compute, family, n):
    given_, expected = advance_problem(n, family)
    for ours, naive in zip(advanced(compute, given_, family, [T], keep_basis=False), expected, strict=True):
        np.testing.assert_allclose(ours, naive, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_extension_equals_refit(name, compute, family):
    """To the same bits within the fused backend, whether the basis is kept or not."""
    given_, _ = advance_problem(2, family, seed=1)
    refit = advanced(compute, given_, family, [T], keep_basis=False)
    for stops in ([T], [4, T], range(1, T + 1)):
        for ours, once in zip(advanced(compute, given_, family, stops), refit, strict=True):
            if name == "numba":
                np.testing.assert_array_equal(ours, once)
            else:
                np.testing.assert_allclose(ours, once, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_backends_agree_on_the_posterior(family):
    pytest.importorskip("torch")
    given_, _ = advance_problem(3, family, seed=2)
    fused, reference = (advanced(backend(name), given_, family, [3, T]) for name in BACKENDS)
    for ours, theirs in zip(fused, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


def test_a_negative_beta_leaves_the_interval_alone(compute):
    given_, _ = advance_problem(1, "matern32")
    _, _, lower, upper = advanced(compute, (*given_[:4], np.full(T, -1.0)), "matern32", [T])
    assert (lower == -np.inf).all() and (upper == np.inf).all()
    only_third = np.full(T, -1.0)
    only_third[2] = 1.5
    mean, variance, lower, upper = advanced(compute, (*given_[:4], only_third), "matern32", [3])
    np.testing.assert_allclose(lower, mean - 1.5 * np.sqrt(variance), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(upper, mean + 1.5 * np.sqrt(variance), rtol=1e-10, atol=1e-12)


def test_beta_zero_gives_the_mean(compute):
    given_, _ = advance_problem(1, "rbf")
    betas = np.full(T, -1.0)
    betas[-1] = 0.0
    mean, _, lower, upper = advanced(compute, (*given_[:4], betas), "rbf", [T])
    np.testing.assert_array_equal(lower, mean)
    np.testing.assert_array_equal(upper, mean)


def test_no_interval_is_rounded_to_nothing(compute):
    """Measured almost without noise the variance at a sample cancels to about zero: the floor keeps the interval open."""
    x, chol = np.array([[1.0]]), np.array([[1.0]])
    state = np.zeros(1), np.ones(1), np.full(1, -np.inf), np.full(1, np.inf)
    compute.advance(x.T.copy(), x, chol, np.array([0.5]), np.array([2.0]), 0, "matern32", 1.0, None, *state)
    half = 2.0 * np.sqrt(variance_floor(1, 1.0))
    assert state[3][0] - state[2][0] == pytest.approx(2.0 * half, rel=1e-6)


# -- intersection over regularisers --------------------------------------------------------------------------------------


def intersect_problem(n, family, seed=0):
    """Arguments of `intersect` for three bands and the posterior at NOISE^2, and the posteriors of the transcription."""
    rng = np.random.default_rng(seed)
    points, x, y = 3.0 * rng.random((n, G)), 3.0 * rng.random((T, n)), rng.normal(size=T)
    kernel = make_kernel(family, np.ones(n), SCALE)
    values, vectors = np.linalg.eigh(kernel(x, x))
    alphas, factors = np.array([1e-3, 0.05, 2.0, LAMBDA]), np.array([2.0, 1.5, 0.7])
    weights = 1.0 / (values + alphas[:, None])
    given_ = points, x, vectors, weights, weights * (vectors.T @ y), factors
    return given_, [posterior(kernel, x, y, alpha, points.T) for alpha in alphas]


def intersected(compute, given_, family, lower=-np.inf, upper=np.inf):
    """lower, upper, mean and variance after `intersect`."""
    state = np.full(G, lower), np.full(G, upper), np.full(G, np.nan), np.full(G, np.nan)
    compute.intersect(*given_, family, SCALE, *state)
    return state


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_intersect_is_the_intersection_of_the_posteriors(compute, family, n):
    given_, naive = intersect_problem(n, family)
    halves = [factor * sd for factor, (_, sd) in zip(given_[-1], naive[:-1], strict=True)]
    expected_low = np.max([mean - half for (mean, _), half in zip(naive[:-1], halves, strict=True)], axis=0)
    expected_high = np.min([mean + half for (mean, _), half in zip(naive[:-1], halves, strict=True)], axis=0)
    lower, upper, mean, variance = intersected(compute, given_, family)
    np.testing.assert_allclose(lower, expected_low, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(upper, expected_high, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(mean, naive[-1][0], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(variance, naive[-1][1] ** 2, rtol=1e-8, atol=1e-8)
    narrow = intersected(compute, given_, family, lower=-0.1, upper=0.1)
    np.testing.assert_array_equal(narrow[0], np.maximum(lower, -0.1))
    np.testing.assert_array_equal(narrow[1], np.minimum(upper, 0.1))


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_intersect_of_few_samples_and_of_no_bands(compute, count):
    (points, x, *_), _ = intersect_problem(2, "matern32")
    kernel = make_kernel("matern32", np.ones(2), SCALE)
    values, vectors = np.linalg.eigh(kernel(x[:count], x[:count])) if count else (np.empty(0), np.empty((0, 0)))
    weights = 1.0 / (values + LAMBDA)[None, :]
    given_ = points, x[:count], vectors, weights, weights * (vectors.T @ np.ones(count)), np.empty(0)
    lower, upper, mean, variance = intersected(compute, given_, "matern32")
    assert (lower == -np.inf).all() and (upper == np.inf).all()
    naive_mean, naive_sd = posterior(kernel, x[:count], np.ones(count), LAMBDA, points.T)
    np.testing.assert_allclose(mean, naive_mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(variance, naive_sd**2, rtol=1e-8, atol=1e-8)


# -- distance transform -------------------------------------------------------------------------------------------------


def brute_envelope(weights, spacing):
    """min_p weights[p] + |(p - q) spacing|^2 over all pairs."""
    places = np.indices(weights.shape).reshape(weights.ndim, -1).T * spacing
    squared = ((places[:, None, :] - places[None, :, :]) ** 2).sum(axis=2)
    return (weights.reshape(-1)[None, :] + squared).min(axis=1).reshape(weights.shape)


@st.composite
def weighted_grids(draw):
    dim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, {1: 60, 2: 24, 3: 7}[dim])) for _ in range(dim))
    spacing = np.array([draw(st.floats(1e-3, 3.0)) for _ in range(dim)])
    rng = np.random.default_rng(draw(seeds))
    weights = draw(st.sampled_from([0.01, 1.0, 30.0])) * rng.normal(size=shape)
    weights[rng.random(shape) < draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))] = np.inf
    weights[rng.random(shape) < draw(st.sampled_from([0.0, 0.0, 0.05]))] = -np.inf
    return weights, spacing


@pytest.mark.parametrize("backend_name", BACKENDS)
@settings(max_examples=150)
@given(problem=weighted_grids())
def test_lower_envelope_equals_brute_force(backend_name, problem):
    if backend_name == "torch":
        pytest.importorskip("torch")
    weights, spacing = problem
    kept = weights.copy()
    result = backend(backend_name).lower_envelope(weights, spacing)
    np.testing.assert_allclose(result, brute_envelope(weights, spacing), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(weights, kept)


def test_lower_envelope_of_extreme_weights(compute):
    spacing = np.array([0.5, 2.0])
    nothing = np.full((4, 5), np.inf)
    np.testing.assert_array_equal(compute.lower_envelope(nothing, spacing), nothing)
    everything = nothing.copy()
    everything[2, 3] = -np.inf
    np.testing.assert_array_equal(compute.lower_envelope(everything, spacing), -nothing)
    single = nothing.copy()
    single[0, 0] = -1.0
    result = compute.lower_envelope(single, spacing)
    np.testing.assert_allclose(result[:, 0], [-1.0, -0.75, 0.0, 1.25])
    np.testing.assert_allclose(result[0], [-1.0, 3.0, 15.0, 35.0, 63.0])


def test_lower_envelope_of_a_large_grid_by_distance_to_one_point(compute):
    """More lines than one task takes."""
    weights = np.full((9, 70, 11), np.inf)
    weights[4, 33, 2] = -0.25
    spacing = np.array([0.3, 0.01, 1.0])
    i, j, k = np.indices(weights.shape)
    expected = ((i - 4) * 0.3) ** 2 + ((j - 33) * 0.01) ** 2 + (k - 2.0) ** 2 - 0.25
    np.testing.assert_allclose(compute.lower_envelope(weights, spacing), expected, rtol=1e-12, atol=1e-13)


# -- determinism, registry ----------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread():
    """A context in which the fused backend has one thread."""
    threads = numba.get_num_threads()

    class OneThread:
        def __enter__(self):
            numba.set_num_threads(1)

        def __exit__(self, *error):
            numba.set_num_threads(threads)

    yield OneThread()
    numba.set_num_threads(threads)


def everything(seed=0, m=40, size=150, shape=(30, 40, 5), columns=1300):
    """The results of all kernels of the fused backend."""
    compute = backend("numba")
    x, z, a = functions(2, m=m, size=size, seed=seed)
    x1, z1, a1 = functions(1, m=m, size=size, is_sorted=True, seed=seed)
    given_, _ = advance_problem(2, "matern52")
    rng = np.random.default_rng(seed)
    weights, rhs = rng.normal(size=shape), rng.normal(size=(T, columns))
    return [
        *compute.scenario_parts(x, z, a, "matern32", is_sorted=False),
        *compute.scenario_parts(x, z, a, "rbf", is_sorted=False),
        *compute.scenario_parts(x1, z1, a1, "matern32", is_sorted=True),
        *advanced(compute, given_, "matern52", [2, T]),
        *intersected(compute, intersect_problem(2, "matern52")[0], "matern52"),
        compute.lower_envelope(weights, np.array([0.1, 0.2, 0.3])),
        compute.cholesky_solve(given_[2], rhs),
    ]


def test_results_do_not_depend_on_the_number_of_threads(one_thread):
    many = everything()
    with one_thread:
        one = everything()
    for first, second in zip(many, one, strict=True):
        np.testing.assert_array_equal(first, second)


@settings(max_examples=25)
@given(seeds, st.integers(1, 60), st.integers(1, 300), st.tuples(*3 * [st.integers(1, 40)]), st.integers(1, 1300))
def test_both_versions_of_a_kernel_give_the_same_bits(seed, m, size, shape, columns):
    """A record made on a large machine must replay on a small one, and in a worker with one thread."""
    results = []
    for version in ("many", "alone"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fused_cpu._Kernel, "__call__", lambda self, _, *given, v=version: getattr(self, v)(*given))
            results.append(everything(seed, m, size, shape, columns))
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def test_one_task_and_one_thread_are_not_handed_over(monkeypatch):
    called = []
    kernel = fused_cpu._Kernel(lambda: None)
    kernel.many, kernel.alone = (lambda name=name: called.append(name) for name in ("many", "alone"))
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 4)
    kernel(1)
    kernel(2)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
    kernel(2)
    assert called == ["alone", "many", "alone"]


def test_unknown_backend_is_named(monkeypatch):
    with pytest.raises(InvalidValueError, match=r"'fortran'.*numba.*torch"):
        backend("fortran")
    monkeypatch.setenv("SAFEBO_COMPUTE", "abacus")
    with pytest.raises(InvalidValueError, match="'abacus'"):
        backend()


def test_backends_are_chosen_by_name_or_environment(name, monkeypatch):
    monkeypatch.delenv("SAFEBO_COMPUTE", raising=False)
    assert backend() is backend("numba")
    monkeypatch.setenv("SAFEBO_COMPUTE", name)
    assert backend() is backend(name)

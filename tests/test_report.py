"""Figures of one- and two-dimensional states, slices, progress, animations: what is in them, and what they leave behind."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from safebo import Box, Constraint, Fixed, LocalCubes, Matern, SafeOptimizer, report
from safebo.exceptions import InvalidValueError, MissingExtraError, NoInitialSampleError, UnsafeMeasurementWarning
from safebo.report import scene


def bump(points):
    """1 - |x - 0.6|^2-like in every parameter of the unit cube; safe above 0."""
    return 1.0 - 4.0 * ((np.atleast_2d(points) - 0.6) ** 2).sum(axis=1)


def optimizer(dim=1, experiments=5, start=0.4, **settings):
    settings = {
        "kernel": Matern(nu=1.5, lengthscale=0.4), "norm": Fixed(4.0), "cubes": LocalCubes(n=2, delta=0.3),
        "points_per_axis": {1: 101, 2: 25}.get(dim, 9), **settings,
    }  # fmt: skip
    opt = SafeOptimizer(Box.unit(dim), 0.0, **settings)
    opt.tell(np.full(dim, start), float(bump(np.full(dim, start))[0]))
    for _ in range(experiments):
        trial = opt.ask()
        opt.tell(trial, float(bump(list(trial.params.values()))[0]))
    return opt


@pytest.fixture(scope="module")
def line():
    return optimizer(1)


@pytest.fixture(scope="module")
def plane():
    return optimizer(2)


@pytest.fixture(scope="module")
def space():
    return optimizer(3, experiments=3, kernel=Matern(nu=1.5, lengthscale=0.8), norm=Fixed(2.0))


@pytest.fixture(autouse=True)
def no_global_figures():
    import matplotlib.pyplot as plt

    before, settings = plt.get_fignums(), dict(plt.rcParams)
    yield
    assert plt.get_fignums() == before
    assert dict(plt.rcParams) == settings


def found(axes, gid):
    return [artist for artist in axes.get_children() if artist.get_gid() == gid]


def drawn(axes, *roles):
    """Number of markers of these roles."""
    return sum(len(artist.get_offsets()) for role in roles for artist in found(axes, role))


def saved(figure, path):
    figure.savefig(path, dpi=60)
    with Image.open(path) as image:
        assert min(image.size) > 100
        assert len(np.unique(np.asarray(image.convert("L")))) > 20
    return path


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


# -- one parameter -------------------------------------------------------------------------------------------------------


def test_one_parameter(line, tmp_path):
    figure = report.plot_state(line, truth=bump, cubes=True)
    (axes,) = figure.axes
    assert drawn(axes, "sample") == 5 and drawn(axes, "initial") == 1 and drawn(axes, "violation") == 0
    assert drawn(axes, "best") == 1 and drawn(axes, "next") == 1
    for gid in ("truth", "mean", "interval", "limit", "S", "M", "G", "cubes"):
        assert len(found(axes, gid)) == 1, gid
    assert axes.get_xlabel() == "x1" and axes.get_ylabel() == "objective"
    assert {"true function", "posterior mean", "safety limit", "safe set S", "sub-domains"} <= set(labels(figure))
    saved(figure, tmp_path / "line.png")


def test_the_interval_is_that_of_bounds(line):
    axes = report.plot_state(line, points=51).axes[0]
    (band,) = found(axes, "interval")
    lower, upper = line.bounds(np.linspace(0.0, 1.0, 51))
    y = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([y.min(), y.max()], [lower.min(), upper.max()])


def test_bars_are_the_sets(line):
    cut = scene.full(line, None)
    grid = np.linspace(0.0, 1.0, 301)
    for name, mask_name in scene.SETS.items():
        own = scene.certified_stretches(cut, 301) if name == "S" else []
        stretches = own or scene.stretches(cut, line.subdomains(), name)
        assert all(a <= b for a, b in stretches) and stretches == sorted(stretches)
        assert not own or line.is_safe(np.array(own).reshape(-1, 1)).all()  # they end where the last certified point is
        x = np.concatenate([view.points[getattr(view, mask_name), 0] for view in line.subdomains()])
        assert own or np.any([(x >= a - 1e-12) & (x <= b + 1e-12) for a, b in stretches], axis=0).all()
    inside = np.array([any(a <= x <= b for a, b in scene.certified_stretches(cut, 301)) for x in grid])
    assert (inside == line.is_safe(grid)).all()


def test_user_units(tmp_path):
    opt = SafeOptimizer(Box({"force": (10.0, 30.0)}), 0.0, norm=Fixed(4.0), cubes=None, points_per_axis=50)
    opt.tell({"force": 20.0}, 0.5)
    axes = report.plot_state(opt, truth=lambda points: 0.5 - 0.01 * (points[:, 0] - 20.0) ** 2).axes[0]
    assert axes.get_xlim() == (10.0, 30.0) and axes.get_xlabel() == "force"
    assert found(axes, "initial")[0].get_offsets().tolist() == [[20.0, 0.5]]


def test_unsafe_measurements_are_crosses(tmp_path):
    opt = optimizer(experiments=1)
    with pytest.warns(UnsafeMeasurementWarning):
        opt.tell([0.0], -0.44)
    axes = report.plot_state(opt).axes[0]
    assert drawn(axes, "violation") == 1 and drawn(axes, "sample", "initial") == 2
    assert drawn(report.plot_progress(opt).axes[0], "violation") == 1


def test_truth_decides_where_noise_hides_a_violation():
    opt = optimizer(experiments=0)
    opt.tell([0.05], 0.01)  # truly -0.21
    assert drawn(report.plot_state(opt).axes[0], "violation") == 0
    assert drawn(report.plot_state(opt, truth=bump).axes[0], "violation") == 1
    assert drawn(report.plot_progress(opt, truth=bump).axes[0], "violation") == 1


def test_draws_into_given_axes(line):
    figure = report.new_figure(8.0, 3.0)
    left, right = figure.subplots(1, 2)
    assert report.plot_state(line, axes=left, sets=(), next_trial=False, best=False) is figure
    report.plot_state(line, axes=right, limits=(-2.0, 2.0))
    assert not figure.legends and not found(left, "S") and drawn(left, "next", "best") == 0
    assert right.get_ylim()[1] == 2.0 and right.get_ylim()[0] < -2.0
    report.legend(figure)
    assert len(labels(figure)) == len(set(labels(figure)))


def test_an_optimizer_that_has_stopped_has_no_next_trial():
    opt = optimizer(experiments=0, min_width=100.0)
    assert opt.ask() is None
    assert drawn(report.plot_state(opt).axes[0], "next") == 0


# -- two parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["mean", "lower", "upper", "width"])
def test_two_parameters(plane, field, tmp_path):
    figure = report.plot_state(plane, field=field, cubes=True)
    axes = figure.axes[0]
    assert drawn(axes, "sample") == 5 and drawn(axes, "initial") == 1
    assert drawn(axes, "best") == 1 and drawn(axes, "next") == 1
    assert len(found(axes, "field")) == 1
    assert len(found(axes, "cube")) == len(plane.subdomains()) - 1
    assert axes.get_xlabel() == "x1" and axes.get_ylabel() == "x2"
    saved(figure, tmp_path / "plane.png")


def test_truth_gets_its_own_panel(plane, tmp_path):
    figure = report.plot_state(plane, truth=bump, cubes="next")
    model, truth = figure.axes[:2]
    assert truth.get_title() == "true function"
    assert drawn(truth, "sample", "initial") == 6 and drawn(truth, "best", "next") == 0
    assert len(found(model, "cube")) == (plane.ask().cube.width < 1.0)
    saved(figure, tmp_path / "truth.png")


def test_the_raster_is_the_safe_set(plane):
    cut = scene.full(plane, None)
    axes, mesh = cut.mesh(41)
    safe = scene.raster(cut, plane.subdomains(), "S", axes)
    exact = plane.is_safe(mesh).reshape(41, 41)
    assert exact.any() and not exact.all()
    assert np.mean(safe != exact) < 0.08  # its edge, to within a grid point
    for name in ("M", "G"):
        assert not (scene.raster(cut, plane.subdomains(), name, axes) & ~safe).any()


@pytest.mark.parametrize("points", [5, 12, 41])
def test_certified_points_lie_in_what_is_drawn_as_safe(points):
    cubes = LocalCubes(n=3, delta=0.05)
    opt = optimizer(2, 0, norm=Fixed(4.0), kernel=Matern(nu=1.5, lengthscale=0.3), cubes=cubes)  # the safe set is small
    for _ in range(4):
        trial = opt.ask()
        cut = scene.full(opt, None)
        axes, safe = scene.certified_area(cut, points, trial)
        assert (safe.ravel() == opt.is_safe(cut.over(axes))).all()  # whatever is drawn as safe is certified
        for point in [trial.x, *(s.x for s in opt.state.samples)]:
            assert opt.is_safe([point]).all()
            assert safe[tuple(int(np.abs(axis - p).argmin()) for axis, p in zip(axes, point, strict=True))]
        figure = report.plot_state(opt)
        (outline,) = found(figure.axes[0], "outline")
        assert outline.get_paths()[0].contains_point(trial.x, radius=1e-9)
        assert opt.ask().x == trial.x
        opt.tell(trial, float(bump([trial.x])[0]))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_aborted_and_rejected_experiments_are_drawn(dim, tmp_path):
    wide = {"kernel": Matern(nu=1.5, lengthscale=0.8), "norm": Fixed(2.0)} if dim == 3 else {}
    opt = optimizer(dim, 1, **wide)
    for reason in ("the arm is blocked", "rejected: too close", "rejected"):
        opt.tell(opt.ask(), status="aborted", reason=reason)
    trial = opt.ask()
    opt.tell(trial, float(bump([trial.x])[0]))
    opt.tell(opt.ask(), status="aborted", reason="again")
    for figure in (report.plot_slice(opt, opt.domain.names[:2]), report.plot_progress(opt)):
        assert (drawn(figure.axes[0], "aborted"), drawn(figure.axes[0], "rejected")) == (2, 2)
        assert {"aborted experiment", "rejected trial"} <= set(labels(figure))
        saved(figure, tmp_path / "given-up.png")
    (early, *_, late) = [
        drawn(report.plot_slice(o, o.domain.names[:2]).axes[0], "aborted", "rejected") for o in report.replay(opt)
    ]
    assert (early, late) == (0, 4)  # an abort belongs to its step


def test_what_has_no_value_is_drawn_inside_the_axes_below_the_values(tmp_path):
    opt = optimizer(1, 0)
    opt.tell(opt.ask(), status="aborted", reason="rejected: too close")
    opt.tell(opt.ask(), status="aborted", reason="the arm is blocked")
    figure = report.plot_progress(opt)
    saved(figure, tmp_path / "start.png")
    (axes,) = figure.axes
    (low, high), (strip,) = axes.get_xlim(), found(axes, "strip")
    marks = [tuple(offset) for role in ("rejected", "aborted") for mark in found(axes, role) for offset in mark.get_offsets()]
    assert len(marks) == 2 and all(low < x < high and 1.0 < x < 2.0 and y < strip.get_ydata()[0] for x, y in marks)
    assert all(tick == round(tick) for tick in axes.get_xticks())
    axes = report.plot_state(opt).axes[0]
    bottom = axes.transAxes.inverted().transform(axes.transData.transform([0.5, axes.get_yticks()[0]]))[1]
    heights = [float(mark.get_offsets()[0, 1]) for mark in found(axes, "aborted") if len(mark.get_offsets())]
    assert heights and max(heights) < bottom


def test_units_are_on_the_axes(plane, line):
    units = {"x1": "V/rad", "x2": "s", "objective": "points"}
    axes = report.plot_state(plane, units=units).axes
    assert (axes[0].get_xlabel(), axes[0].get_ylabel(), axes[1].get_ylabel()) == ("x1 [V/rad]", "x2 [s]", "objective [points]")
    axes = report.plot_state(line, units=units).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x1 [V/rad]", "objective [points]")
    assert report.plot_progress(line, units=units).axes[0].get_ylabel() == "objective [points]"
    assert report.plot_slice(plane, "x1", {"x2": 0.4}, units=units).axes[0].get_title() == "x2 = 0.4 s"


def _free_objective():
    opt = SafeOptimizer(
        Box.unit(2), None, norm=Fixed(4.0), cubes=None, points_per_axis=9, constraints={"torque": Constraint(upper=1.0)}
    )
    opt.tell([0.5, 0.5], 1.0, {"torque": 0.1})
    return opt


def test_a_map_of_the_margin(plane, two_outputs, tmp_path):
    figure = report.plot_state(plane, field="margin")
    assert figure.axes[1].get_ylabel() == "margin of objective"
    assert len(found(figure.axes[0], "limit")) == 1
    saved(figure, tmp_path / "margin.png")
    output = two_outputs.state.outputs[1]
    lower, upper = np.array([-1.5, -0.5, 0.0]), np.array([-0.5, 0.5, 0.9])
    np.testing.assert_allclose(scene.margin(output, lower, upper), [-0.5, 0.5, 0.1])
    with pytest.raises(InvalidValueError, match="no limit to be distant from"):
        report.plot_slice(_free_objective(), ("x1", "x2"), field="margin")


def test_a_map_of_the_first_measurement_has_the_scale_of_its_certificate(tmp_path):
    opt = SafeOptimizer(
        Box.unit(2),
        0.0,
        norm=Fixed(60.0),
        kernel=Matern(nu=1.5, lengthscale=0.3),
        cubes=LocalCubes(n=2, delta=0.3),
        points_per_axis=9,
    )
    opt.tell([0.313, 0.527], 0.97)  # between the points of every mesh
    lower, upper = opt.bounds([[0.313, 0.527]])
    certified = float(scene.margin(opt.state.outputs[0], lower, upper)[0])
    figure = report.plot_state(opt, field="margin", next_trial=False)
    (field,) = found(figure.axes[0], "field")
    assert field.get_clim() == pytest.approx((-certified, certified)) and certified > 0.5
    assert field.get_array().max() == pytest.approx(certified)
    shown = set(labels(figure))
    assert "end of this certificate" in shown and "safety limit" not in shown
    assert "safe set S, tiny" in shown and found(figure.axes[0], "outline")
    assert any("maximisers M" in label for label in shown) == bool(found(figure.axes[0], "M"))
    saved(figure, tmp_path / "first.png")


def test_two_parameters_into_given_axes(plane):
    figure = report.new_figure(5.0, 4.0)
    axes = figure.subplots()
    assert report.plot_state(plane, truth=bump, axes=axes) is figure
    assert len(figure.axes) == 2  # and the colour bar
    with pytest.raises(InvalidValueError, match="truth of 'objective'"):
        report.plot_state(plane, axes=figure.subplots(1, 2))


# -- slices --------------------------------------------------------------------------------------------------------------


def test_three_parameters_need_a_slice(space):
    with pytest.raises(InvalidValueError, match=re.escape("plot_state(opt, fixed={'x3': ...})")) as error:
        report.plot_state(space)
    assert "plot_slice(opt, vary=('x1', 'x2'))" in str(error.value)


def test_slices(space, tmp_path):
    flat = report.plot_slice(space, ("x1", "x2"), truth=bump)
    assert drawn(flat.axes[0], "sample", "initial", "elsewhere") == 4
    assert "x3 = " in flat.get_suptitle()
    thin = report.plot_slice(space, "x2", fixed=space.best(), truth=bump)
    assert thin.axes[0].get_xlabel() == "x2" and "x1 = " in thin.axes[0].get_title()
    saved(flat, tmp_path / "flat.png")
    saved(thin, tmp_path / "thin.png")
    same = report.plot_state(space, fixed={"x1": 0.4, "x3": 0.4})
    assert same.axes[0].get_title() == "x1 = 0.4, x3 = 0.4"


def test_a_slice_through_the_start_shows_it_and_swaps_axes(space):
    axes = report.plot_slice(space, ("x3", "x1"), fixed={"x2": 0.4}).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x3", "x1")
    assert drawn(axes, "initial") == 1
    one, two = (scene.slice_of(space, vary, {"x2": 0.4}) for vary in (("x1", "x3"), ("x3", "x1")))
    views = space.subdomains()
    first, second = (scene.raster(cut, views, "S", cut.mesh(21)[0]) for cut in (one, two))
    assert (first == second.T).all()


def test_a_slice_that_misses_every_local_cube_has_only_the_global_domain(space):
    cut = scene.slice_of(space, ("x1", "x2"), {"x3": 1.0})
    views = space.subdomains()
    assert all(cut.layer(view, "S") is None for view in views if view.cube.upper[2] < 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: report.plot_slice(o, ("x1", "speed")), "vary takes one or two"),
        (lambda o: report.plot_slice(o, ("x1", "x1")), "vary takes one or two"),
        (lambda o: report.plot_slice(o, ("x1", "x2", "x3")), "vary takes one or two"),
        (lambda o: report.plot_slice(o, "x1", fixed={"speed": 1.0}), "Cannot fix"),
        (lambda o: report.plot_slice(o, "x1", fixed={"x2": 7.0}), "outside its bounds"),
        (lambda o: report.plot_state(o, fixed={"x1": 0.0, "x2": 0.0, "x3": 0.0}), "fix fewer"),
        (lambda o: report.plot_slice(o, "x1", field="variance"), "field must be one of"),
        (lambda o: report.plot_slice(o, "x1", sets="SX"), "sets takes"),
        (lambda o: report.plot_slice(o, "x1", cubes="all"), "cubes must be"),
        (lambda o: report.plot_slice(o, "x1", points=1), "points must be"),
        (lambda o: report.plot_slice(o, "x1", limits=(1.0, 0.0)), "limits must be"),
        (lambda o: report.plot_slice(o, "x1", output="torque"), "Unknown output 'torque'"),
        (lambda o: report.plot_slice(o, "x1", truth={"torque": bump}), "truth names the outputs"),
        (lambda o: report.plot_slice(o, "x1", truth=lambda x: 1.0), "one value per point"),
        (lambda o: report.plot_progress(o, axes=[None, None]), "one axes per output"),
        (lambda o: report.plot_progress(o, numbers=[1, 2]), "one number per measurement, 4, got 2"),
        (lambda o: report.animate(o, "never.gif", fps=0.0), "fps > 0"),
        (lambda o: report.animate(o, "never.gif"), "plot_slice"),
    ],
)
def test_errors_name_the_value(space, call, message):
    with pytest.raises(InvalidValueError, match=message):
        call(space)


def test_nothing_to_draw_before_the_first_measurement():
    opt = SafeOptimizer(Box.unit(1), 0.0)
    with pytest.raises(NoInitialSampleError):
        report.plot_state(opt)
    with pytest.raises(NoInitialSampleError):
        list(report.replay(opt))
    assert report.plot_progress(opt).axes


# -- several outputs, progress -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_outputs():
    opt = SafeOptimizer(
        Box.unit(1), None, norm=Fixed(4.0), kernel=Matern(nu=1.5, lengthscale=0.4), cubes=None, points_per_axis=101,
        constraints={"torque": Constraint(threshold=-1.0, upper=1.0)},
    )  # fmt: skip
    opt.tell([0.5], 1.0, {"torque": 0.1})
    for _ in range(3):
        trial = opt.ask()
        opt.tell(trial, float(bump([trial.x])[0]), {"torque": 2.0 * trial.x[0] - 0.9})
    return opt


def test_several_outputs(two_outputs, tmp_path):
    axes = report.plot_state(two_outputs, output="torque", truth=lambda x: 2.0 * x[:, 0] - 0.9).axes[0]
    assert axes.get_ylabel() == "torque" and len(found(axes, "limit")) == 2
    assert found(axes, "initial")[0].get_offsets().tolist() == [[0.5, 0.1]]
    objective = report.plot_state(two_outputs, truth={"objective": bump, "torque": lambda x: 2.0 * x[:, 0] - 0.9}).axes[0]
    assert objective.get_ylabel() == "objective" and not found(objective, "limit")
    figure = report.plot_progress(two_outputs, optimum=1.0)
    assert [axes.get_ylabel() for axes in figure.axes] == ["objective", "torque"]
    assert len(found(figure.axes[1], "limit")) == 2 and len(found(figure.axes[0], "optimum")) == 1
    saved(figure, tmp_path / "progress.png")


def test_progress(line, tmp_path):
    figure = report.plot_progress(line, truth=bump, optimum=1.0, certified=True)
    (axes,) = figure.axes
    assert drawn(axes, "sample") == 5 and drawn(axes, "initial") == 1
    assert found(axes, "initial")[0].get_offsets()[0, 0] == 1.0
    (best,), (certified,) = found(axes, "best so far"), found(axes, "certified")
    np.testing.assert_allclose(best.get_ydata()[:-1], np.maximum.accumulate(line.state.values()[:, 0]))
    assert certified.get_ydata()[-1] == line.best().lower
    assert (np.diff(certified.get_ydata()) >= -1e-12).all()  # the intervals are nested
    saved(figure, tmp_path / "progress.png")


def test_measurements_keep_their_numbers(line):
    numbers = [1, 2, 4, 5, 6, 8]  # 3 and 7 were taken back
    axes = report.plot_progress(line, numbers=numbers).axes[0]
    drawn_at = [float(x) for role in ("initial", "sample") for mark in found(axes, role) for x in mark.get_offsets()[:, 0]]
    assert drawn_at == numbers and axes.get_xlabel() == "measurement"


# -- replay, animation ---------------------------------------------------------------------------------------------------


def test_replay_is_the_past():
    opt = SafeOptimizer(Box.unit(1), 0.0, kernel=Matern(nu=1.5, lengthscale=0.4), cubes=LocalCubes(n=1, delta=0.3))
    past = []
    opt.tell([0.4], float(bump([0.4])[0]))
    opt.tell([0.45], float(bump([0.45])[0]))
    for _ in range(3):
        trial = opt.ask()
        past.append((opt.best(), trial.x, trial.cube, opt.bounds([[0.5]])))
        opt.tell(trial, float(bump([trial.x])[0]))
    past.append((opt.best(), opt.ask().x, opt.ask().cube, opt.bounds([[0.5]])))
    before = opt.state
    assert [(o.best(), o.ask().x, o.ask().cube, o.bounds([[0.5]])) for o in report.replay(opt)] == past
    assert opt.state is before


def test_animation_has_a_frame_per_measurement(line, tmp_path):
    path = report.animate(line, tmp_path / "deep" / "run.gif", truth=bump, fps=4, hold=1.0, dpi=40, points=101)
    with Image.open(path) as gif:
        assert gif.n_frames == 6 and gif.size == (288, 184)
        durations, pictures = [], []
        for frame in range(gif.n_frames):
            gif.seek(frame)
            durations.append(gif.info["duration"])
            pictures.append(np.asarray(gif.convert("RGB")))
    assert durations == [250] * 5 + [1250]
    assert pictures[0][0, 0].tolist() == [255, 255, 255]
    assert all((a != b).any() for a, b in pairwise(pictures))


def test_animations_of_maps_and_slices(plane, space, tmp_path):
    with Image.open(report.animate(plane, tmp_path / "plane.gif", dpi=30, every=3, points=21)) as gif:
        assert gif.n_frames == 3  # after 0, 3 and 5 experiments
    with Image.open(report.animate(space, tmp_path / "space.gif", vary="x1", dpi=30, every=2, points=21)) as gif:
        assert gif.n_frames == 3


# -- optional dependency -------------------------------------------------------------------------------------------------


def test_without_matplotlib_the_error_says_what_to_install(line, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (report.plot_state, report.plot_progress, lambda opt: report.animate(opt, tmp_path / "run.gif")):
        with pytest.raises(MissingExtraError, match=re.escape("pip install '.[plot]'")):
            call(line)


def test_importing_the_package_does_not_import_matplotlib():
    check = "import sys, safebo.report; sys.exit('matplotlib' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    assert subprocess.run([sys.executable, "-c", check], env=environment, check=False).returncode == 0

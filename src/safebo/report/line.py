"""One parameter: function, interval and measurements above, the sets as rows of bars below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from safebo.exceptions import NoInitialSampleError
from safebo.optimizer import Trial
from safebo.report import scene
from safebo.report.options import Options
from safebo.report.scene import Slice, Truth
from safebo.report.style import BLUE, GREY, LIGHT, LINES, SET_NAMES, SETS, dress, faded, figure_of, legend, new_figure, scatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _GAP = 0.05, 0.02  # height of one row of bars and space around them, as fractions of the axes
_POINTS = 801
_THIN = 0.003  # bars are at least this fraction of the axis wide


def draw_line(cut: Slice, truths: Mapping[str, Truth], axes: Any, options: Options) -> Figure:
    """See `plot_state`."""
    figure = figure_of(axes) if axes is not None else new_figure(7.2, 4.6)
    ax: Axes = axes if axes is not None else figure.add_subplot()
    opt, state = cut.opt, cut.opt.state
    number = scene.output_number(state, options.output)
    output = state.outputs[number]
    dress(ax)

    (axis,), mesh = cut.mesh(options.points or _POINTS)
    lower, upper = opt.bounds(mesh, output.name)
    ax.fill_between(axis, lower, upper, color=BLUE, alpha=0.18, lw=0, label="confidence interval", gid="interval", zorder=1)
    if output.name in truths:
        ax.plot(axis, scene.evaluate(truths[output.name], mesh), zorder=3, gid="truth", **LINES["truth"])
    ax.plot(axis, opt.mean(mesh, output.name), zorder=2.5, gid="mean", **LINES["mean"])
    for i, limit in enumerate(scene.limits_of(output)):
        ax.axhline(limit, zorder=2, gid="limit", **{**LINES["limit"], **({"label": "_"} if i else {})})

    rows = [name for name in SETS if name in options.sets]
    low, high = options.limits or scene.value_range(state, number, truths, cut)
    given = bool(state.aborts)
    share = _share(rows, options.cubes, given)
    bottom = low - share / (1.0 - share) * (high - low)
    ax.set_ylim(bottom, high)
    ax.set_xlim(*cut.extent(0))
    ax.set_yticks([tick for tick in ax.get_yticks() if low <= tick <= high])
    _samples(ax, cut, truths, number)
    trial = options.trial(cut.opt)
    _given_up(ax, cut, share - 0.5 * (_GAP + _ROW))
    if options.best:
        _best(ax, cut, options.output is None or number == 0)
    _next(ax, cut, trial)
    _bars(ax, cut, rows, options.cubes, trial, given)

    ax.set_xlabel(options.named(cut.names[0]))
    ax.set_ylabel(options.named(output.name))
    held = held_text(cut, options)
    heading = options.title if options.title is not None else held
    if heading:
        ax.set_title(heading)
    if options.legend if options.legend is not None else axes is None:
        legend(figure, [ax])
    return figure


def _samples(ax: Axes, cut: Slice, truths: Mapping[str, Truth], number: int) -> None:
    """Every sample once: as violation, initial, on the slice or elsewhere."""
    state = cut.opt.state
    points, values = scene.points_of(state), state.values()[:, number]
    low, high = ax.get_ylim()
    shown = bool(((values >= low) & (values <= high)).all())
    for role, mask in scene.roles(cut, truths).items():
        if mask.any():
            scatter(ax, role, points[mask, cut.vary[0]], values[mask], clip_on=not shown)


def held_text(cut: Slice, options: Options) -> str:
    """The parameters that the slice holds: "x3 = 0.4 V"."""
    units = options.units
    return ", ".join(f"{name} = {value:.4g}{f' {units[name]}' if units.get(name) else ''}" for name, value in cut.fixed.items())


def _given_up(ax: Axes, cut: Slice, height: float) -> None:
    """Aborted experiments and rejected trials have no value: a row below the values, pale where they lie off the slice."""
    for role, on, point in scene.given_up(cut):
        faded(ax, role, point[cut.vary[0]], height, on, transform=ax.get_xaxis_transform())


def _best(ax: Axes, cut: Slice, objective: bool) -> None:
    try:
        best = cut.opt.best()
    except NoInitialSampleError:
        return
    point = cut.opt.domain.point(best.params)
    if objective and cut.contains(point[None, :])[0]:
        scatter(ax, "best", [point[cut.vary[0]]], [best.mean], zorder=4.5)


def _next(ax: Axes, cut: Slice, trial: Trial | None) -> None:
    if trial is None:
        return
    point = cut.opt.domain.point(dict(trial.params))
    if cut.contains(point[None, :])[0]:
        x = float(point[cut.vary[0]])
        ax.axvline(x, zorder=1.5, **LINES["next"])
        top = ax.get_xaxis_transform()
        scatter(ax, "next", [x], [1.0], transform=top, clip_on=False, zorder=6)


def _share(rows: Sequence[str], cubes: bool | str, given: bool) -> float:
    """Fraction of the axes that the rows below the values take."""
    count = given + len(rows) + bool(cubes)
    return _ROW * count + _GAP if count else 0.0


def _bars(ax: Axes, cut: Slice, rows: Sequence[str], cubes: bool | str, trial: Trial | None, given: bool) -> None:
    """S, M, G from top to bottom, then the cubes, below the row of what was given up; the letters stand right of the axes."""
    from matplotlib.patches import Rectangle

    if not rows and not cubes and not given:
        return
    views = cut.opt.subdomains()
    across = ax.get_xaxis_transform()
    height = 0.62 * _ROW
    bottom = top = _share(rows, cubes, given)
    ax.add_patch(Rectangle((0.0, 0.0), 1.0, top, transform=ax.transAxes, fc="white", lw=0, zorder=2.8))
    ax.plot([0.0, 1.0], [top, top], transform=ax.transAxes, color=LIGHT, lw=0.8, zorder=2.9)
    bottom -= 0.5 * _GAP + given * _ROW

    def row(text: str, colour: str, ranges: list[tuple[float, float]], **look_of: Any) -> None:
        nonlocal bottom
        bottom -= _ROW
        place = (bottom + 0.5 * (_ROW - height), height)
        ax.broken_barh(ranges, place, transform=across, facecolors=colour, lw=0, zorder=3, **look_of)
        ax.text(
            1.012,
            bottom + 0.5 * _ROW,
            text,
            color=colour,
            transform=ax.transAxes,
            va="center",
            ha="left",
            fontsize=9,
            fontweight="bold",
        )

    for name in rows:
        stretches = scene.certified_stretches(cut, _POINTS, trial) if name == "S" else scene.stretches(cut, views, name)
        row(name, SETS[name], _widened(cut, stretches), label=SET_NAMES[name], gid=name)
    if cubes:
        axis = cut.vary[0]
        chosen = scene.cubes_of(cut, views, cubes, trial)
        edges = cut.user(axis, np.array([(c.lower[axis], c.upper[axis]) for c in chosen]).reshape(-1, 2))
        ranges = [(float(a), float(b - a)) for a, b in edges]
        row("c", GREY, ranges, alpha=max(0.03, 1.0 / max(len(ranges), 1)), label="_", gid="cubes")  # darker where there are more
        ax.broken_barh([], (0.0, 0.0), facecolors=GREY, alpha=0.6, lw=0, label="sub-domains")


def _widened(cut: Slice, pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(start, length), with a minimal length: a single certified point is seen as well."""
    low, high = cut.extent(0)
    thin = _THIN * (high - low)
    return [(min(a, 0.5 * (a + b - thin)), max(b - a, thin)) for a, b in pairs]

"""Two parameters: the posterior as a map, the sets as outline and hatches, and the truth beside it where it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError, NoInitialSampleError
from safebo.optimizer import Trial
from safebo.outputs import Output
from safebo.report import scene
from safebo.report.line import held_text
from safebo.report.options import FIELDS, Options
from safebo.report.scene import FloatArray, Slice, Truth
from safebo.report.style import (
    COLORMAP,
    HATCHES,
    LINES,
    SET_NAMES,
    SETS,
    SHADE,
    SKY,
    dress,
    faded,
    figure_of,
    legend,
    new_figure,
    scatter,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTOURS = {"mean": "mean at limit", "lower": "bound at limit", "upper": "bound at limit", "margin": "margin"}
"""Which line a field crosses its limit in."""

TINY = ", tiny"
"""In the legend, behind the name of a set that is hidden under a mark."""

_TINY = 0.03  # of the axes: about the size of a mark
_POINTS = 101
_PIXELS = 201  # for the sets: finer than the default grid of the domain, so that the small sets of small cubes are seen


def draw_map(cut: Slice, truths: Mapping[str, Truth], axes: Any, options: Options) -> Figure:
    """See `plot_state`."""
    state = cut.opt.state
    number = scene.output_number(state, options.output)
    output = state.outputs[number]
    known = truths.get(output.name)
    if options.field == "margin" and not output.is_limit:
        raise InvalidValueError(f"{output.name!r} has no limit to be distant from: choose another field or output.")
    if axes is None:
        figure = new_figure(9.6 if known else 6.0, 4.9)
        panels: list[Axes] = list(figure.subplots(1, 2 if known else 1, sharex=True, sharey=True, squeeze=False)[0])
    else:
        panels = list(np.atleast_1d(np.asarray(axes, dtype=object)).ravel())
        figure = figure_of(panels[0])
    if len(panels) > 1 and known is None:
        raise InvalidValueError(f"The second of {len(panels)} axes shows the truth of {output.name!r}, which was not given.")

    trial = options.trial(cut.opt)
    points = options.points or _POINTS
    mesh_axes = scene.certified_area(cut, points, trial)[0] if options.field == "margin" else cut.mesh(points)[0]
    mesh = cut.over(mesh_axes)
    shape = tuple(len(a) for a in mesh_axes)
    images = [_field(cut, mesh, output.name, options.field).reshape(shape)]
    titles = [options.title if options.title is not None else FIELDS[options.field]]
    if len(panels) > 1 and known is not None:
        images.append(scene.evaluate(known, mesh).reshape(shape))
        titles.append("true function")
    low, high = options.limits or colour_range(cut, truths, options)
    pictures = []
    for i, (ax, image, title) in enumerate(zip(panels, images, titles, strict=False)):
        dress(ax, grid=False)
        picture = ax.pcolormesh(
            *mesh_axes, image.T, cmap=COLORMAP, vmin=low, vmax=high, shading="gouraud", rasterized=True, gid="field", zorder=0
        )
        pictures.append(picture)
        if i == 1 or options.field != "width":
            for limit in [0.0] if options.field == "margin" and i == 0 else scene.limits_of(output):
                _contour(ax, mesh_axes, image, limit, "truth at limit" if i == 1 else CONTOURS[options.field])
        _samples(ax, cut, truths)
        _given_up(ax, cut)
        across, up = (options.named(name) for name in cut.names)
        ax.set(xlim=cut.extent(0), ylim=cut.extent(1), xlabel=across, ylabel=up if i == 0 else "")
        ax.set_title(title)
    _sets(panels[: len(images)], cut, options, trial)
    if options.best:
        _best(panels[0], cut)
    _next(panels[0], cut, trial)
    bar = figure.colorbar(pictures[0], ax=panels[: len(images)], pad=0.02, extend=_extend(images, low, high))
    bar.outline.set_visible(False)
    label = options.named(output.name)
    bar.set_label({"width": f"{label}, {FIELDS['width']}", "margin": f"margin of {label}"}.get(options.field, label))
    if cut.fixed:
        figure.suptitle(held_text(cut, options), fontsize="medium")
    if options.legend if options.legend is not None else axes is None:
        legend(figure, panels)
    return figure


def _field(cut: Slice, mesh: FloatArray, output: str, field: str) -> FloatArray:
    if field == "mean":
        return cut.opt.mean(mesh, output)
    lower, upper = cut.opt.bounds(mesh, output)
    if field == "margin":
        return scene.margin(cut.opt.state.outputs[scene.output_number(cut.opt.state, output)], lower, upper)
    return {"lower": lower, "upper": upper, "width": upper - lower}[field]


def colour_range(cut: Slice, truths: Mapping[str, Truth], options: Options) -> tuple[float, float]:
    """Range of the truth where it is known and comparable, else of the field."""
    output = cut.opt.state.outputs[scene.output_number(cut.opt.state, options.output)].name
    if options.field in ("lower", "upper"):  # far from the data they say little: keep the colours for where they matter
        low, high = scene.value_range(cut.opt.state, scene.output_number(cut.opt.state, options.output), truths, cut)
        return low - (high - low), high + (high - low) * (options.field == "upper")
    mesh = cut.mesh(41)[1]
    if options.field == "margin":  # what lies far outside is not certified anyhow: the colours are for what is
        every = np.concatenate([mesh, scene.certified_points(cut)])  # the area around a first measurement is finer than any mesh
        most = max(float(_field(cut, every, output, "margin").max()), 1e-9)
        return -most, most
    known = options.field == "mean" and output in truths
    values = scene.evaluate(truths[output], mesh) if known else _field(cut, mesh, output, options.field)
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _extend(images: Sequence[FloatArray], low: float, high: float) -> str:
    """Arrows at the ends of the colour bar where values lie outside it by more than rounding of the mesh."""
    slack = 0.03 * (high - low)
    below, above = min(i.min() for i in images) < low - slack, max(i.max() for i in images) > high + slack
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[bool(below), bool(above)]


def _contour(ax: Axes, mesh_axes: Sequence[FloatArray], image: FloatArray, level: float, role: str) -> None:
    """A contour with a white rim, so that it is seen on dark and light; where there is one, its legend entry is a line."""
    look_of = LINES[role]
    if image.min() < level < image.max():
        _line_key(ax, role)
        ax.contour(*mesh_axes, image.T, levels=[level], colors="white", linewidths=3.0, alpha=0.8, linestyles="solid", zorder=1.5)
        ax.contour(
            *mesh_axes, image.T, levels=[level], colors=look_of["color"], linewidths=1.9, linestyles=[look_of["ls"]], zorder=1.6
        )


def _line_key(ax: Axes, role: str) -> None:
    ax.plot([], [], gid="limit", **{**LINES[role], "lw": 1.9})


def _set_key(ax: Axes, name: str, more: str = "") -> None:
    label = SET_NAMES[name] + more
    if name == "S":
        ax.plot([], [], color=SETS["S"], lw=2.0, label=label, gid="S")
    else:
        pattern, ink = HATCHES[name]
        ax.fill_between([], [], fc=SHADE, ec=ink, hatch=pattern, lw=0.0, label=label)


def all_keys(ax: Axes, output: Output, options: Options) -> None:
    """The legend's entries of everything that a map may show, for pictures that share one legend."""
    for name in (n for n in SETS if n in options.sets):
        _set_key(ax, name)
    if output.is_limit and options.field in CONTOURS:
        _line_key(ax, CONTOURS[options.field])


def _is_tiny(axes: Sequence[FloatArray], mask: NDArray[np.bool_]) -> bool:
    """Whether a set is no larger than the marks of the measurements in it."""
    return all(np.ptp(axis[on]) < _TINY * np.ptp(axis) for axis, on in zip(axes, np.nonzero(mask), strict=True) if len(on))


def _sets(panels: Sequence[Axes], cut: Slice, options: Options, trial: Trial | None) -> None:
    """S as an outline in every panel, M and G as hatches in the first, sub-domains as rectangles."""
    from matplotlib.patches import Rectangle

    views = cut.opt.subdomains()
    pixels, safe = scene.certified_area(cut, _PIXELS, trial)
    more = TINY if options.legend is not False and _is_tiny(pixels, safe) else ""
    for name in (n for n in SETS if n in options.sets):
        mask = (safe if name == "S" else safe & scene.raster(cut, views, name, pixels)).T.astype(np.float64)
        if name == "S":
            padded = np.pad(mask, 1)  # close the outline where the set reaches the edge of the domain
            rim = [np.concatenate([a[:1] - 1e-9, a, a[-1:] + 1e-9]) for a in pixels]
            for ax in panels:
                if mask.any():
                    ax.contour(*rim, padded, levels=[0.5], colors="white", linewidths=3.4, alpha=0.9, zorder=2)
                    outline = ax.contour(*rim, padded, levels=[0.5], colors=SETS["S"], linewidths=2.0, zorder=2.1)
                    outline.set_gid("outline")
                    _set_key(ax, name, more)
        elif mask.any():
            pattern, ink = HATCHES[name]
            filled = panels[0].contourf(*pixels, mask, levels=[0.5, 1.5], colors="none", hatches=[pattern], zorder=1.2)
            filled.set(edgecolor=ink, linewidth=0.0, gid=name)
            _set_key(panels[0], name, more)
    if options.cubes:
        chosen = scene.cubes_of(cut, views, options.cubes, trial)
        for cube in chosen:
            (left, right), (bottom, top) = (cut.user(a, np.array([cube.lower[a], cube.upper[a]])) for a in cut.vary)
            rectangle = Rectangle(
                (left, bottom), right - left, top - bottom, fill=False, ec=SKY, lw=1.2 if options.cubes == "next" else 0.5,
                alpha=0.9 if options.cubes == "next" else 0.45, zorder=1.8, gid="cube",
            )  # fmt: skip
            panels[0].add_patch(rectangle)
        panels[0].fill_between([], [], fc="none", ec=SKY, lw=1.2, label="sub-domain")


def _samples(ax: Axes, cut: Slice, truths: Mapping[str, Truth]) -> None:
    points = scene.points_of(cut.opt.state)
    for role, mask in scene.roles(cut, truths).items():
        if mask.any():
            scatter(ax, role, points[mask, cut.vary[0]], points[mask, cut.vary[1]], clip_on=False)


def _given_up(ax: Axes, cut: Slice) -> None:
    """Aborted experiments and rejected trials, pale where they lie off the slice."""
    for role, on, point in scene.given_up(cut):
        faded(ax, role, point[cut.vary[0]], point[cut.vary[1]], on, zorder=5.5)


def _best(ax: Axes, cut: Slice) -> None:
    try:
        best = cut.opt.best()
    except NoInitialSampleError:
        return
    point = cut.opt.domain.point(best.params)
    if cut.contains(point[None, :])[0]:
        scatter(ax, "best", [point[cut.vary[0]]], [point[cut.vary[1]]], zorder=6)


def _next(ax: Axes, cut: Slice, trial: Trial | None) -> None:
    if trial is None:
        return
    point = cut.opt.domain.point(dict(trial.params))
    if cut.contains(point[None, :])[0]:
        scatter(ax, "next", [point[cut.vary[0]]], [point[cut.vary[1]]], zorder=7)

"""Pictures of the Furuta study: what was explored, the true landscape, the pendulum before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from safebo.report import legend, new_figure
from safebo.report.style import BLACK, COLORMAP, GREY, LIGHT, LINES, VERMILLION, dress, scatter
from safebo.studies.common import Row
from safebo.studies.reproduce.figure import Work, plain_axes

FALLING = "#F3DCD3"
"""Where the pendulum falls."""

ZOOM = (0.0, 0.62), (0.12, 0.56)
"""The part of the domain around the explored parameters."""


def _map(ax: Any, truth: Mapping[str, Any], top: float) -> Any:
    """The value where it is safe, a plain colour where the pendulum falls, and the limit between them."""
    axis, value = truth["axis"], truth["value"]
    dress(ax, grid=False)
    ax.set_facecolor(FALLING)
    safe = np.ma.masked_less(value, 0.0)
    picture = ax.pcolormesh(axis, axis, safe.T, cmap=COLORMAP, vmin=0.0, vmax=top, shading="nearest", rasterized=True)
    if value.min() < 0.0 < value.max():
        ax.contour(axis, axis, value.T, levels=[0.0], colors=[VERMILLION], linewidths=1.6, linestyles=[LINES["limit"]["ls"]])
    ax.plot([], [], **{**LINES["limit"], "label": "limit: beyond it the pendulum falls"})
    ax.set(xlabel="$a_1$", ylabel="$a_2$")
    return picture


def _points(rows: Sequence[Row]) -> tuple[Any, Any, Any, Any]:
    """a1, a2, reward and whether it fell, of experiments."""
    a1, a2, reward = (np.array([float(row[name]) for row in rows]) for name in ("a1", "a2", "reward"))
    return a1, a2, reward, np.array([row["fell"] in (1, "1") for row in rows])


def overview(
    work: Work, methods: Mapping[str, Any], samples: list[Row], truth: Mapping[str, Any], paper: Sequence[Mapping[str, Any]]
) -> None:
    """The paper's map, ours and the truth; below, the reward over the experiments."""
    top = float(max(truth["value"].max(), 0.1))
    figure = new_figure(11.5, 7.4)
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=(1.15, 1.0)))
    left, middle, right = above.subplots(1, 3)
    theirs = np.array([[float(row[name]) for name in ("a1", "a2", "reward")] for row in paper])
    dots = left.scatter(*theirs.T[:2], c=theirs[:, 2], cmap=COLORMAP, s=34, edgecolors=GREY, linewidths=0.5)
    above.colorbar(dots, ax=left, pad=0.02).set_label("reward, the paper's units")
    scatter(left, "initial", *theirs[:1].T[:2], label="start")
    left.set_title("paper: real pendulum")
    first = [row for row in samples if row["method"] == "algorithm-4" and str(row["seed"]) == "0"]
    a1, a2, reward, fell = _points(first)
    dots = middle.scatter(
        a1[~fell], a2[~fell], c=reward[~fell], cmap=COLORMAP, s=34, edgecolors=GREY, linewidths=0.5, vmin=0.0, vmax=top
    )
    above.colorbar(dots, ax=middle, pad=0.02).set_label("measured reward")
    middle.set_title(f"simulation: Algorithm 4, {len(first) - 1} experiments")
    picture = _map(right, truth, top)
    above.colorbar(picture, ax=right, pad=0.02).set_label("true value")
    scatter(right, "sample", a1[1:][~fell[1:]], a2[1:][~fell[1:]], s=12)
    right.set_title("simulation: true landscape, whole domain")
    for ax in (middle, right):
        scatter(ax, "initial", a1[:1], a2[:1], label="start")
        if fell.any():
            scatter(ax, "violation", a1[fell], a2[fell], label="fall")
    for ax in (left, middle):
        plain_axes(ax, "$a_1$", "$a_2$")
        ax.set(xlim=ZOOM[0], ylim=ZOOM[1])
    right.set(xlim=(0, 1), ylim=(0, 1))
    legend(above, [middle, right], columns=4)
    panels = below.subplots(1, len(methods), sharey=True)
    for ax, (name, method) in zip(panels, methods.items(), strict=True):
        _progress(ax, method, [row for row in samples if row["method"] == name], work.settings["experiments"])
        ax.label_outer()
    legend(below, panels, columns=4)
    work.picture("furuta.png", figure)


def _progress(ax: Any, method: Any, rows: list[Row], experiments: int) -> None:
    """Rewards of all runs of a method, the best so far of each, falls crossed."""
    seeds = sorted({int(row["seed"]) for row in rows})
    falls = 0
    for seed in seeds:
        _, _, reward, fell = _points([row for row in rows if int(row["seed"]) == seed])
        at = np.arange(len(reward))
        ax.plot(at[~fell], reward[~fell], ".", color=method.colour, ms=3.5, alpha=0.45, label="experiment")
        ax.step(
            at, np.maximum.accumulate(reward), where="post", color=method.colour, lw=1.2, label="best so far, one line per run"
        )
        if fell.any():
            scatter(ax, "violation", at[fell], reward[fell], label="fall", clip_on=False)
        falls += int(fell.sum())
    ax.axhline(0.0, **{**LINES["limit"], "label": "safety limit"})
    total = len(rows) - len(seeds)
    plain_axes(
        ax,
        "experiment",
        "reward",
        f"{method.label}\n" + (f"{falls} falls in {total} experiments" if total else "nothing certified"),
    )
    ax.set(xlim=(0, experiments), ylim=(-0.17, 1.25))


def explored(work: Work, methods: Mapping[str, Any], samples: list[Row], runs: list[Row], truth: Mapping[str, Any]) -> None:
    """All experiments of every method on the true landscape."""
    top = float(max(truth["value"].max(), 0.1))
    figure = new_figure(11.5, 4.0)
    panels = figure.subplots(1, len(methods), sharex=True, sharey=True)
    picture: Any = None
    for ax, (name, method) in zip(panels, methods.items(), strict=True):
        picture = _map(ax, truth, top)
        a1, a2, _, fell = _points([row for row in samples if row["method"] == name])
        scatter(ax, "sample", a1[~fell], a2[~fell], s=14)
        if fell.any():
            scatter(ax, "violation", a1[fell], a2[fell], label="fall")
        mine = [row for row in runs if row["method"] == name]
        scatter(ax, "best", *np.array([[float(row["best_a1"]), float(row["best_a2"])] for row in mine]).T, s=110)
        scatter(ax, "initial", a1[:1], a2[:1], label="start")
        ax.set_title(method.label)
        ax.label_outer()
    panels[0].set(xlim=(0.0, 1.0), ylim=(0.1, 0.6))
    figure.colorbar(picture, ax=list(panels), pad=0.01).set_label("true value")
    legend(figure, columns=5)
    work.picture("explored.png", figure)


def landscapes(work: Work, truth: Mapping[str, Any], nominal: Mapping[str, Any], start: tuple[float, float]) -> None:
    """The simulation in which the start was found, and the device that is tuned."""
    top = float(max(nominal["value"].max(), truth["value"].max(), 0.1))
    figure = new_figure(9.0, 4.4)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, grid, title in zip(
        panels, (nominal, truth), ("nominal simulation", "the device: heavier, stiffer, delayed"), strict=True
    ):
        picture = _map(ax, grid, top)
        scatter(ax, "initial", [start[0]], [start[1]], label="start")
        ax.set_title(title)
        ax.label_outer()
    panels[0].set(xlim=(0, 1), ylim=(0, 1))
    figure.colorbar(picture, ax=list(panels), pad=0.01).set_label("true value")
    legend(figure, columns=2)
    work.picture("landscapes.png", figure)


def before_after(work: Work, problem: Any, start: tuple[float, float], best: tuple[float, float]) -> None:
    """Arm angle, pendulum angle and voltage after the same tap: start, best, and gains that drop the pendulum."""
    beyond = (start[0], 0.55)
    columns = {"start": start, "best of Algorithm 4": best, "beyond the limit": beyond}
    figure = new_figure(11.5, 6.2)
    panels = figure.subplots(3, len(columns), sharex=True, sharey="row")
    table: dict[str, list[Any]] = {name: [] for name in ("gains", "t", "arm_deg", "pendulum_deg", "voltage")}
    for place, (name, a) in enumerate(columns.items()):
        experiment = problem.experiment(a, 0)
        shown = experiment.time >= -1.0
        t = experiment.time[shown]
        theta, alpha = np.degrees(experiment.states[shown, :2]).T
        for ax, trace, label, limit in zip(
            panels[:, place], (theta, alpha, experiment.voltages[shown]), ("arm θ (°)", "pendulum α (°)", "voltage (V)"),
            (None, 30.0, 10.0), strict=True,
        ):  # fmt: skip
            plain_axes(ax, "seconds since the tuned gains took over", label)
            ax.axvspan(-1.0, 0.0, color=LIGHT, alpha=0.5, lw=0, zorder=0)
            ax.plot(t, trace, color=BLACK, lw=0.9)
            for side in (-1.0, 1.0):
                if limit is not None:
                    ax.axhline(side * limit, color=VERMILLION, lw=1.0, ls=LINES["limit"]["ls"])
            ax.label_outer()
        outcome = f"falls after {t[-1]:.2f} s" if experiment.fell else f"reward {experiment.reward:.2f}"
        panels[0, place].set_title(f"{name}, a = ({a[0]:.3f}, {a[1]:.3f})\n{outcome}")
        for key, column in zip(table, ([name] * len(t), t, theta, alpha, experiment.voltages[shown]), strict=True):
            table[key].extend(column if key == "gains" else np.round(column, 4))
    panels[0, 0].set(xlim=(-1.0, 5.0))
    figure.supxlabel(
        "grey: held with the start's gains until the tap at 0 s; dotted: angle of a fall, saturation",
        fontsize="medium",
        color=GREY,
    )
    work.picture("before-after.png", figure)
    work.csv("traces.csv", {key: column[::2] for key, column in table.items()})


def filmstrip(work: Work, problem: Any, a: tuple[float, float]) -> None:
    """Swing-up, catch and balance in eight pictures; left out where MuJoCo cannot draw."""
    from safebo.problems.furuta.render import film

    experiment = problem.experiment(a, 0)
    caught = experiment.start - 400
    rows = [0, *np.linspace(0.35 * caught, caught, 5).astype(int), experiment.start + 12, len(experiment.voltages) - 1]
    frames = film(problem.parameters, experiment.states[rows])
    if frames is None:
        return
    figure = new_figure(11.5, 4.6)
    for ax, frame, row in zip(figure.subplots(2, 4).ravel(), frames, rows, strict=True):
        ax.imshow(frame)
        ax.set_axis_off()
        phase = "swing-up" if row < caught else "caught" if row < experiment.start else "tuned gains"
        ax.set_title(f"{experiment.time[row] - experiment.time[0]:.2f} s, {phase}", color=GREY if row < caught else BLACK)
    work.picture("pendulum.png", figure)

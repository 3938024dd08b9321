"""What the biases of the six policies do: the whole landscape in one and two dimensions, lines through two points beyond.

The lines change one bias at a time and go through b = 0 and through a good bias that the defaults found.

Every value is the mean score of a few episodes with fixed seeds. The landscapes in one and two dimensions come with the package
(`RLProblem.landscape`); they are the files NAME.csv that this figure writes.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np

from safebo.domain import Box
from safebo.problems.rl.environments import ENVIRONMENTS, require_gymnasium
from safebo.problems.rl.problem import RLProblem
from safebo.report import new_figure
from safebo.report.style import BLACK, BLUE, COLORMAP, LIGHT, LINES, VERMILLION, scatter
from safebo.studies.common import Row
from safebo.studies.reproduce.figure import Figure, Outcome, Work, plain_axes
from safebo.studies.reproduce.rl import TITLES, plant_identity

FOUND = {
    "half_cheetah": [0.03, 0.2, -0.13, -0.33, 0.0, -0.27],
    "ant": [0.15, -0.2, 0.2, -0.3, -0.1, 0.0, -0.1, 0.0],
}
"""Good biases that the defaults measured, in the order of the actions."""

FIELDS = ("environment", "fingerprint", "number", "axis", "through", "bias", "value", "failures")
KEY = ("environment", "fingerprint", "number", "bias")
THROUGH = ("zero", "found")


def settings(quick: bool) -> dict[str, Any]:
    """Points per axis of a line, of a map and of a line in more dimensions; episodes per point; the good biases.

    The lander crashes rarely: its map needs more episodes.
    """
    if quick:
        episodes = dict.fromkeys(ENVIRONMENTS, 1)
        return {"environments": ["cart_pole"], "line": 7, "map": 5, "slice": 5, "episodes": episodes, "found": FOUND}
    episodes = {**dict.fromkeys(ENVIRONMENTS, 10), "lunar_lander": 40}
    return {"environments": list(ENVIRONMENTS), "line": 121, "map": 15, "slice": 11, "episodes": episodes, "found": FOUND}


@lru_cache
def problem(name: str) -> RLProblem:
    """One problem per process."""
    return RLProblem(name)


def points(name: str, s: dict[str, Any]) -> list[tuple[str, str, tuple[float, ...]]]:
    """(axis, through, bias) of every point: a grid up to two dimensions (axis and through are empty), lines beyond."""
    box = Box(ENVIRONMENTS[name].task.biases)
    if box.dim <= 2:
        per_axis = s["line"] if box.dim == 1 else s["map"]
        axes = [np.linspace(low, high, per_axis) for low, high in zip(box.low, box.high, strict=True)]
        return [("", "", tuple(b.tolist())) for b in np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, box.dim)]
    found = []
    for through, centre in zip(THROUGH, ([0.0] * box.dim, s["found"][name]), strict=True):
        for i, axis in enumerate(box.names):
            for value in np.linspace(box.low[i], box.high[i], s["slice"]).tolist():
                found.append((axis, through, tuple(value if j == i else centre[j] for j in range(box.dim))))
    return found


def evaluate(job: Row) -> Row:
    """One point as a row."""
    bias = [float(b) for b in job["bias"].split()]
    episodes = problem(job["environment"]).reference(bias, job["episodes"])
    return {
        **{name: job[name] for name in FIELDS[:6]},
        "value": round(float(np.mean([e.score for e in episodes])), 5),
        "failures": round(float(np.mean([e.failed for e in episodes])), 4),
    }


def columns(name: str, rows: list[Row]) -> dict[str, list[Any]]:
    """The rows of one environment as columns: one per bias, value, share of failed episodes."""
    names = problem(name).domain.names
    biases = np.array([[float(b) for b in row["bias"].split()] for row in rows])
    result: dict[str, list[Any]] = {axis: biases[:, i].tolist() for i, axis in enumerate(names)}
    return result | {part: [float(row[part]) for row in rows] for part in ("value", "failures")}


def draw(ax: Any, name: str, rows: list[Row], through: str) -> None:
    """One environment, or one set of its lines."""
    box = problem(name).domain
    table = {key: np.array(value) for key, value in columns(name, rows).items()}
    if box.dim == 1:
        draw_line(ax, name, table[box.names[0]], table["value"], table["failures"])
    elif box.dim == 2:
        draw_map(ax, name, table)
    else:
        draw_slices(ax, name, [row for row in rows if row["through"] == through], through)


def draw_line(ax: Any, name: str, b: Any, value: Any, failures: Any) -> None:
    """Value over bias; where some episodes fail the ground is shaded."""
    plain_axes(ax, f"bias ({problem(name).domain.names[0]})", "reward", TITLES[name])
    ax.fill_between(b, 0, 1, where=failures > 0, transform=ax.get_xaxis_transform(), color=LIGHT, step="mid", lw=0)
    ax.plot(b, value, color=BLUE, lw=1.8)
    ax.axhline(0.0, **LINES["limit"])
    scatter(ax, "initial", [0.0], [np.interp(0.0, b, value)], label="no bias")
    ax.set_xlim(b.min(), b.max())


def draw_map(ax: Any, name: str, table: dict[str, Any]) -> None:
    """Value as colours, the safety limit as a line, crosses where some episodes fail."""
    box = problem(name).domain
    first, second = (np.unique(table[axis]) for axis in box.names)
    value = table["value"].reshape(len(first), len(second)).T
    plain_axes(ax, f"bias ({box.names[0]})", f"bias ({box.names[1]})", TITLES[name])
    ax.grid(False)
    shown = ax.pcolormesh(first, second, value, cmap=COLORMAP, vmin=max(-0.5, float(value.min())))
    if value.min() < 0.0 < value.max():
        ax.contour(first, second, value, levels=[0.0], colors=[VERMILLION], linewidths=1.6)
    failed = (table["failures"] > 0) & (table["value"] >= 0.0)
    ax.plot(table[box.names[0]][failed], table[box.names[1]][failed], ".", color=BLACK, ms=2.5)
    scatter(ax, "initial", [0.0], [0.0], label="no bias")
    best = int(np.argmax(table["value"]))
    scatter(ax, "best", [table[box.names[0]][best]], [table[box.names[1]][best]], label="best of the grid")
    ax.figure.colorbar(shown, ax=ax, label="reward")


def draw_slices(ax: Any, name: str, rows: list[Row], through: str) -> None:
    """One line per bias, the others held; a circle grows with the share of episodes that fail."""
    import matplotlib

    others = "the others 0" if through == "zero" else "the others as found"
    plain_axes(ax, f"one bias, {others}", "reward", TITLES[name])
    names = problem(name).domain.names
    for i, axis in enumerate(names):
        mine = [row for row in rows if row["axis"] == axis]
        b = [float(row["bias"].split()[i]) for row in mine]
        value, failures = (np.array([float(row[part]) for row in mine]) for part in ("value", "failures"))
        colour = matplotlib.colormaps[COLORMAP](i / (len(names) - 1) * 0.9)
        ax.plot(b, value, color=colour, ls=("-", "--", "-.", ":")[i % 4], lw=1.5, label=axis)
        ax.scatter(b, value, s=40.0 * failures, facecolors="none", edgecolors=[colour], linewidths=0.8)
    ax.axhline(0.0, **{**LINES["limit"], "label": "_limit"})
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.3 * (high - low), high)  # room for the legend
    ax.legend(loc="lower center", fontsize=7, ncols=3, frameon=False, handlelength=2.2, columnspacing=1.0)


def explain(ax: Any) -> None:
    """What the marks mean, in a panel of its own."""
    scatter(ax, "initial", [], [], label="no bias")
    scatter(ax, "best", [], [], label="best of the grid")
    ax.plot([], [], **{**LINES["limit"], "label": "limit: reward 0"})
    ax.fill_between([], [], color=LIGHT, label="some episodes fail (1-D)")
    ax.plot([], [], ".", color=BLACK, ms=4, label="some episodes fail (2-D)")
    ax.scatter(
        [], [], s=40.0, facecolors="none", edgecolors=BLACK, linewidths=0.8, label="all episodes fail; smaller: some (beyond)"
    )
    ax.legend(loc="center", fontsize=9, frameon=False)


def make(work: Work) -> Outcome:
    """All landscapes in one figure, and each as a CSV."""
    s = work.settings
    jobs: list[Row] = []
    for name in s["environments"]:
        episodes = s["episodes"][name]
        common = {"environment": name, "fingerprint": f"{plant_identity(problem(name))}-{episodes}", "episodes": episodes}
        for i, (axis, through, bias) in enumerate(points(name, s)):
            jobs.append({**common, "number": i, "axis": axis, "through": through, "bias": " ".join(f"{b:.6g}" for b in bias)})
    now = set(work.only or s["environments"])
    rows = work.rows("points.csv", FIELDS, KEY, evaluate, jobs, lambda job: job["environment"] in now)
    there, wanted = (Counter(row["environment"] for row in each) for each in (rows, jobs))
    done = [name for name in s["environments"] if there[name] == wanted[name]]
    panels = [(name, through) for name in done for through in (THROUGH if problem(name).domain.dim > 2 else ("",))]
    lines = -(-len(panels) // 3)
    figure = new_figure(11.5, 3.4 * lines)
    axes = figure.subplots(lines, min(3, len(panels)), squeeze=False).ravel()
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    if len(axes) > len(panels):
        explain(axes[len(panels)])
    ours = {}
    for ax, (name, through) in zip(axes, panels, strict=False):
        draw(ax, name, [row for row in rows if row["environment"] == name], through)
    for name in done:
        table = columns(name, [row for row in rows if row["environment"] == name])
        work.csv(f"{name}.csv", table)
        start = problem(name).reference(problem(name).initial, s["episodes"][name])
        values = np.array(table["value"])
        ours[name] = {
            "initial": round(float(np.mean([e.score for e in start])), 4),
            "best": float(values.max()),
            "worst": float(values.min()),
            "unsafe_share": round(float((values < 0.0).mean()), 4),
            "noise": round(problem(name).measured_noise(experiments=10), 4),
            "noise_stated": problem(name).noise,
        }
    work.picture("rl-landscapes.png", figure)
    parts = [f"{name}: {line['initial']:.2f} to {line['best']:.2f}" for name, line in ours.items()]
    notes = (
        "Every value is the mean of 10 episodes with fixed seeds, of 40 for the lander.",
        "Grey ground, black points, circles: some episodes fail; red line: reward 0. Beyond two dimensions: one bias at a time.",
    )
    return Outcome("reward without bias and best shown: " + ", ".join(parts), ours, {}, notes, complete=len(rows) == len(jobs))


FIGURE = Figure("rl-landscapes", "App. M", "Rewards over the action biases of six policies", settings, make, require_gymnasium)

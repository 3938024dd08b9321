"""Runs of the presets on random functions: one run as a picture, many as counts.

A run is unsafe if one of its experiments has f < threshold. It is solved if `best()` is within 5 % of the reachable optimum,
relative to the initial value.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from safebo import presets
from safebo.domain import LocalCubes
from safebo.exceptions import SafeboWarning
from safebo.kernels import RBF, Matern
from safebo.norms import Scenario
from safebo.optimizer import SafeOptimizer
from safebo.problems import RKHSProblem
from safebo.report.style import BLUE, GREEN, ORANGE, PURPLE, VERMILLION
from safebo.studies.common import Row, rate_interval
from safebo.studies.reproduce.figure import Work, plain_axes

NORM = 5.0
"""||f|| of the paper's synthetic example."""


@dataclass(frozen=True)
class Method:
    """A preset with its settings, and its look in figures."""

    label: str
    colour: str
    preset: Callable[..., SafeOptimizer]
    settings: dict[str, Any] = field(default_factory=dict)
    line: Any = "-"

    def optimizer(self, problem: RKHSProblem, m: int, points: int) -> SafeOptimizer:
        """The method on a problem; m random functions where it learns the norm."""
        learned = {} if "norm" in self.settings else {"norm": Scenario(m=m)}
        settings = {"kernel": problem.kernel, "noise": problem.noise, "points_per_axis": points, **learned, **self.settings}
        return self.preset(problem.domain, problem.threshold, seed=problem.seed, **settings)


METHODS = {
    "algorithm-4": Method("Algorithm 4", BLUE, presets.algorithm_4),
    "safeopt-true": Method("SafeOpt, B = 5 (true)", GREEN, presets.safeopt, {"norm": 5.0}, "--"),
    "safeopt-small": Method("SafeOpt, B = 1", VERMILLION, presets.safeopt, {"norm": 1.0}, ":"),
    "safeopt-large": Method("SafeOpt, B = 25", ORANGE, presets.safeopt, {"norm": 25.0}, "-."),
    "matern32": Method("Matern 3/2 (true)", BLUE, presets.algorithm_4),
    "matern52": Method("Matern 5/2", GREEN, presets.algorithm_4, {"kernel": Matern(nu=2.5, lengthscale=0.1)}, "--"),
    "rbf": Method("RBF", PURPLE, presets.algorithm_4, {"kernel": RBF(lengthscale=0.1)}, "-."),
    "n5": Method("N = 5, Δ = 0.1", BLUE, presets.algorithm_4),
    "n10": Method("N = 10, Δ = 0.05", GREEN, presets.algorithm_4, {"cubes": LocalCubes(n=10, delta=0.05)}, "--"),
    "n0": Method("N = 0 (global only)", ORANGE, presets.algorithm_4, {"cubes": None}, "-."),
}

SAMPLES = ("method", "experiment", "a", "measured")
FIELDS = ("method", "seed", "experiments", "unsafe", "worst_margin", "score", "first_near_optimum", "stop")


def steps(problem: RKHSProblem, optimizer: SafeOptimizer, experiments: int) -> Iterator[int]:
    """Run the optimizer on the problem; stops to say how many experiments were done, from 0 on."""
    plant = problem.plant(problem.seed)
    optimizer.tell(problem.initial, plant(problem.initial))
    yield 0
    for done in range(1, experiments + 1):
        trial = optimizer.ask()
        if trial is None:
            return
        optimizer.tell(trial, plant(trial.params))
        yield done


def finished(name: str, problem: RKHSProblem, settings: dict[str, Any]) -> SafeOptimizer:
    """A method after all its experiments on a problem."""
    optimizer = METHODS[name].optimizer(problem, settings["m"], settings["points"])
    for _ in steps(problem, optimizer, settings["experiments"]):
        pass
    return optimizer


def measurements(name: str, optimizer: SafeOptimizer) -> list[tuple[str, int, float, float]]:
    """What a method measured, the initial sample as experiment 0: rows of samples.csv."""
    pairs = zip(optimizer.state.x()[:, 0].tolist(), optimizer.state.values()[:, 0].tolist(), strict=True)
    return [(name, i, x, y) for i, (x, y) in enumerate(pairs)]


def run(job: Row) -> Row:
    """One method on one function as a row."""
    problem = RKHSProblem.sample(1, NORM, job["seed"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        optimizer = finished(job["method"], problem, job)
        return {"method": job["method"], "seed": job["seed"], **outcome(problem, optimizer, job["experiments"])}


def outcome(problem: RKHSProblem, optimizer: SafeOptimizer, experiments: int) -> Row:
    """What a run came to, by the true values of its experiments."""
    values = problem.f(optimizer.state.x())[1:]
    near = np.flatnonzero([problem.solved(v) for v in values])
    stop = optimizer.stop_reason if len(values) < experiments else None
    return {
        "experiments": len(values),
        "unsafe": int((values < problem.threshold).sum()),
        "worst_margin": round(float(np.min(values, initial=problem.initial_value) - problem.threshold), 6),
        "score": round(problem.score(problem.value(optimizer.best().params)), 6),
        "first_near_optimum": int(near[0]) + 1 if len(near) else "",
        "stop": "" if stop is None else stop.value,
    }


def many(work: Work, names: Sequence[str]) -> dict[str, list[Row]]:
    """Every method on every function: the rows of runs.csv by method."""
    settings = {name: work.settings[name] for name in ("m", "points", "experiments")}
    jobs = [{"method": name, "seed": seed, **settings} for name in names for seed in range(work.settings["functions"])]
    rows = work.rows("runs.csv", FIELDS, ("method", "seed"), run, jobs)
    return {name: [row for row in rows if row["method"] == name] for name in names}


def count(rows: list[Row]) -> Row:
    """The rows of one method in numbers."""
    unsafe = sum(int(row["unsafe"]) > 0 for row in rows)
    median = statistics.median_low(_near(rows))
    return {
        "runs": len(rows),
        "unsafe_runs": unsafe,
        "unsafe_rate_95": [round(v, 4) for v in rate_interval(unsafe, len(rows))],
        "unsafe_experiments": sum(int(row["unsafe"]) for row in rows),
        "solved": sum(float(row["score"]) >= 0.95 for row in rows),
        "no_experiment_possible": sum(int(row["experiments"]) == 0 for row in rows),
        "median_experiments_to_95": None if median == float("inf") else int(median),
    }


def _near(rows: list[Row]) -> list[float]:
    """Number of the first experiment near the optimum, ascending; infinite where there is none."""
    return sorted(float(row["first_near_optimum"] or "inf") for row in rows)


def verdict(problem: RKHSProblem, optimizer: SafeOptimizer, experiments: int) -> str:
    """A run in one line, for the title of its panel."""
    row = outcome(problem, optimizer, experiments)
    if row["experiments"] == 0:
        return "no experiment is certified"
    return f"{row['unsafe']} of {row['experiments']} experiments unsafe, reaches {min(row['score'], 1.0):.0%}"


def draw_shares(ax: Any, rows: dict[str, list[Row]], experiments: int) -> None:
    """Over the experiments: the share of functions with an experiment near the optimum so far."""
    plain_axes(ax, "experiment", "functions (%)", "an experiment within 5 % of the reachable optimum")
    at = np.arange(experiments + 1)
    for name, mine in rows.items():
        share = 100.0 * np.searchsorted(_near(mine), at, side="right") / len(mine)
        ax.step(at, share, where="post", color=METHODS[name].colour, ls=METHODS[name].line, lw=1.8)
    ax.set(xlim=(0, experiments), ylim=(-3, 103))


def draw_unsafe(ax: Any, rows: dict[str, list[Row]], promise: float) -> None:
    """Unsafe runs per method with the exact 95 % interval of the rate, against the promised rate."""
    runs = max(len(mine) for mine in rows.values())
    plain_axes(
        ax,
        "rate of unsafe runs with its 95 % interval (%)",
        "",
        f"unsafe, of {runs} functions; dotted: promise of Algorithm 4",
    )
    for place, (name, mine) in enumerate(rows.items()):
        line, colour = count(mine), METHODS[name].colour
        low, high = line["unsafe_rate_95"]
        ax.plot([100 * low, 100 * high], [place, place], color=colour, lw=2.4, solid_capstyle="butt")
        ax.plot([100 * line["unsafe_runs"] / line["runs"]], [place], "o", color=colour, ms=7, clip_on=False)
        ax.text(1.02, place, f"{line['unsafe_runs']}", color=colour, va="center", transform=ax.get_yaxis_transform())
    ax.axvline(100 * promise, color=VERMILLION, ls=(0, (1.2, 1.2)), lw=1.3)
    ax.set(xlim=(0, None), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), [METHODS[name].label for name in rows])
    for text, name in zip(ax.get_yticklabels(), rows, strict=True):
        text.set_color(METHODS[name].colour)

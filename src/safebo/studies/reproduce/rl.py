"""Six reinforcement-learning policies in changed environments: an action bias is learned with safe experiments only.

Every method starts at b = 0 and may run 50 experiments. An experiment is unsafe if its noise-free value is below 0, misjudged if
its measurement lies outside the interval that it was certified with by more than three standard deviations of the noise. The
value of the bias that a run recommends, `best()`, is compared with the value at b = 0; both are means over the same episodes.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from safebo import presets
from safebo.domain import LocalCubes
from safebo.exceptions import SafeboWarning
from safebo.norms import Scenario
from safebo.optimizer import SafeOptimizer
from safebo.problems.rl.environments import ENVIRONMENTS, Environment, Training, require_gymnasium
from safebo.problems.rl.problem import RLProblem
from safebo.report import legend, new_figure
from safebo.report.style import BLUE, GREEN, LINES, ORANGE, VERMILLION
from safebo.studies.common import Row, Stopwatch, plan_constants
from safebo.studies.reproduce.figure import Figure, Outcome, Work, plain_axes, published

TITLES = {name: f"{name.replace('_', ' ').capitalize()} ({len(row.task.biases)}-D)" for name, row in ENVIRONMENTS.items()}
FIELDS = (
    "environment", "method", "seed", "fingerprint", "experiments", "unsafe", "misjudged", "stop", "initial_value", "best_value",
    "improvement", "optimizer_seconds", "simulation_seconds", "measured", "unsafe_at",
)  # fmt: skip
KEY = ("environment", "method", "seed", "fingerprint")
OUT_OF_TIME = "time"
NEAR = 6.0  # an experiment that measures more than this many noise standard deviations above 0 is safe without a closer look


@dataclass(frozen=True)
class Method:
    """How to build the optimizer of a problem, and its look."""

    label: str
    colour: str
    line: Any
    build: Callable[..., SafeOptimizer]


def _common(problem: RLProblem) -> dict[str, Any]:
    return {"kernel": problem.kernel, "noise": problem.noise}


def _algorithm_4(problem: RLProblem, m: int, seed: int) -> SafeOptimizer:
    """The paper's N, Delta and points per axis."""
    task = problem.row.task
    settings = {"cubes": LocalCubes(*task.cubes), "points_per_axis": task.points, "norm": Scenario(m=m), "seed": seed}
    return presets.algorithm_4(problem.domain, problem.threshold, **_common(problem), **settings)


def _default(problem: RLProblem, m: int, seed: int) -> SafeOptimizer:
    """Nothing but what a user has to state."""
    return SafeOptimizer(problem.domain, problem.threshold, **_common(problem), seed=seed)


def _safeopt(norm: float) -> Callable[..., SafeOptimizer]:
    def build(problem: RLProblem, m: int, seed: int) -> SafeOptimizer:
        settings = {"norm": norm, "points_per_axis": problem.row.task.points, "seed": seed}
        return presets.safeopt(problem.domain, problem.threshold, **_common(problem), **settings)

    return build


SIZE = ("experiments", "m", "reference")
METHODS = {
    "algorithm-4": Method("Algorithm 4", BLUE, "-", _algorithm_4),
    "default": Method("SafeOptimizer, defaults", GREEN, "--", _default),
    "safeopt-0.2": Method("SafeOpt, B = 0.2", VERMILLION, ":", _safeopt(0.2)),
    "safeopt-30": Method("SafeOpt, B = 30", ORANGE, "-.", _safeopt(30.0)),
}


def settings(quick: bool) -> dict[str, Any]:
    """Size of the study; everything about the environments is in their table."""
    if quick:
        return {"environments": ["cart_pole"], "seeds": 1, "experiments": 6, "m": 100, "reference": 3, "seconds": 60.0}
    return {"environments": list(ENVIRONMENTS), "seeds": 5, "experiments": 50, "m": 1000, "reference": 50, "seconds": 400.0}


@lru_cache
def _problem(name: str) -> RLProblem:
    return RLProblem(name)


def identity(problem: RLProblem) -> str:
    """Changes with everything that defines a problem: its row of the table and its policy."""
    return _digest(problem, replace(problem.row, training=Training(0)))


def plant_identity(problem: RLProblem) -> str:
    """Changes with everything that an episode depends on, but not with what is told to the optimizers."""
    task = replace(problem.row.task, episodes=0, noise=0.0, lengthscale=0.0, cubes=(0, 0.0), points=0)
    return _digest(problem, replace(problem.row, training=Training(0), task=task))


def _digest(problem: RLProblem, row: Environment) -> str:
    digest = hashlib.sha256(repr(row).encode())
    for array in (*problem.actor.weights, *problem.actor.biases, problem.actor.low, problem.actor.high):
        digest.update(array.tobytes())
    return digest.hexdigest()[:12]


def fingerprint(job: Row) -> str:
    """Changes with everything that a run depends on: the problem, the method and the size of the study."""
    problem = _problem(job["environment"])
    chosen = METHODS[job["method"]].build(problem, job["m"], job["seed"]).state.settings
    size = [*(job[name] for name in SIZE), seconds(job, problem)]
    parts = [identity(problem), repr(chosen) + plan_constants(chosen), repr(size)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def seconds(job: Row, problem: RLProblem) -> float:
    """Processor time of the optimizer after which a run ends: beyond two dimensions, for Algorithm 4 and its grids in two."""
    limited = problem.domain.dim > (1 if job["method"] == "algorithm-4" else 2)
    return float(job["seconds"]) if limited else math.inf


def run(job: Row) -> Row:
    """One method in one environment as a row."""
    problem = RLProblem(job["environment"])
    plant = problem.plant(job["seed"])
    slack, episodes = 3.0 * problem.noise, job["reference"]
    timed = Stopwatch("optimizer", "simulation")
    limit, used = seconds(job, problem), 0.0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        optimizer = METHODS[job["method"]].build(problem, job["m"], job["seed"])
        measured = [timed("simulation", plant, problem.initial)]
        points: list[dict[str, float]] = []
        misjudged = 0
        timed("optimizer", optimizer.tell, problem.initial, measured[0])
        while len(points) < job["experiments"] and used < limit:
            before = time.process_time()
            trial = timed("optimizer", optimizer.ask)
            used += time.process_time() - before
            if trial is None:
                break
            points.append(trial.params)
            measured.append(timed("simulation", plant, trial.params))
            timed("optimizer", optimizer.tell, trial, measured[-1])
            misjudged += not trial.lower - slack <= measured[-1] <= trial.upper + slack
        reason = optimizer.stop_reason
        best = problem.value(optimizer.best().params, episodes)
    stop = "" if len(points) == job["experiments"] else OUT_OF_TIME if reason is None else reason.value
    near = [i + 1 for i, y in enumerate(measured[1:]) if y < NEAR * problem.noise]
    unsafe = [i for i in near if problem.is_unsafe(points[i - 1], episodes)]
    initial = problem.value(problem.initial, episodes)
    return {
        **{name: job[name] for name in KEY},
        "experiments": len(points),
        "unsafe": len(unsafe),
        "misjudged": misjudged,
        "stop": stop,
        "initial_value": round(initial, 5),
        "best_value": round(best, 5),
        "improvement": round(best - initial, 5),
        "optimizer_seconds": round(timed.seconds["optimizer"], 2),
        "simulation_seconds": round(timed.seconds["simulation"], 2),
        "measured": " ".join(f"{y:.4f}" for y in measured),
        "unsafe_at": " ".join(map(str, unsafe)),
    }


def summarise(rows: list[Row], noise: float) -> Row:
    """The runs of one method in one environment in numbers."""
    gain = [float(row["improvement"]) for row in rows]
    return {
        "runs": len(rows),
        "unsafe_runs": sum(int(row["unsafe"]) > 0 for row in rows),
        "unsafe_experiments": sum(int(row["unsafe"]) for row in rows),
        "misjudged": sum(int(row["misjudged"]) for row in rows),
        "experiments": sum(int(row["experiments"]) for row in rows),
        "stopped_early": sum(row["stop"] not in ("", OUT_OF_TIME) for row in rows),
        "out_of_time": sum(row["stop"] == OUT_OF_TIME for row in rows),
        "initial_value": float(rows[0]["initial_value"]),
        "improvement_median": statistics.median(gain),
        "improvement_smallest": min(gain),
        "improved_beyond_noise": sum(g > 2.0 * noise for g in gain),
        "optimizer_seconds": statistics.median(float(row["optimizer_seconds"]) for row in rows),
        "simulation_seconds": statistics.median(float(row["simulation_seconds"]) for row in rows),
    }


def paper() -> dict[str, Any]:
    """The published curves as first value, last value and number of unsafe experiments; their scale is not published."""
    names = {"algorithm_4": "algorithm-4", "safeopt_B_0.2": "safeopt-0.2", "safeopt_B_30": "safeopt-30"}
    found: dict[str, Any] = {}
    rows = published("rl_best_scaled_reward.csv")
    for series, method in names.items():
        for environment in ENVIRONMENTS:
            mine = [row for row in rows if row["environment"] == environment]
            curve = [float(row["best_scaled_reward"]) for row in mine if row["series"] == series]
            unsafe = sum(row["series"] == f"{series}_violation_at" for row in mine)
            last = max((float(row["iteration"]) for row in mine if row["series"] == series), default=0.0)
            line = {"first": curve[0], "last": curve[-1], "last_iteration": int(last), "unsafe_experiments": unsafe}
            found.setdefault(environment, {})[method] = line
    return found


def markdown(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    columns = ["environment", "method", "improvement", "unsafe experiments", "misjudged", "stopped early"]
    columns += ["seconds: optimizer, simulation", "paper"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name, methods in ours.items():
        for method, line in methods.items():
            curve = theirs.get(name, {}).get(method)
            out = f"; {line['out_of_time']} out of time" if line["out_of_time"] else ""
            cells = (
                f"{name.replace('_', ' ')} ({line['initial_value']:.2f} at b = 0)",
                METHODS[method].label,
                f"{line['improvement_median']:.2f} ({line['improvement_smallest']:.2f})",
                f"{line['unsafe_experiments']} of {line['experiments']}, in {line['unsafe_runs']} of {line['runs']} runs",
                f"{line['misjudged']}",
                f"{line['stopped_early']}{out}",
                f"{line['optimizer_seconds']:.1f}, {line['simulation_seconds']:.1f}",
                "" if curve is None else f"{curve['first']:.2f} to {curve['last']:.2f}, {curve['unsafe_experiments']}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def best_so_far(row: Row) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The largest measurement up to every experiment, the initial one as number 0."""
    return np.maximum.accumulate(np.array(row["measured"].split(), dtype=float))


def draw(ax: Any, name: str, rows: list[Row], experiments: int) -> None:
    """One environment: every run thin, their median thick, unsafe experiments as crosses below the limit, a row per method."""
    plain_axes(ax, "experiment", "best reward so far", TITLES[name])
    curves = {method: [best_so_far(row) for row in rows if row["method"] == method] for method in METHODS}
    top = max(float(curve.max()) for each in curves.values() for curve in each)
    for place, (method, look) in enumerate(METHODS.items()):
        if not curves[method]:
            continue
        for curve in curves[method]:
            ax.plot(curve, color=look.colour, lw=0.6, alpha=0.5)
        held = np.array([np.pad(curve, (0, experiments + 1 - len(curve)), mode="edge") for curve in curves[method]])
        last = max(len(curve) for curve in curves[method]) - 1
        median = np.median(held, axis=0)
        ax.plot(median[: last + 1], color=look.colour, ls=look.line, lw=2.0, label=look.label)
        ax.plot(last, median[last], "o", color=look.colour, ms=5)
        crosses = [int(i) for row in rows if row["method"] == method for i in row["unsafe_at"].split()]
        if crosses:  # below the limit, not at their value: several would coincide
            height = -0.05 * top * (place + 1)
            ax.plot(crosses, [height] * len(crosses), "x", color=look.colour, ms=6, mew=1.6)
            ax.text(max(crosses) + 1.0, height, f"{len(crosses)} unsafe", color=look.colour, fontsize=8, va="center")
    ax.axhline(0.0, **LINES["limit"])
    ax.set(xlim=(-0.5, experiments + 0.5), ylim=(-0.25 * top, 1.05 * top))


def make(work: Work) -> Outcome:
    """The study, its figure and its table."""
    s = work.settings
    wanted = [name for name in s["environments"] if not work.only or name in work.only]
    size = {name: s[name] for name in (*SIZE, "seconds")}
    jobs: list[Row] = [
        {"environment": name, "method": method, "seed": seed, **size}
        for name in s["environments"]
        for method in sorted(METHODS, key=lambda method: method == "algorithm-4")  # by far the slowest comes last
        for seed in range(s["seeds"])
    ]
    jobs = [{**job, "fingerprint": fingerprint(job)} for job in jobs]
    rows = work.rows("runs.csv", FIELDS, KEY, run, jobs, lambda job: job["environment"] in wanted)
    done = [name for name in s["environments"] if any(row["environment"] == name for row in rows)]
    figure = new_figure(11.0, 6.6 if len(done) > 3 else 3.8)
    panels = np.atleast_1d(figure.subplots(-(-len(done) // 3), min(3, len(done)), squeeze=False)).ravel()
    for ax in panels[len(done) :]:
        ax.set_axis_off()
    ours: dict[str, Any] = {}
    for ax, name in zip(panels, done, strict=False):
        mine = [row for row in rows if row["environment"] == name]
        draw(ax, name, mine, s["experiments"])
        noise = ENVIRONMENTS[name].task.noise
        by_method = {method: [row for row in mine if row["method"] == method] for method in METHODS}
        ours[name] = {method: summarise(runs, noise) for method, runs in by_method.items() if runs}
    legend(figure)
    work.picture("rl.png", figure)
    lines = [{"environment": n, "method": m, **line} for n, methods in ours.items() for m, line in methods.items()]
    work.csv("table.csv", {column: [line[column] for line in lines] for column in lines[0]})
    work.text("table.md", markdown(ours, paper()))
    default = [methods["default"] for methods in ours.values() if "default" in methods]
    headline = (
        f"{len(done)} environments; defaults: {sum(d['unsafe_experiments'] for d in default)} unsafe experiments, "
        f"{sum(d['improved_beyond_noise'] for d in default)} of {sum(d['runs'] for d in default)} runs improve beyond noise"
    )
    notes = (
        "Policies, rewards and their scale are ours (docs/benchmarks.md); the paper's reward scale is not published.",
        "An experiment is unsafe if its noise-free value is below 0; improvement is best_value - initial_value, both noise-free.",
    )
    return Outcome(headline, ours, paper(), notes, complete=len(rows) == len(jobs))


FIGURE = Figure("rl", "Fig. 6", "An action bias for six policies in changed environments", settings, make, require_gymnasium)

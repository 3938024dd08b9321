"""The hardware experiment on the simulated Furuta pendulum: two gains of the balancing controller, tuned safely.

The start was good in the nominal simulation; the device that is tuned differs from it in mass, friction and delay. An experiment
is unsafe if the pendulum falls, which is the same as a reward below 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from safebo import presets
from safebo.domain import LocalCubes
from safebo.exceptions import SafeboWarning
from safebo.norms import Scenario
from safebo.optimizer import SafeOptimizer
from safebo.report.style import BLUE, GREEN, ORANGE, VERMILLION
from safebo.studies.common import Row, Stopwatch, Table, parallel, rate_interval
from safebo.studies.reproduce.figure import Figure, Outcome, Work, published

if TYPE_CHECKING:
    from safebo.problems.furuta import FurutaProblem

SMALL, LARGE = 0.2, 30.0
"""Guessed norms, those of the paper's benchmarks. |f(a)| <= ||f||, so any value of f above 0.2 refutes the small one."""


@dataclass(frozen=True)
class Method:
    """An optimizer for the problem, and its look."""

    label: str
    colour: str
    line: Any
    build: Callable[[FurutaProblem, Row], SafeOptimizer]


def _common(problem: FurutaProblem, s: Row) -> dict[str, Any]:
    return {"kernel": problem.kernel, "noise": problem.noise, "points_per_axis": s["points"], "seed": s["seed"]}


METHODS = {
    "algorithm-4": Method("Algorithm 4", BLUE, "-", lambda p, s: presets.algorithm_4(
        p.domain, p.threshold, norm=Scenario(m=s["m"]), cubes=LocalCubes(n=s["n"], delta=s["delta"]), **_common(p, s))),
    "default": Method("safebo, defaults", GREEN, "--", lambda p, s: SafeOptimizer(p.domain, p.threshold, **_common(p, s))),
    "safeopt-small": Method(f"SafeOpt, B = {SMALL:g}", VERMILLION, ":", lambda p, s: presets.safeopt(
        p.domain, p.threshold, norm=SMALL, **_common(p, s))),
    "safeopt-large": Method(f"SafeOpt, B = {LARGE:g}", ORANGE, "-.", lambda p, s: presets.safeopt(
        p.domain, p.threshold, norm=LARGE, **_common(p, s))),
}  # fmt: skip

RUNS = (
    "method", "seed", "experiments", "falls", "best_a1", "best_a2", "best_value", "stop", "optimizer_seconds", "rig_seconds",
)  # fmt: skip
SAMPLES = ("method", "seed", "experiment", "a1", "a2", "reward", "fell")
LANDSCAPE = ("i", "j", "a1", "a2", "value", "falls")

NOTES = (
    "The paper's rewards come from a real pendulum and have another scale; positions can be compared, values cannot.",
    "The paper gives start, lengthscale, N, Delta and the number of experiments; the reward and its scale are ours.",
    "A fall is a reward below 0. The value of a point is the mean over 8 experiments with fixed seeds, on the maps over 2.",
    "Seconds of the rig are those of the simulation; a real experiment takes about 8 s.",
)

COARSE = "The map is too coarse to say what can be reached safely: its point next to the start is unsafe."


def settings(quick: bool) -> dict[str, Any]:
    """Size of the study."""
    paper = {"n": 3, "delta": 0.15, "lengthscale": 0.2}
    if quick:
        return {**paper, "seeds": 1, "experiments": 4, "m": 100, "points": 40, "grid": 5, "nominal_grid": 3, "repeats": 1}
    return {**paper, "seeds": 6, "experiments": 30, "m": 1000, "points": 100, "grid": 31, "nominal_grid": 11, "repeats": 2}


def _problem(nominal: bool = False) -> FurutaProblem:
    from safebo.problems.furuta import FurutaProblem

    return FurutaProblem.nominal() if nominal else FurutaProblem.perturbed()


def landscape_point(job: Row) -> Row:
    """The value of one grid point, and how many of the experiments behind it ended in a fall."""
    problem = _problem(job["nominal"])
    a = job["i"] / (job["grid"] - 1), job["j"] / (job["grid"] - 1)
    rewards = np.array([problem.experiment(a, seed).reward for seed in range(job["repeats"])])
    place = {"i": job["i"], "j": job["j"], "a1": f"{a[0]:g}", "a2": f"{a[1]:g}"}
    return {**place, "value": f"{rewards.mean():.4f}", "falls": int((rewards < 0.0).sum())}


def tune(job: Row) -> tuple[Row, list[Row]]:
    """One run of one method: its row, and its experiments."""
    problem = _problem()
    plant = problem.plant(job["seed"])
    optimizer = METHODS[job["method"]].build(problem, job)
    name = {"method": job["method"], "seed": job["seed"]}
    samples: list[Row] = []
    timed = Stopwatch("optimizer", "rig")

    def measure(what: Any, params: Any) -> None:
        reward = timed("rig", plant, params)
        a1, a2 = problem.domain.point(params)
        place = {"a1": f"{a1:.6g}", "a2": f"{a2:.6g}", "reward": f"{reward:.6g}", "fell": int(reward < 0.0)}
        samples.append({**name, "experiment": len(samples), **place})
        timed("optimizer", optimizer.tell, what, reward)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        measure(problem.initial, problem.initial)
        while len(samples) <= job["experiments"] and (trial := timed("optimizer", optimizer.ask)) is not None:
            measure(trial, trial.params)
        stop = None if len(samples) > job["experiments"] else optimizer.stop_reason
        best = optimizer.best().params
    return {
        **name,
        "experiments": len(samples) - 1,
        "falls": sum(row["fell"] for row in samples),
        "best_a1": f"{best['a1']:.6g}",
        "best_a2": f"{best['a2']:.6g}",
        "best_value": f"{problem.value(best):.4f}",
        "stop": "" if stop is None else stop.value,
        "optimizer_seconds": f"{timed.seconds['optimizer']:.1f}",
        "rig_seconds": f"{timed.seconds['rig']:.1f}",
    }, samples


def all_runs(work: Work) -> tuple[list[Row], list[Row]]:
    """The rows of runs.csv and samples.csv; runs already in the files are kept."""
    runs = Table(work.folder / "runs.csv", RUNS, ("method", "seed"))
    samples = Table(work.folder / "samples.csv", SAMPLES, ("method", "seed", "experiment"))
    jobs = [{**work.settings, "method": name, "seed": seed} for seed in range(work.settings["seeds"]) for name in METHODS]
    for run, experiments in parallel(tune, [job for job in jobs if job not in runs], work.jobs, "furuta"):
        for row in experiments:
            if row not in samples:
                samples.add(row)
        runs.add(run)
    order = list(METHODS)
    runs.sort(lambda row: (order.index(row["method"]), int(row["seed"])))
    samples.sort(lambda row: (order.index(row["method"]), int(row["seed"]), int(row["experiment"])))
    return runs.rows, samples.rows


def landscape(work: Work, name: str, points: int, *, nominal: bool) -> dict[str, Any]:
    """A grid of values: axis (p,), value (p, p) and falls (p, p), the first index for a1."""
    repeats = work.settings["repeats"]
    jobs = [
        {"i": i, "j": j, "grid": points, "nominal": nominal, "repeats": repeats} for i in range(points) for j in range(points)
    ]
    rows = work.rows(name, LANDSCAPE, ("i", "j"), landscape_point, jobs)
    values, falls = (np.array([float(row[column]) for row in rows]).reshape(points, points) for column in ("value", "falls"))
    return {"axis": np.linspace(0.0, 1.0, points), "value": values, "falls": falls}


def count(rows: list[Row], start: float) -> Row:
    """The runs of one method in numbers."""
    falls = [int(row["falls"]) for row in rows]
    values = [float(row["best_value"]) for row in rows]
    unsafe = sum(f > 0 for f in falls)
    return {
        "runs": len(rows),
        "runs_with_a_fall": unsafe,
        "rate_95": [round(v, 4) for v in rate_interval(unsafe, len(rows))],
        "falls": sum(falls),
        "experiments": sum(int(row["experiments"]) for row in rows),
        "best_value": [round(min(values), 4), round(float(np.median(values)), 4), round(max(values), 4)],
        "improvement": round(float(np.median(values)) - start, 4),
        "stops": sorted({row["stop"] for row in rows if row["stop"]}),
        "optimizer_seconds_per_run": round(float(np.mean([float(row["optimizer_seconds"]) for row in rows])), 1),
        "rig_seconds_per_run": round(float(np.mean([float(row["rig_seconds"]) for row in rows])), 1),
    }


def noise(work: Work) -> Row:
    """Mean and standard deviation of repeated experiments at the start, on the nominal and on the perturbed device."""
    result = {}
    for name, nominal in (("nominal", True), ("perturbed", False)):
        problem = _problem(nominal)
        rewards = [problem.experiment(problem.initial, 1000 + seed).reward for seed in range(10 * work.settings["repeats"])]
        result[name] = {
            "mean": round(float(np.mean(rewards)), 4), "sd": round(float(np.std(rewards, ddof=1)), 4),
            "min": round(min(rewards), 4), "experiments": len(rewards),
        }  # fmt: skip
    return result


def optimum(truth: dict[str, Any], start: tuple[float, float]) -> Row | None:
    """The best grid point that can be reached safely from the start; None where the point next to it is unsafe."""
    from safebo.problems.synthetic import reachable_argmax

    cell = int(np.ravel_multi_index([int(np.abs(truth["axis"] - a).argmin()) for a in start], truth["value"].shape))
    if truth["value"].flat[cell] < 0.0:
        return None
    i, j = np.unravel_index(reachable_argmax(truth["value"], 0.0, cell), truth["value"].shape)
    place = {"a1": round(float(truth["axis"][i]), 4), "a2": round(float(truth["axis"][j]), 4)}
    return {**place, "value": round(float(truth["value"][i, j]), 4)}


def make(work: Work) -> Outcome:
    """All runs, the landscapes, the pictures."""
    from safebo.problems.furuta import START
    from safebo.studies.reproduce import furuta_pictures as pictures

    runs, samples = all_runs(work)
    truth = landscape(work, "landscape.csv", work.settings["grid"], nominal=False)
    nominal = landscape(work, "nominal.csv", work.settings["nominal_grid"], nominal=True)
    start = _problem().initial_value
    by_method = {name: [row for row in runs if row["method"] == name] for name in METHODS}
    ours: dict[str, Any] = {
        "start": noise(work),
        "start_value": round(start, 4),
        "optimum": optimum(truth, START),
        "nominal_optimum_value": round(float(nominal["value"].max()), 4),
        "safe_share_of_the_domain": round(float((truth["value"] >= 0.0).mean()), 4),
        "methods": {name: count(rows, start) for name, rows in by_method.items()},
    }
    paper = published("furuta_samples.csv")
    pictures.overview(work, METHODS, samples, truth, paper)
    pictures.explored(work, METHODS, samples, runs, truth)
    pictures.landscapes(work, truth, nominal, START)
    chosen = by_method["algorithm-4"][0]
    pictures.before_after(work, _problem(), START, (float(chosen["best_a1"]), float(chosen["best_a2"])))
    pictures.filmstrip(work, _problem(), START)
    rewards = [float(row["reward"]) for row in paper]
    told = {"experiments": len(paper) - 1, "falls": 0, "reward_at_the_start": rewards[0], "best_reward": max(rewards)}
    parts = [f"{METHODS[n].label}: {c['falls']} falls, best {c['best_value'][1]:.2f}" for n, c in ours["methods"].items()]
    reachable = f", reachable {ours['optimum']['value']:.2f}" if ours["optimum"] else ""
    headline = f"start {start:.2f}{reachable}; {'; '.join(parts)}"
    return Outcome(headline, ours, {"algorithm-4": told}, NOTES if ours["optimum"] else (*NOTES, COARSE))


FIGURE = Figure("furuta", "Fig. 7", "Safe tuning of a Furuta pendulum, simulated", settings, make, _problem)

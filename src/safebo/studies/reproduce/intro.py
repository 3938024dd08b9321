"""Why the norm matters: safe Bayesian optimization with the true norm, a norm too small, one too large, and a learned one."""

from __future__ import annotations

from typing import Any

import numpy as np

from safebo.optimizer import SafeOptimizer
from safebo.problems import RKHSProblem
from safebo.report import legend, new_figure, plot_state
from safebo.studies.reproduce.figure import Figure, Outcome, Work
from safebo.studies.reproduce.runs import METHODS, NORM, SAMPLES, count, many, measurements, outcome, steps

SEED = 3
"""The first seed for which B = 5 is safe, B = 1 is unsafe and B = 25 cannot certify a single experiment."""

ROWS = {"safeopt-true": "true norm, B = 5", "safeopt-small": "norm too small, B = 1", "algorithm-4": "learned norm, Alg. 4"}


def settings(quick: bool) -> dict[str, Any]:
    """The moments of the paper's figure are the start, ten experiments, and the end."""
    if quick:
        size = {"functions": 4, "experiments": 12, "moments": [0, 5, 12], "m": 100, "points": 1000}
    else:
        size = {"functions": 100, "experiments": 30, "moments": [0, 10, 30], "m": 1000, "points": 1000}
    return {"norm": NORM, "seed": SEED, **size}


def make(work: Work) -> Outcome:
    """Both figures: the three rows of Fig. 1, and the norm that is too large."""
    problem = RKHSProblem.sample(1, work.settings["norm"], work.settings["seed"])
    values = problem.f(np.linspace(0.0, 1.0, 501)[:, None])
    options: dict[str, Any] = {"truth": problem.f, "limits": (float(values.min() - 0.3), float(values.max() + 0.3))}
    examples: dict[str, Any] = {}
    samples: list[tuple[Any, ...]] = []
    figure = new_figure(10.5, 9.2)
    grid = figure.subplots(len(ROWS), 3, sharex=True, sharey=True)
    for line, (name, title) in zip(grid, ROWS.items(), strict=True):
        optimizer = METHODS[name].optimizer(problem, work.settings["m"], work.settings["points"])
        left = list(zip(line, work.settings["moments"], strict=True))
        for done in steps(problem, optimizer, work.settings["experiments"]):
            if done == left[0][1]:
                _panel(left.pop(0)[0], problem, optimizer, title, options)
        for ax, _ in left:  # the run has stopped before this moment
            _panel(ax, problem, optimizer, title, options, stopped=True)
        examples[name] = outcome(problem, optimizer, work.settings["experiments"])
        samples += measurements(name, optimizer)
    legend(figure, columns=4)
    work.picture("intro.png", figure)
    work.csv("samples.csv", dict(zip(SAMPLES, zip(*samples, strict=True), strict=True)))

    examples["safeopt-large"] = _too_large(work, problem, options)
    rows = many(work, ("safeopt-true", "safeopt-small", "safeopt-large"))
    counted = {name: count(mine) for name, mine in rows.items()}
    ours = {"example": examples, "many": counted}
    paper = {
        "safeopt-true": "safe", "safeopt-small": "unsafe experiments", "safeopt-large": "no parameter can be certified",
    }  # fmt: skip
    headline = (
        f"of {work.settings['functions']} functions: true norm {counted['safeopt-true']['unsafe_runs']} unsafe runs, too small "
        f"{counted['safeopt-small']['unsafe_runs']}; too large: {counted['safeopt-large']['no_experiment_possible']} cannot start"
    )
    notes = (
        "The paper prints no numbers and does not give its function; runs.csv has the seeds from 0 on, the counts are over all.",
        f"Seed {SEED} is drawn: the first with the true norm safe, a fifth of it unsafe, and five times it certifying nothing.",
        "Too large is five times the true norm, as in the paper; too small is a fifth of it, as in the paper's toy example.",
        "The paper's first row is the true norm; the third row, Algorithm 4, which is not told the norm, is added.",
        "Threshold: 30 % quantile of f. Initial sample: between the 40 % and 50 % quantiles.",
    )
    return Outcome(headline, ours, paper, notes)


def _panel(
    ax: Any, problem: RKHSProblem, optimizer: SafeOptimizer, title: str, options: dict[str, Any], *, stopped: bool = False
) -> None:
    """The state of a run."""
    done = optimizer.state.step - 1
    unsafe = outcome(problem, optimizer, done)["unsafe"]
    reason = optimizer.stop_reason if stopped else None
    extra = f", {unsafe} unsafe" * bool(unsafe) + ("" if reason is None else f", {reason.value.replace('_', ' ')}")
    plot_state(optimizer, axes=ax, next_trial=False, best=False, title=f"{title}\n{done or 'no'} experiments{extra}", **options)
    ax.set(xlabel="parameter a", ylabel="reward f(a)")
    ax.label_outer()


def _too_large(work: Work, problem: RKHSProblem, options: dict[str, Any]) -> dict[str, Any]:
    """The run with five times the norm, as a picture of its own."""
    optimizer = METHODS["safeopt-large"].optimizer(problem, work.settings["m"], work.settings["points"])
    done = [*steps(problem, optimizer, work.settings["experiments"])][-1]
    result = outcome(problem, optimizer, work.settings["experiments"])
    figure = new_figure(7.2, 4.6)
    heading = "norm too large, B = 25: " + ("no experiment can be certified" if done == 0 else f"{done} experiments")
    plot_state(optimizer, axes=figure.subplots(), next_trial=False, best=False, title=heading, **options)
    figure.axes[0].set(xlabel="parameter a", ylabel="reward f(a)")
    legend(figure)
    work.picture("over-estimation.png", figure)
    return result


FIGURE = Figure("intro", "Fig. 1 and 8", "A norm that is too small is unsafe, one that is too large gets stuck", settings, make)

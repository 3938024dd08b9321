"""Safe optimization with a learned norm against two guessed norms, on one synthetic function: `make demo`."""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from safebo import SafeboError, SafeOptimizer, presets, problems, report
from safebo.exceptions import NormRefutedWarning, UnsafeMeasurementWarning

NORM, SEED = 5.0, 10


@dataclass
class Run:
    """One optimizer and what became of it."""

    name: str
    about: str
    opt: SafeOptimizer
    experiments: int = 0
    unsafe: int = 0
    score: float = 0.0  # true value of the best certified point: 0 is the initial point, 1 the best that safe steps can reach
    seconds: float = 0.0
    stopped: str = "budget used"


def execute(run: Run, problem: problems.RKHSProblem, budget: int, progress: Progress) -> None:
    """Ask, measure, tell, until the budget is used or the optimizer stops by itself."""
    task = progress.add_task(run.name, total=budget)
    measure = problem.plant(SEED)
    start = time.perf_counter()
    run.opt.tell(problem.initial, measure(problem.initial))
    while run.experiments < budget and (trial := run.opt.ask()) is not None:
        run.opt.tell(trial, measure(trial.params))
        run.experiments += 1
        run.unsafe += not problem.is_safe(trial.params)
        progress.advance(task)
    if run.opt.stop_reason is not None:
        run.stopped = run.opt.stop_reason.value.replace("_", " ")
    run.seconds = time.perf_counter() - start
    try:
        run.score = problem.score(problem.value(run.opt.best().params))
    except SafeboError:
        run.stopped = "nothing certified"
    progress.update(task, total=run.experiments)


def table(runs: list[Run]) -> Table:
    """One row per run."""
    result = Table()
    for heading in ("method", "experiments", "unsafe", "reached", "seconds", "stopped"):
        result.add_column(heading, justify="left" if heading in ("method", "stopped") else "right", no_wrap=True)
    for run in runs:
        unsafe = f"[bold red]{run.unsafe}[/]" if run.unsafe else "0"
        result.add_row(run.name, str(run.experiments), unsafe, f"{run.score:.0%}", f"{run.seconds:.1f}", run.stopped)
    return result


def picture(runs: list[Run], problem: problems.RKHSProblem, path: Path) -> None:
    """The final state of every run, side by side."""
    figure = report.new_figure(13.0, 4.6)
    panels = figure.subplots(1, len(runs), sharey=True)
    for axes, run in zip(panels, runs, strict=True):
        title = f"{run.name} ({run.about})\n{run.unsafe} of {run.experiments} unsafe, {run.score:.0%} of the reachable optimum"
        report.plot_state(run.opt, truth=problem.f, axes=axes, next_trial=False, title=title)
        axes.label_outer()
    report.legend(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=30, help="per method (default 30)")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the pictures (default out/demo)")
    options = parser.parse_args(arguments)

    console = Console()
    problem = problems.RKHSProblem.sample(dim=1, norm=NORM, seed=SEED)
    runs = [
        Run("Algorithm 4", "norm learned", presets.algorithm_4(problem.domain, problem.threshold, seed=SEED)),
        Run("SafeOpt, norm 1", "five times too small", presets.safeopt(problem.domain, problem.threshold, norm=NORM / 5.0)),
        Run("SafeOpt, norm 25", "five times too large", presets.safeopt(problem.domain, problem.threshold, norm=NORM * 5.0)),
    ]
    console.print(
        f"One function of norm {NORM:g}, unsafe below {problem.threshold:.2f}. Algorithm 4 learns the norm, SafeOpt is given one."
    )
    console.print("The first run on a machine compiles for up to 20 seconds.")
    columns = (TextColumn("{task.description:17}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, warnings.catch_warnings():
        for expected in (UnsafeMeasurementWarning, NormRefutedWarning):  # of the wrong guess; counted instead
            warnings.simplefilter("ignore", expected)
        for run in runs:
            execute(run, problem, options.experiments, progress)
        task = progress.add_task("pictures", total=2)
        picture(runs, problem, options.out / "demo.png")
        progress.advance(task)
        title = "Algorithm 4, experiment {step}"
        report.animate(runs[0].opt, options.out / "run.gif", truth=problem.f, fps=3, dpi=100, title=title)
        progress.advance(task)

    console.print(table(runs))
    console.print("reached: 0% is the initial point, 100% the best value within safe reach")
    console.print("one function, chosen to show the difference; statistics over 100: results/")
    for name in ("demo.png", "run.gif"):
        console.print(f"wrote {options.out / name}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

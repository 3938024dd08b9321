"""A live run with its page and report, then a learned norm against two guessed ones, on one synthetic function: `make demo`."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from safebo import SafeboError, SafeOptimizer, presets, problems, report
from safebo.exceptions import NormRefutedWarning, UnsafeMeasurementWarning
from safebo.report.html import html_report
from safebo.runs import CallablePlant, Campaign, Ledger, Measurement, RunConfig, Store, Watchdog
from safebo.runs.operate import Step, operate
from safebo.server import serving

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


@dataclass
class Follower:
    """Shows what the runner does; nobody has to approve anything in a demo."""

    progress: Progress
    task: TaskID

    def approve(self, step: Step) -> bool | None:
        """Asked only if the run wants approvals."""
        return True

    def refused(self, step: Step) -> str:
        """Never."""
        return ""

    def waits(self) -> bool:
        """For nobody."""
        return False

    def say(self, text: str) -> None:
        """The page shows it."""

    def measured(self, step: Step, result: Measurement, ledger: Ledger) -> None:
        """One more."""
        self.progress.update(self.task, completed=ledger.experiments)


def live(problem: problems.RKHSProblem, budget: int, pace: float, out: Path, console: Console, progress: Progress) -> None:
    """A durable run of the library's defaults with its live page, and the report that it leaves behind."""
    for name in ("demo.db", "demo.db-wal", "demo.db-shm"):
        (out / name).unlink(missing_ok=True)
    measure = problem.plant(SEED)

    def experiment(params: Mapping[str, float]) -> float:
        time.sleep(pace)  # a rig takes its time
        return measure(dict(params))

    opt = SafeOptimizer(problem.domain, problem.threshold, noise=problem.noise, seed=SEED)
    config = RunConfig(title="Demo: a synthetic plant", experiments=budget)
    with Store.open(out / "demo.db") as store, serving(store) as address:
        console.print(f"Live page, until this run ends: [bold]{address}[/]")
        campaign = Campaign.create(store, "demo", opt, config=config)
        campaign.tell(problem.initial, measure(problem.initial))
        task = progress.add_task("live run", total=budget)
        result = operate(campaign, Watchdog(CallablePlant(experiment), timeout=60.0), Follower(progress, task))
        progress.update(task, total=campaign.ledger.experiments)
        events, ledger = campaign.events(), campaign.ledger
        (out / "report.html").write_text(html_report(campaign.optimizer, ledger, events), encoding="utf-8")
        best = campaign.optimizer.best()
    console.print(f"The live run ended: {result.text}", soft_wrap=True)
    score, violations = problem.score(problem.value(best.params)), len(ledger.violations)
    console.print(f"best {best.params}: {score:.0%} of the way to the best value within safe reach, {violations} limits violated")
    console.print(f"wrote {out / 'report.html'}; look again with: safebo serve {out / 'demo.db'}", soft_wrap=True)


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
    parser.add_argument("--pace", type=float, default=0.5, help="seconds that an experiment of the live run takes (default 0.5)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder for record, report and picture (default out/demo)"
    )
    options = parser.parse_args(arguments)

    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    problem = problems.RKHSProblem.sample(dim=1, norm=NORM, seed=SEED)
    runs = [
        Run("Algorithm 4", "norm learned", presets.algorithm_4(problem.domain, problem.threshold, seed=SEED)),
        Run("SafeOpt, norm 1", "five times too small", presets.safeopt(problem.domain, problem.threshold, norm=NORM / 5.0)),
        Run("SafeOpt, norm 25", "five times too large", presets.safeopt(problem.domain, problem.threshold, norm=NORM * 5.0)),
    ]
    columns = (TextColumn("{task.description:17}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console.print("The first run on a machine compiles for up to 20 seconds.")
    with Progress(*columns, console=console) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", NormRefutedWarning)  # in the report
        live(problem, min(options.experiments, 20), options.pace, options.out, console, progress)
    console.print()
    console.print(
        f"One function of norm {NORM:g}, unsafe below {problem.threshold:.2f}. Algorithm 4 learns the norm, SafeOpt is given one."
    )
    with Progress(*columns, console=console) as progress, warnings.catch_warnings():
        for expected in (UnsafeMeasurementWarning, NormRefutedWarning):  # of the wrong guess; counted instead
            warnings.simplefilter("ignore", expected)
        for run in runs:
            execute(run, problem, options.experiments, progress)
        task = progress.add_task("picture", total=1)
        picture(runs, problem, options.out / "demo.png")
        progress.advance(task)

    console.print(table(runs))
    console.print("reached: 0% is the initial point, 100% the best value within safe reach")
    console.print("one function, chosen to show the difference; statistics over 100: results/")
    console.print(f"wrote {options.out / 'demo.png'}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The person at the terminal: shows what happens, asks for consent, takes measurements."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from safebo.cli.base import console
from safebo.exceptions import ExperimentAborted, InvalidValueError
from safebo.optimizer import Trial
from safebo.outputs import Output, number
from safebo.runs import Campaign, Ledger, Measurement
from safebo.runs.describe import limits, with_unit
from safebo.runs.doubts import doubts
from safebo.runs.operate import POLL, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress


def at_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def quantities(values: Mapping[str, float], units: Mapping[str, str]) -> str:
    """Values with names and units in one line."""
    return "  ".join(f"{name} = {value:.6g}{f' {units[name]}' if units.get(name) else ''}" for name, value in values.items())


class Terminal:
    """Follows a runner. With a person there (`asks`), consent is asked for; else approvals come from elsewhere."""

    def __init__(self, campaign: Campaign, who: str = "", *, asks: bool, waits: bool, bar: bool) -> None:
        self.campaign, self.who, self.asks, self._waits = campaign, who, asks, waits
        self.err = console(stderr=True)
        self._said = ""
        self._reason = ""
        self._bar = bar and self.err.is_terminal
        self._progress: Progress | None = None
        self._task: Any = None

    # -- what the runner calls ------------------------------------------------------------------------------------------

    def approve(self, step: Step) -> bool | None:
        """Ask the person, unless the approval comes from elsewhere in the meantime."""
        if not self.asks:
            return None
        with self.quiet():
            self.show(step)
            forget_typed()
            while True:
                changed = self.changes()
                answer = self.ask("Run it? [y]es, [n]o and keep away from it, [p]ause: ", changed)
                if answer is None:
                    return None
                if answer in ("y", "yes"):
                    return True
                if answer in ("n", "no"):
                    self._reason = self.ask("Why not? ") or ""
                    return False
                if answer in ("p", "pause", "q", "quit"):
                    self.campaign.pause("at the terminal", who=self.who)
                    return None

    def changes(self) -> Callable[[], bool]:
        """Whether anybody has written to the run since this was called."""
        seen = self.campaign.ledger.seq
        return lambda: self.campaign.ledger.seq != seen

    def refused(self, step: Step) -> str:
        """The reason that was given."""
        return self._reason

    def waits(self) -> bool:
        """Whether to wait for approvals from elsewhere."""
        return self._waits

    def say(self, text: str) -> None:
        """The present activity: in the bar, or as a line where there is none."""
        if self._progress is not None:
            self._progress.update(self._task, description=text[:60])
        elif text != self._said and not text.startswith(("looking", "experiment ")):
            self.err.print(text, markup=False)
            self._said = text

    def measured(self, step: Step, result: Measurement, ledger: Ledger) -> None:
        """One line per experiment."""
        units = ledger.config.units
        values = {"objective": result.objective, **result.constraints}
        outputs = ledger.state.outputs
        outside = [o.name for o in outputs if not o.satisfied(values[o.name])]
        label = "start" if step.pending is None else str(ledger.experiments)
        line = f"{label:>5}  {quantities(step.params, units)}  ->  {quantities(values, units)}  (number {ledger.told})"
        with self.quiet():
            if outside:
                self.err.print(f"{line}  OUTSIDE THE LIMIT: {', '.join(outside)}", style="bold red", markup=False)
            else:
                self.err.print(line, markup=False)
        if self._progress is not None:
            self._progress.update(self._task, completed=ledger.experiments)

    # -- showing and asking ---------------------------------------------------------------------------------------------

    def show(self, step: Step) -> None:
        """What is about to be sent, and its certificate."""
        ledger = self.campaign.ledger
        units = ledger.config.units
        self.err.print(f"\nNext experiment ({step.name}): {quantities(step.params, units)}", style="bold", markup=False)
        if step.pending is None:
            self.err.print("  a start that you called safe; it is not certified", markup=False)
            return
        trial = step.pending.trial
        for output in ledger.state.outputs:
            low, high = trial.bounds[output.name]
            unit = units.get(output.name)
            must = f", must be {limits(output, unit)}" if output.is_limit else ""
            self.err.print(f"  {output.name}: certified {with_unit(f'{low:.4g} to {high:.4g}', unit)}{must}", markup=False)
        self.err.print(f"  probability {trial.confidence:.4g} under the assumptions, norm bound {trial.norm:.3g}", markup=False)

    def ask(self, question: str, over: Callable[[], bool] = lambda: False) -> str | None:
        """A line from the person, lower case; None when `over` becomes true or there is no more input."""
        self.err.print(question, end="", markup=False)
        line = read_line(over)
        return None if line is None else line.strip().lower()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No moving bar while something is printed or asked."""
        progress = self._progress
        if progress is not None:
            progress.stop()
        try:
            yield
        finally:
            if progress is not None:
                progress.start()

    def __enter__(self) -> Terminal:
        if self._bar:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
            ledger = self.campaign.ledger
            self._progress = Progress(*columns, console=self.err, transient=True)
            self._task = self._progress.add_task("", total=ledger.config.experiments, completed=ledger.experiments)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def forget_typed() -> None:
    """Drop what was typed before the question was asked: it cannot be the answer to it."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows, no file
        import termios

        with contextlib.suppress(termios.error):  # no terminal
            termios.tcflush(sys.stdin, termios.TCIFLUSH)


def read_line(over: Callable[[], bool]) -> str | None:
    """A line of the standard input; None at its end, or as soon as `over` is true, where the system lets us look."""
    try:
        sys.stdin.fileno()
        while not select.select([sys.stdin], [], [], POLL)[0]:
            if over():
                return None
    except (OSError, ValueError):  # no file, or Windows: a line has to come
        pass
    line = sys.stdin.readline()
    return line if line else None


class Person:
    """A plant that is a person: reads what to set, runs the experiment, enters the measurement."""

    has_stop = False  # the person has to

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def reset(self) -> None:
        """The person's business."""

    def run(self, params: Mapping[str, float], /) -> Measurement:
        """Ask for the measurement."""
        ledger = self._terminal.campaign.ledger
        units = ledger.config.units
        trial = ledger.trial if ledger.trial is not None and ledger.trial.params == dict(params) else None
        with self._terminal.quiet():
            self._terminal.err.print(f"\nRun the experiment with {quantities(params, units)}", style="bold", markup=False)
            self._terminal.err.print('and enter what was measured, or "abort" and why.', markup=False)
            values = {o.name: self.value(o, trial, units) for o in ledger.state.outputs}
        return Measurement(values.pop("objective"), values)

    def value(self, output: Output, trial: Trial | None, units: Mapping[str, str]) -> float:
        """One measured value; one that is hard to believe is entered twice."""
        name, unit = output.name, units.get(output.name, "")
        question, before = f"{name}{f' [{unit}]' if unit else ''}: ", None
        while True:
            answer = self._terminal.ask(question)
            if answer is None:
                raise KeyboardInterrupt
            if answer.startswith("abort"):
                raise ExperimentAborted(answer.removeprefix("abort").strip(" :") or "aborted by the operator")
            try:
                value = number(float(answer), name)
            except (InvalidValueError, ValueError):
                self._terminal.err.print(f"{answer!r} is not a number.", markup=False)
                continue
            doubt = doubts({name: value}, trial, [output], units)
            if not doubt or value == before:
                return value
            before, question = value, f"{doubt[name]}: is that right? Enter it again: "

    def emergency_stop(self) -> None:
        """Tell the person."""
        self._terminal.err.print("\nSTOP the experiment: the run was stopped.", style="bold red", markup=False)

    def close(self) -> None:
        """Nothing."""

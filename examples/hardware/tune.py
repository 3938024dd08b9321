"""Tune the balancing controller of a pendulum that is somewhere else: behind a pipe, or behind a socket.

python examples/hardware/tune.py subprocess
python examples/hardware/rig.py socket --port 5555 &  python examples/hardware/tune.py socket --port 5555
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from safebo import Box, Matern, SafeOptimizer, Trial
from safebo.exceptions import SafeboError, StopFailedWarning, StopReason, UnsafeInitialSampleError
from safebo.runs import Drive, Measurement, Plant, SocketPlant, SubprocessPlant, Watchdog, drive
from safebo.runs.operate import interruptible

START = {"a1": 0.239, "a2": 0.424}  # known to be safe
THRESHOLD = 0.0  # the pendulum falls
EXPERIMENT, RESET = 60.0, 60.0  # seconds that an experiment and a reset may take; a real experiment takes about 8

RECORD = "aborted-run.json"  # all that was measured, where a run ends before its time
DONE, ABORTED, NOTHING_LEFT, VIOLATION, INTERRUPTED = 0, 1, 3, 4, 130  # exit status


def connect(options: argparse.Namespace) -> Plant:
    """The rig behind the chosen line, watched."""
    if options.via == "socket":
        plant: Plant = SocketPlant(options.host, options.port, timeout=EXPERIMENT, reset_timeout=RESET)
    else:
        rig = Path(__file__).with_name("rig.py")
        plant = SubprocessPlant([sys.executable, str(rig), "pipes"], timeout=EXPERIMENT, reset_timeout=RESET)
    return Watchdog(plant, timeout=EXPERIMENT + 5.0, reset_timeout=RESET + 5.0)


def show(number: int, trial: Trial, result: Measurement) -> None:
    """One line per experiment."""
    place = f"a1 {trial.params['a1']:.3f}  a2 {trial.params['a2']:.3f}"
    print(f"{number:3d}  {place}  certified above {trial.lower:.2f}, measured {result.objective:.2f}", flush=True)


def outcome(optimizer: SafeOptimizer, ended: Drive) -> int:
    """Say how the run ended and what is known by now; the exit status."""
    status = DONE
    if ended.violations:
        (a1, a2), (reward, *_) = optimizer.state.samples[-1].point, optimizer.state.samples[-1].values
        print(f"VIOLATION: a1 {a1:.3f}, a2 {a2:.3f} measured {reward:.2f}, below the threshold {THRESHOLD:g}.")
        print(StopReason.VIOLATION.advice)
        status = VIOLATION
    elif ended.stop_reason is not None:
        print(f"stopped after {ended.experiments} experiments, {ended.stop_reason.value}: {ended.stop_reason.advice}")
        status = DONE if ended.stop_reason is StopReason.CONVERGED else NOTHING_LEFT
    best = optimizer.best()
    known = f"a1 {best.params['a1']:.3f}, a2 {best.params['a2']:.3f}: between {best.lower:.2f} and {best.upper:.2f}"
    print(f"best {known}" if best.lower > THRESHOLD else f"nothing is certified to be safe; the largest lower bound has {known}")
    if status != DONE:
        save(optimizer)
    return status


def save(optimizer: SafeOptimizer) -> None:
    """Keep all that was measured."""
    if optimizer.state.step > 0:
        Path(RECORD).write_text(optimizer.state.to_json())
        print(f"The run so far is in {RECORD}; SafeOptimizer.from_json continues it.", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("via", choices=("subprocess", "socket"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5555)
    parser.add_argument("--experiments", type=int, default=30)
    options = parser.parse_args(arguments)
    warnings.simplefilter("always", StopFailedWarning)

    optimizer = SafeOptimizer(
        Box({"a1": (0.0, 1.0), "a2": (0.0, 1.0)}), THRESHOLD, noise=0.07, kernel=Matern(nu=1.5, lengthscale=0.2)
    )
    plant = connect(options)
    with interruptible(print):  # a second Ctrl-C interrupts neither the stop of the rig nor the saving
        try:
            ended = drive(
                optimizer, plant, options.experiments, initial=START,
                on_result=lambda trial, result: show(optimizer.state.step - 1, trial, result),
            )  # fmt: skip
        except KeyboardInterrupt as interrupt:
            print(f"Interrupted.{'' if getattr(interrupt, '__notes__', ()) else ' The rig was stopped.'}", file=sys.stderr)
            save(optimizer)
            return INTERRUPTED
        except UnsafeInitialSampleError as error:
            print(f"{error} The rig was stopped.", file=sys.stderr)
            return VIOLATION
        except SafeboError as error:  # an aborted experiment, for one
            print(error, file=sys.stderr)
            save(optimizer)
            return ABORTED
        finally:
            plant.close()
    return outcome(optimizer, ended)


if __name__ == "__main__":
    raise SystemExit(main())

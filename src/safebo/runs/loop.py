"""The loop between an optimizer and a plant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from safebo.exceptions import ExperimentAborted, StopReason
from safebo.optimizer import SafeOptimizer, Trial
from safebo.runs.measurement import Measurement, measurement
from safebo.runs.plants import Plant

OnAbort = Callable[[Trial, ExperimentAborted], bool]
OnResult = Callable[[Trial, Measurement], object]


@dataclass(frozen=True)
class Drive:
    """How a loop ended."""

    experiments: int
    aborted: tuple[ExperimentAborted, ...]
    stop_reason: StopReason | None
    """Why the optimizer had nothing more to ask for; None if the number of experiments was reached or `on_abort` ended it."""


def drive(
    optimizer: SafeOptimizer,
    plant: Plant,
    experiments: int,
    *,
    initial: Mapping[str, float] | None = None,
    on_abort: OnAbort | None = None,
    on_result: OnResult | None = None,
) -> Drive:
    """Reset, ask, run, tell, for a number of experiments or until the optimizer stops.

    initial    parameters known to be safe, measured first if the optimizer has no measurement yet
    on_abort   what to do with an aborted experiment. Default: `ExperimentAborted` is raised and ends the loop. A function may
               return False to end it quietly, or True to go on elsewhere: the optimizer is told of the abort and keeps away
    on_result  called with every trial and its measurement, after it was told

    Nothing is ever learned from an aborted experiment. Unless the loop goes on, the optimizer stays as it was: after the rig was
    checked, `drive` continues it with the same experiment. Any other exception stops the plant and is passed on.
    """
    done = 0
    aborted: list[ExperimentAborted] = []
    if initial is not None and optimizer.state.step == 0:
        result = _experiment(plant, initial, "the initial experiment")
        optimizer.tell(dict(initial), result.objective, result.constraints)
    while done < experiments:
        trial = optimizer.ask()
        if trial is None:
            return Drive(done, tuple(aborted), optimizer.stop_reason)
        try:
            result = _experiment(plant, trial.params, f"experiment {done + 1} of {experiments}")
        except ExperimentAborted as error:
            if on_abort is None:
                raise
            aborted.append(error)
            if not on_abort(trial, error):
                break
            optimizer.tell(trial, status="aborted", reason=error.reason)
            continue
        optimizer.tell(trial, result.objective, result.constraints)
        done += 1
        if on_result is not None:
            on_result(trial, result)
    return Drive(done, tuple(aborted), None)


def _experiment(plant: Plant, params: Mapping[str, float], name: str) -> Measurement:
    try:
        plant.reset()
        return measurement(plant.run(params))
    except ExperimentAborted as error:
        text = f"{name[0].upper()}{name[1:]} was aborted and not told to the optimizer: {error.reason}"
        raise ExperimentAborted(text, dict(params)) from error
    except BaseException:
        plant.emergency_stop()
        raise

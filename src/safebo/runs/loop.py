"""The loop between an optimizer and a plant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from safebo.exceptions import ExperimentAborted, InvalidValueError, PlantError, StopReason
from safebo.norms.base import count
from safebo.optimizer import SafeOptimizer, Trial
from safebo.runs.measurement import Measurement, measurement
from safebo.runs.plants import Plant, agreed, described, stop_after, stop_failure
from safebo.runs.words import values_text

OnAbort = Callable[[Trial, ExperimentAborted], bool]
OnResult = Callable[[Trial, Measurement], object]


class _NotStopped(PlantError):
    """A stop was tried and failed: it is not tried again."""


@dataclass(frozen=True)
class Drive:
    """How a loop ended."""

    experiments: int
    aborted: tuple[ExperimentAborted, ...]
    violations: int
    """Measurements outside a limit; unless `on_violation` says otherwise, the first one ends the loop."""
    stop_reason: StopReason | None
    """Why the optimizer had nothing more to ask for; None if something else ended the loop."""


def drive(
    optimizer: SafeOptimizer,
    plant: Plant,
    experiments: int,
    *,
    initial: Mapping[str, float] | None = None,
    on_abort: OnAbort | None = None,
    on_result: OnResult | None = None,
    on_violation: Literal["stop", "continue"] = "stop",
) -> Drive:
    """Reset, ask, run, tell, for a number of experiments or until the optimizer stops.

    initial       parameters known to be safe, measured first if the optimizer has no measurement yet
    on_abort      what to do with an aborted experiment. Default: `ExperimentAborted` is raised and ends the loop. A function may
                  return False to end it quietly, or True to go on elsewhere: the optimizer is told of the abort and keeps away
    on_result     called with every trial and its measurement, after it was told
    on_violation  after a measurement outside a limit, which is recorded in any case: "stop" (default), the plant first and then
                  the loop, or "continue"

    Nothing runs before all arguments are checked. Nothing is ever learned from an aborted experiment. Unless the loop goes on,
    the optimizer stays as it was: after the rig was checked, `drive` continues it with the same experiment. An answer with other
    limits than the optimizer's is an aborted experiment too. Any other exception stops the plant and is passed on, and if a
    stored run was stopped by somebody else or by a violation, the loop stops the plant as well. If the stop fails, `PlantError`
    is raised, after an interrupt (Ctrl-C) a `StopFailedWarning`.
    """
    number = count(experiments, "experiments", 0)
    if not isinstance(plant, Plant):
        raise InvalidValueError(f"{plant!r} is not a plant: it needs reset, run, emergency_stop and close.")
    if on_violation not in ("stop", "continue"):
        raise InvalidValueError(f"on_violation must be 'stop' or 'continue', got {on_violation!r}.")
    start = None if initial is None else optimizer.domain.as_dict(optimizer.domain.point(initial))
    try:
        return _drive(optimizer, plant, number, start, on_abort, on_result, on_violation == "stop")
    except (ExperimentAborted, _NotStopped):  # the plant was stopped already
        raise
    except Exception as error:
        try:
            plant.emergency_stop()
        except Exception as failed:
            raise PlantError(f"{described(error)} AND {stop_failure(failed)}") from error
        raise
    except BaseException as interrupt:
        stop_after(interrupt, plant)
        raise


def _drive(
    optimizer: SafeOptimizer,
    plant: Plant,
    experiments: int,
    initial: dict[str, float] | None,
    on_abort: OnAbort | None,
    on_result: OnResult | None,
    stop: bool,
) -> Drive:
    done = violations = 0
    aborted: list[ExperimentAborted] = []
    reason: StopReason | None = None
    used = False  # since the plant was last stopped: it may hold its last state
    if initial is not None and optimizer.state.step == 0:
        result = _experiment(optimizer, plant, initial, "the initial experiment")
        used = True
        optimizer.tell(initial, result.objective, result.constraints)
    while done < experiments:
        trial = optimizer.ask()
        if trial is None:
            reason = optimizer.stop_reason
            break
        try:
            result = _experiment(optimizer, plant, trial.params, f"experiment {done + 1} of {experiments}")
        except ExperimentAborted as error:
            if on_abort is None:
                raise
            aborted.append(error)
            used = False
            if not on_abort(trial, error):
                break
            optimizer.tell(trial, status="aborted", reason=error.reason)
            continue
        used = True
        optimizer.tell(trial, result.objective, result.constraints)
        done += 1
        outside = not optimizer.state.inside()[-1]
        violations += outside
        failed = _stop(plant) if outside and stop else None  # before anybody looks at the measurement
        if on_result is not None:
            on_result(trial, result)
        if failed is not None:
            raise _NotStopped(f"A measurement with {trial.params} was outside a limit AND {stop_failure(failed)}") from failed
        if outside and stop:
            used = False
            break
    if used and optimizer._journal is not None and optimizer._journal.halted in (StopReason.STOPPED, StopReason.VIOLATION):
        failed = _stop(plant)
        if failed is not None:
            raise _NotStopped(f"The run was stopped AND {stop_failure(failed)}") from failed
    return Drive(done, tuple(aborted), violations, reason)


def _stop(plant: Plant) -> Exception | None:
    """Stop the plant; why that failed, if it did."""
    try:
        plant.emergency_stop()
    except Exception as error:
        return error
    return None


def _experiment(optimizer: SafeOptimizer, plant: Plant, params: Mapping[str, float], name: str) -> Measurement:
    try:
        plant.reset()
        return agreed(measurement(plant.run(params)), [output.name for output in optimizer.state.outputs[1:]], plant)
    except ExperimentAborted as error:
        text = f"{name[0].upper()}{name[1:]} was aborted and not told to the optimizer: {error.reason}"
        text += f" Parameters: {values_text(params, {}, None)}."
        raise ExperimentAborted(text, dict(params)) from error

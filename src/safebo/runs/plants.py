"""Plants: whatever runs an experiment and returns a measurement.

A plant has four methods. `reset` brings it to the state that experiments start from, `run(params)` performs one experiment,
`emergency_stop` makes it harmless at once and may be called at any time, from another thread too, and more than once; it raises
if that is not certain. `close` ends the work with it. What `run` returns is the objective, or {"objective": ..,
"constraints": {name: value}}. A plant that cannot be stopped says so by `has_stop = False`: then nobody says that it was.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from safebo.exceptions import ExperimentAborted, InvalidValueError, NeverConnectedError, PlantError, StopFailedWarning
from safebo.runs.lines import seconds_of
from safebo.runs.measurement import Measurement, measurement
from safebo.runs.remote import SocketPlant, SubprocessPlant

__all__ = ["CallablePlant", "Measurement", "Plant", "SocketPlant", "SubprocessPlant", "Watchdog", "measurement"]

Answer = float | Mapping[str, Any] | Measurement
"""What `run` may return."""

STOPPED, NO_STOP = "The plant was stopped.", "The plant has no emergency stop: see to it that it is safe."


@runtime_checkable
class Plant(Protocol):
    """Anything with these methods is a plant."""

    def reset(self) -> None:
        """Bring the plant to the state that experiments start from."""

    def run(self, params: Mapping[str, float], /) -> Answer:
        """Perform one experiment; an exception means that there is no measurement."""

    def emergency_stop(self) -> None:
        """Make the plant harmless, whatever it is doing."""

    def close(self) -> None:
        """End the work with it."""


def _nothing() -> None:
    return None


class CallablePlant:
    """A function of the parameters as a plant; the other methods do nothing unless functions are given for them."""

    def __init__(
        self,
        measure: Callable[[Mapping[str, float]], Answer],
        *,
        reset: Callable[[], object] = _nothing,
        emergency_stop: Callable[[], object] = _nothing,
        close: Callable[[], object] = _nothing,
    ) -> None:
        for name, part in (("measure", measure), ("reset", reset), ("emergency_stop", emergency_stop), ("close", close)):
            if not callable(part):
                raise InvalidValueError(f"{name} must be callable, got {part!r}.")
        self._measure, self._reset, self._stop, self._close = measure, reset, emergency_stop, close
        self.has_stop = emergency_stop is not _nothing

    def reset(self) -> None:
        """Call the given function."""
        self._reset()

    def run(self, params: Mapping[str, float], /) -> Measurement:
        """The validated result of the function."""
        return measurement(self._measure(dict(params)))

    def emergency_stop(self) -> None:
        """Call the given function."""
        self._stop()

    def close(self) -> None:
        """Call the given function."""
        self._close()


class _Stopped(Exception):
    """A stop came before the plant was called: it is not called."""


class Watchdog:
    """A plant whose experiments end within `timeout` seconds: with a measurement, or as `ExperimentAborted`.

    A hang, an exception or an invalid answer stops the wrapped plant (`emergency_stop`) and aborts the experiment; nothing of
    it can be told. Only a connection that was never made needs no stop. The next experiment needs a successful `reset`. The
    plant works in a thread of its own: one that hangs forever is left behind, and as long as it does, `reset` is refused. An
    interrupt (Ctrl-C) stops the plant as well and is passed on; should the stop fail, `StopFailedWarning` says so.

    An `emergency_stop` from another thread comes before an experiment, and then nothing runs, or it stops it: what that returns
    is no measurement, and the stop is repeated at its end, since it may have begun while the stop was made.

    This guards against software that fails. It does not replace limits and a watchdog in the rig itself, which also work when
    this computer does not.
    """

    def __init__(self, plant: Plant, *, timeout: float, reset_timeout: float | None = None, stop_timeout: float = 5.0) -> None:
        if not isinstance(plant, Plant):
            raise InvalidValueError(f"{plant!r} is not a plant: it needs reset, run, emergency_stop and close.")
        self.plant = plant
        self.timeout, self.stop_timeout = seconds_of(timeout, "timeout"), seconds_of(stop_timeout, "stop_timeout")
        self.reset_timeout = self.timeout if reset_timeout is None else seconds_of(reset_timeout, "reset_timeout")
        self.has_stop = bool(getattr(plant, "has_stop", True))
        self._busy: threading.Thread | None = None
        self._ready = False
        self._stops = 0  # a stop during a reset outlasts it
        self._gate = threading.RLock()  # a stop comes before the plant is called, or after; a signal's handler may stop as well

    def reset(self) -> None:
        """Reset the plant; without success, or with a stop in the meantime, the watchdog refuses to run."""
        self._ready = False
        stops = self._stops
        if self._busy is not None:
            self._busy.join(1.0)  # a call that the stop has ended may still be on its way out
        if self._busy is not None and self._busy.is_alive():
            raise ExperimentAborted(
                "The plant still hangs in an earlier call: it cannot be reset. Check the rig and start again."
            )
        self._guarded("reset", self.plant.reset, self.reset_timeout, None, stops)
        with self._gate:
            self._ready = self._stops == stops
        if not self._ready:
            said = stop_now(self.plant, self._stop)  # the reset may have switched it on again after the stop
            raise ExperimentAborted(f"A stop came while the plant was being reset, so it was repeated afterwards. {said}")

    def run(self, params: Mapping[str, float], /) -> Measurement:
        """One experiment, or `ExperimentAborted`."""
        given = dict(params)
        with self._gate:
            ready, stops = self._ready, self._stops
        if not ready:
            raise ExperimentAborted("The plant was not reset since it was stopped: call reset() first. Nothing was run.", given)
        result: Measurement = self._guarded("run", lambda: measurement(self.plant.run(given)), self.timeout, given, stops)
        if self._stops != stops:
            said = stop_now(self.plant, self._stop)
            raise ExperimentAborted(
                f"A stop came during the experiment: what it returned, {result}, does not count. {said} Parameters: {given}.",
                given,
            )
        return result

    def emergency_stop(self) -> None:
        """Stop the plant, in at most `stop_timeout` seconds."""
        with self._gate:
            self._stops += 1
            self._ready = False
        self._stop()

    def close(self) -> None:
        """Close the plant."""
        self._ready = False
        self.plant.close()

    def _guarded(self, name: str, work: Callable[[], Any], seconds: float, params: dict[str, float] | None, stops: int) -> Any:
        """The result of `work`, done in a thread; stops the plant and raises `ExperimentAborted` if there is none in time.

        Nothing is done if there were more than `stops` stops when the thread begins.
        """
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def begin() -> Any:
            with self._gate:
                if self._stops != stops:
                    raise _Stopped
            return work()

        self._busy = _thread(begin, outcome, failure)
        try:
            self._busy.start()
            self._busy.join(seconds)
        except BaseException as interrupt:
            stop_after(interrupt, self)
            raise
        if outcome:
            return outcome[0]
        cause = failure[0] if failure else None
        if isinstance(cause, _Stopped):
            raise ExperimentAborted(f"A stop came just before the {name}: call reset() again. Nothing was run.", params)
        why = f"{name} hung: no answer within {seconds:g} s" if cause is None else f"{name} failed: {described(cause)}"
        with self._gate:
            self._stops += 1  # a thread that has not even begun by now does nothing any more
            self._ready = False
        stopped = "" if isinstance(cause, NeverConnectedError) else f" {stop_now(self.plant, self._stop)}"
        raise ExperimentAborted(f"{why}.{stopped}", params) from cause

    def _stop(self) -> None:
        """Stop the plant; PlantError if that fails or takes too long."""
        failure: list[BaseException] = []
        thread = _thread(self.plant.emergency_stop, [], failure)
        thread.start()
        thread.join(self.stop_timeout)
        if thread.is_alive():
            raise PlantError(f"THE EMERGENCY STOP HUNG as well ({self.stop_timeout:g} s): switch the rig off by hand.")
        if failure:
            raise PlantError(stop_failure(failure[0])) from failure[0]


def agreed(result: Measurement, names: Iterable[str], plant: Plant) -> Measurement:
    """A measurement of the limits `names` and no others; otherwise the plant is stopped and the experiment aborted."""
    wanted, found = set(names), set(result.constraints)
    if wanted == found:
        return result
    stopped = stop_now(plant)
    differences = (("lacks", sorted(wanted - found)), ("has unknown", sorted(found - wanted)))
    what = " and ".join(f"{verb} {which}" for verb, which in differences if which)
    raise ExperimentAborted(
        f"The plant's answer {what}: it answered objective {result.objective:g}, limits {result.constraints}. {stopped} Correct "
        "the plant or the names of the limits."
    )


def stop_now(plant: Plant, stop: Callable[[], object] | None = None) -> str:
    """Stop a plant, or do what `stop` does instead, and say in a sentence what is known of it."""
    try:
        (stop or plant.emergency_stop)()
    except Exception as error:
        return stop_failure(error)
    return STOPPED if getattr(plant, "has_stop", True) else NO_STOP


def stop_failure(error: BaseException) -> str:
    """A failed emergency stop in words, said once however many layers it went through."""
    said = str(error).strip()
    if said.startswith("THE EMERGENCY STOP"):
        return said
    by_hand = "" if "by hand" in said else " Switch the rig off by hand."
    return f"THE EMERGENCY STOP FAILED: {described(error)}.{by_hand}"


def stop_after(interrupt: BaseException, plant: Plant) -> None:
    """Stop a plant after an interrupt, which is never replaced: a stop that fails becomes a note on it and a warning, once.

    What is known of the plant is the `stop_outcome` of the interrupt.
    """
    said = stop_now(plant)
    interrupt.stop_outcome = said  # type: ignore[attr-defined]
    notes = getattr(interrupt, "__notes__", [])
    if said not in (STOPPED, NO_STOP, *notes):
        interrupt.__notes__ = [*notes, said]  # type: ignore[attr-defined,unused-ignore]
        with contextlib.suppress(StopFailedWarning):  # where warnings are errors, the note has to do
            warnings.warn(said, StopFailedWarning, stacklevel=3)


def stop_outcome(interrupt: BaseException) -> str:
    """What is known of the plant after an interrupt, in a sentence; empty if no stop was tried."""
    return str(getattr(interrupt, "stop_outcome", ""))


def _thread(work: Callable[[], Any], outcome: list[Any], failure: list[BaseException]) -> threading.Thread:
    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    return threading.Thread(target=body, daemon=True)


def described(error: BaseException) -> str:
    """An error in one line, without the stop at its end."""
    return f"{type(error).__name__}: {error}".rstrip(": .")

"""Errors, warnings and stop reasons.

Every error about a wrong value derives from `ValueError`, names the value and says what to do. An error never leaves a
half-changed state behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class SafeboError(Exception):
    """Base class of every error raised by safebo."""


class InvalidValueError(SafeboError, ValueError):
    """A value that the library cannot accept: NaN, wrong shape, outside the domain, unknown name."""


class ConfigError(InvalidValueError):
    """A configuration file with mistakes: `problems` are (line, message), the text has one `file:line: message` each."""

    def __init__(self, file: str, problems: Iterable[tuple[int, str]]) -> None:
        self.file, self.problems = file, tuple(sorted(problems))
        super().__init__("\n".join(f"{file}:{line}: {message}" for line, message in self.problems))


class InfeasibleScenarioError(InvalidValueError):
    """(m, gamma, kappa) leave no feasible number of discards in Theorem 1; the message names the smallest m that works."""


class UnsafeInitialSampleError(InvalidValueError):
    """The first measurement violates a limit, so there is no safe set to start from."""


class UnknownTrialError(InvalidValueError):
    """A trial that this optimizer never issued."""


class AlreadyToldError(InvalidValueError):
    """A trial whose measurement has been told before."""


class NoInitialSampleError(SafeboError):
    """`ask` before any safe measurement was told."""


class NotPositiveDefiniteError(SafeboError):
    """A kernel matrix could not be factorised even with the largest named jitter."""


class MissingExtraError(SafeboError, ImportError):
    """An optional dependency is missing; the message says which extra installs it."""


class StorageError(SafeboError):
    """The database could not be read or written. Nothing was changed in it, nor in the optimizer."""

    shown = False  # whether the message has the measurements that could not be stored


class InDoubtError(StorageError):
    """The connection was lost at the moment of storing: whether the step is stored is unknown. Look before it is repeated."""


class UnknownRunError(SafeboError, LookupError):
    """There is no run of this name in the database."""


class ConflictError(SafeboError):
    """A step that the run's record does not allow: told twice, another process was quicker, not approved, stopped."""


class OvertakenError(ConflictError):
    """Another process wrote to the run first. Nothing was stored: read the run again and decide anew."""


class DrivenError(ConflictError):
    """Another process is sending the run's experiments to the plant at this moment."""


class DriveLostError(DrivenError):
    """This process drove the run and was silent for too long: it may not write its experiments any more. Its plant is stopped."""

    shown = False  # whether the message has the measurements that could not be stored


class UntrustedPlantError(ConflictError):
    """The record of a run names a program that this user has not agreed to run on this computer."""


class PendingTrialError(ConflictError):
    """A trial was handed out and nothing was told about it. Only a person knows whether it was executed."""


class PlantError(SafeboError):
    """A plant could not run an experiment, or its answer could not be used; whether it ran is unknown unless the message says."""


class NeverConnectedError(PlantError):
    """A plant's connection was never made, so nothing was ever sent to it and there is nothing to stop."""


class PlantTimeoutError(PlantError, TimeoutError):
    """A plant did not answer in time."""


class InvalidMeasurementError(PlantError, InvalidValueError):
    """A plant answered with something that is not a measurement; the message shows it."""


class WorkerLostError(SafeboError, RuntimeError):
    """Worker processes of a study died again and again; the message names the jobs that they had."""


class ExperimentAborted(SafeboError):
    """An experiment did not end with a measurement. A stop of the plant was tried, and nothing may be told about it.

    `reason` is one line and says what is known of the plant, `params` are those of the experiment; the error behind it is the
    `__cause__`.
    """

    def __init__(self, reason: str, params: dict[str, float] | None = None) -> None:
        super().__init__(reason)
        self.reason, self.params = reason, params


class SafeboWarning(UserWarning):
    """Base class of every warning issued by safebo."""


class JitterWarning(SafeboWarning):
    """A kernel matrix needed an additional diagonal term; the amount is recorded with the posterior."""


class NoGuaranteeWarning(SafeboWarning):
    """What was chosen to certify experiments promises nothing, or has been seen to promise too much."""


class NormRefutedWarning(SafeboWarning):
    """The data refute the norm bound of a sub-domain; it was raised and its nested intervals restarted."""


class ScaleWarning(SafeboWarning):
    """Measured values are far from the scale that the kernel and the norm estimator assume."""


class UnsafeMeasurementWarning(SafeboWarning):
    """A measurement lies outside a limit."""


class SettingsWarning(SafeboWarning):
    """Settings that deserve a second look before anything moves."""


class StopFailedWarning(SafeboWarning):
    """The emergency stop after an interrupt failed or is not confirmed: the rig must be switched off by hand."""


class StopReason(Enum):
    """Why `ask` returned `None`. `advice` says what the person at the bench can do about it."""

    CONVERGED = "converged"
    EMPTY_SAFE_SET = "empty_safe_set"
    NO_CANDIDATES = "no_candidates"
    BLOCKED = "blocked"
    PAUSED = "paused"
    STOPPED = "stopped"
    VIOLATION = "violation"

    @property
    def advice(self) -> str:
        """One sentence on what this means and what to do next."""
        return _ADVICE[self]


_ADVICE = {
    StopReason.CONVERGED: (
        "Every potential maximiser and expander is known to within min_width: take best(), or lower min_width to refine it."
    ),
    StopReason.EMPTY_SAFE_SET: (
        "No parameter can be certified as safe, not even next to the measured ones: measure a safe start again, a few times "
        "(noise averages out), start from a measurement further above the threshold, check that the noise is not overstated, or "
        "use smaller cubes so that the local norm is smaller."
    ),
    StopReason.NO_CANDIDATES: (
        "The certified safe set holds neither a potential maximiser nor an expander on the grid that could be measured: use more "
        "points_per_axis, smaller cubes, or a longer stride."
    ),
    StopReason.BLOCKED: (
        "Everything left to measure lies next to an aborted experiment: find out why it was aborted, and take best() or choose a "
        "smaller abort_radius."
    ),
    StopReason.PAUSED: "The run was paused: resume it when the experiments may go on.",
    StopReason.STOPPED: "The run was stopped: find out who stopped it and why before it is resumed.",
    StopReason.VIOLATION: (
        "A measurement was outside a limit although its experiment was certified: check the rig, the noise and the lengthscale "
        "before the run is resumed."
    ),
}

"""Where an optimizer writes before it acts: the journal of a durable run.

An optimizer with a journal hands every step to it first and changes its own state only when that has returned: what is not
written did not happen. `safebo.runs` has the journal that writes to a database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from safebo.exceptions import DriveLostError, InDoubtError, StopReason, StorageError
from safebo.state import Abort, NormRecord, Sample

if TYPE_CHECKING:
    from safebo.optimizer import Trial


class Journal(Protocol):
    """Keeps every step of an optimizer. A method that raises leaves the optimizer as it was."""

    def refresh(self) -> None:
        """Take over what other processes have written; called before every step."""

    @property
    def halted(self) -> StopReason | None:
        """Why nothing may be asked for at present: paused, stopped, a violation."""

    @property
    def pending(self) -> Waiting | None:
        """The trial that was asked for and has neither been told nor aborted nor withdrawn."""

    def asked(self, trial: Trial, record: NormRecord | None) -> bool:
        """Before a trial is handed out; `record` are the norms that it is certified with.

        False if its certificate was not of the present any more: it is withdrawn, and another one is to be asked for.
        """

    def exhausted(self, reason: StopReason) -> None:
        """There is nothing left to ask for."""

    def told(self, samples: tuple[Sample, ...], record: NormRecord | None) -> int:
        """Before measurements count; `record` are the norms that a trial was certified with.

        Returns the number of the last one in the record, which also counts those that were taken back.
        """

    def refused(self, reason: str) -> None:
        """A first measurement outside a limit was told: it is no start, and nothing may follow before a person has looked."""

    def aborted(self, abort: Abort) -> None:
        """Before an aborted experiment counts."""

    def retried(self, trial: Trial) -> bool:
        """Before the pending trial is handed out once more; False if it is withdrawn instead, since its certificate is old."""


class Waiting(Protocol):
    """A trial that waits for its measurement, or for going to the plant."""

    @property
    def trial(self) -> Trial:
        """The trial and its certificate."""

    @property
    def record(self) -> NormRecord | None:
        """The norms that it was certified with; None in runs that were stored before these were."""

    @property
    def stale(self) -> bool:
        """Whether something was told, aborted or taken back since it was asked for: its certificate is of the past."""


@contextlib.contextmanager
def not_stored(rows: Sequence[tuple[Any, ...]]) -> Iterator[None]:
    """A storage error while measurements are told shows them, so that they are not lost with the program."""
    try:
        yield
    except (StorageError, DriveLostError) as error:
        if error.shown:
            raise
        shown = "; ".join(
            f"{', '.join(repr(v) for v in values if v is not None)} at {_place(what)}" for what, *values in rows[:10]
        )
        if isinstance(error, InDoubtError):
            told: StorageError | DriveLostError = InDoubtError(
                f"{error} PERHAPS NOT STORED: {shown}. Write it down, and look at the run first."
            )
        else:
            told = (DriveLostError if isinstance(error, DriveLostError) else StorageError)(
                f"{error} NOT STORED: {shown}. Write it down, and tell it again."
            )
        told.shown = True
        raise told from error


def _place(what: object) -> str:
    return str(getattr(what, "params", what))

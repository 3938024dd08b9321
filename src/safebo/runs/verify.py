"""Whether the record of a run is complete: every event, every request, and the rules that they obey."""

from __future__ import annotations

from dataclasses import dataclass

from safebo.exceptions import StorageError
from safebo.runs.ledger import Ledger
from safebo.runs.storage import Store


@dataclass(frozen=True)
class Verified:
    """What a complete record holds."""

    events: int
    measurements: int
    aborts: int


def verify(store: Store, name: str) -> Verified:
    """Read everything: the file, the seals of all events and requests, their number, and the rules; writes nothing.

    `StorageError` names what is damaged.
    """
    store.check()
    events = store.events(name)
    try:
        ledger = Ledger.of(name, events)
        state = ledger.state
    except StorageError:
        raise
    except Exception as error:  # whatever a record that somebody has sealed again can hold
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise StorageError(f"The record of run {name!r} in {store.where} breaks the rules of a run: {line}") from error
    return Verified(len(events), len(state.samples), len(state.aborts))

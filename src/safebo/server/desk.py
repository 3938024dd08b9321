"""The runs that a server has in hand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from safebo.exceptions import OvertakenError
from safebo.runs.campaign import Campaign
from safebo.runs.ledger import Ledger
from safebo.runs.storage import Store
from safebo.server.reader import Reader
from safebo.server.record import Record

Result = TypeVar("Result")

ATTEMPTS = 8
"""How often a step is tried again when others write to the same run at the same moment."""


class Run:
    """One run: to compute with, to command, and to look at. Each reads what the others have written before it acts."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.reader = Reader(store, name)
        self.record = Record(store, name)

    @cached_property
    def worker(self) -> Campaign:
        """Asks and tells; busy for seconds at times."""
        return Campaign(self.store, self.ledger)

    @cached_property
    def gate(self) -> Campaign:
        """Rejects, retries, resumes, takes back: never waits for the worker, who finds out when he wants to write."""
        return Campaign(self.store, self.ledger)

    @cached_property
    def switch(self) -> Campaign:
        """Pauses, stops and approves: never waits for the gate either, which computes when it takes a trial out of the way."""
        return Campaign(self.store, self.ledger)

    @property
    def ledger(self) -> Ledger:
        """The run, with what has been written by now."""
        return self.reader.ledger


class Desk:
    """Runs by name; those not used for the longest time are put away."""

    def __init__(self, store: Store, keep: int = 16) -> None:
        self.store, self._keep = store, keep
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lock = threading.Lock()

    def ledger(self, name: str) -> Ledger:
        """A run as it is now, without taking it in hand."""
        with self._lock:
            run = self._runs.get(name)
        return Ledger.of(name, self.store.events(name)) if run is None else run.ledger

    def run(self, name: str) -> Run:
        """The run of this name."""
        with self._lock:
            if name in self._runs:
                self._runs.move_to_end(name)
                return self._runs[name]
        run = Run(self.store, name)
        with self._lock:
            kept = self._runs.setdefault(name, run)
            while len(self._runs) > self._keep:
                self._runs.popitem(last=False)
            return kept


def persist(step: Callable[[], Result]) -> Result:
    """Try a step again as long as others are quicker: what it finds then decides."""
    for _ in range(ATTEMPTS - 1):
        try:
            return step()
        except OvertakenError:
            continue
    return step()

"""Looking at a run: what follows from its record, computed once per state and kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from safebo.analysis import repeat
from safebo.domain import Cube
from safebo.exceptions import InvalidValueError
from safebo.inspection import SubDomainView
from safebo.optimizer import Best, SafeOptimizer, Trial
from safebo.runs.campaign import Follower
from safebo.runs.ledger import Ledger
from safebo.runs.storage import Store
from safebo.server.slices import Cut, cut, sets_of
from safebo.state import Settings, decode

KEPT = 64
"""Slices of a run that are kept."""

Norms = tuple[float, ...]
Result = TypeVar("Result")


@dataclass
class History:
    """The norm bounds of every sub-domain after each record: cube -> [(step, norm per output)]."""

    norms: dict[Cube, list[tuple[int, Norms]]] = field(default_factory=dict)

    def add(self, step: int, cube: Cube, norms: Norms) -> None:
        """One more."""
        self.norms.setdefault(cube, []).append((step, norms))


class Reader:
    """Answers questions about a run with an optimizer of its own: it never waits for who writes."""

    def __init__(self, store: Store, name: str) -> None:
        self._follower = Follower(store, name)
        self._lock = threading.RLock()
        self._settings: Settings | None = None
        self._history = History()
        self._version = ""
        self._kept: OrderedDict[Any, Any] = OrderedDict()

    @property
    def ledger(self) -> Ledger:
        """The run, with what has been written by now."""
        return self._follower.ledger

    @property
    def settings(self) -> Settings:
        """What never changes during the run."""
        if self._settings is None:
            self._settings = Settings(**{k: decode(v) for k, v in self._follower.ledger.created.body["settings"].items()})
        return self._settings

    def best(self) -> tuple[Best, int]:
        """The best parameters, and how many measurements they rest on."""

        def work(optimizer: SafeOptimizer) -> tuple[Best, int]:
            return optimizer.best(), optimizer.state.step

        return self._once("best", work)

    def cut(
        self, names: tuple[str, ...], fixed: dict[str, float], output: str, points: int, trial: Trial | None
    ) -> tuple[Cut, int]:
        """A slice in which the trial can be seen, and how many measurements it rests on."""

        def work(optimizer: SafeOptimizer) -> tuple[Cut, int]:
            optimizer._require_start()
            return cut(optimizer, names, fixed, output, points, self._sets(), trial), optimizer.state.step

        return self._once((names, tuple(sorted(fixed.items())), output, points, trial and trial.id), work)

    def norms(self) -> tuple[History, int]:
        """The norm bounds by now: of all committed steps, and of the present one."""

        def work(optimizer: SafeOptimizer) -> tuple[History, int]:
            analysis = optimizer._require_analysis()
            result = History({cube: list(past) for cube, past in self._history.norms.items()})
            for cube, subdomain in analysis.subdomains.items():
                if subdomain is not optimizer._committed.get(cube):
                    result.add(optimizer.state.step, cube, tuple(o.norm for o in subdomain.outputs))
            return result, optimizer.state.step

        return self._once("norms", work)

    def _sets(self) -> list[SubDomainView] | None:
        return self._once("sets", sets_of)

    def _once(self, key: Any, work: Callable[[SafeOptimizer], Result]) -> Result:
        with self._lock:
            optimizer = self._follower.optimizer()
            version = optimizer.state.digest()
            if version != self._version:
                self._advance(optimizer)
                self._version = version
                self._kept.clear()
            if key in self._kept:
                self._kept.move_to_end(key)
                kept: Result = self._kept[key]
                return kept
            result = self._kept[key] = work(optimizer)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return result

    def _advance(self, optimizer: SafeOptimizer) -> None:
        """Repeat the recorded steps one by one, and note the norms of each."""
        state = optimizer.state
        if optimizer._replayed == 0:  # a fresh start: a measurement was taken back, or a late one came
            self._history = History()
        while optimizer._replayed < len(state.records):
            record, before = state.records[optimizer._replayed], optimizer._committed
            optimizer._committed = repeat(state, before, record)
            optimizer._replayed += 1
            for cube, subdomain in optimizer._committed.items():
                if subdomain is not before.get(cube):
                    self._history.add(record.step, cube, tuple(o.norm for o in subdomain.outputs))


def places(texts: list[str]) -> dict[str, float]:
    """`name:value` pairs of a query."""
    result = {}
    for text in texts:
        name, colon, value = text.rpartition(":")
        try:
            result[name] = float(value)
        except ValueError:
            colon = ""
        if not colon:
            raise InvalidValueError(f"at takes name:value such as kp:1.5, got {text!r:.100}.")
    return result

"""The record of a run as it is sent: every event is read and written out once, for all who want to see it."""

from __future__ import annotations

import threading
from typing import Any

from safebo.runs.storage import Event, Store
from safebo.server.problems import encoded

BATCH = 64 * 1024
"""Bytes that are sent at once."""


def plain(item: Event) -> dict[str, Any]:
    """One entry of the record."""
    return {"seq": item.seq, "kind": item.kind, "at": item.at, "who": item.who, "body": item.body}


class Record:
    """The events of a run as JSON, in the order of their numbers."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self._lock = threading.Lock()
        self._digest = ""
        self._events: list[bytes] = []
        self._heads: list[bytes] = []
        self._refutations: list[dict[str, Any]] = []

    @property
    def last(self) -> int:
        """Number of the last event that has been read."""
        return len(self._events)

    def update(self) -> int:
        """Read what is new; returns the number of the last event."""
        with self._lock:
            for event in self.store.events(self.name, len(self._events), self._digest):
                if event.kind == "asked":
                    self._refutations += event.body["trial"]["refutations"]
                self._heads.append(f"id: {event.seq}\nevent: {event.kind}\ndata: ".encode("ascii"))
                self._events.append(encoded(plain(event)))
                self._digest = event.digest
            return len(self._events)

    def events(self, after: int = 0, limit: int | None = None) -> bytes:
        """Events after number `after`, as a JSON array."""
        end = None if limit is None else after + limit
        return b"[" + b",".join(self._events[after:end]) + b"]"

    def batch(self, after: int) -> tuple[bytes, int]:
        """As many Server-Sent Events after number `after` as are sent at once, and the number of the last of them."""
        parts, size, last = [], 0, after
        while last < len(self._events) and size < BATCH:
            parts += [self._heads[last], self._events[last], b"\n\n"]
            size += len(parts[-2])
            last += 1
        return b"".join(parts), last

    @property
    def refutations(self) -> list[dict[str, Any]]:
        """The refuted norm bounds of all asked trials."""
        return self._refutations

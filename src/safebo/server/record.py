"""The record of a run as it is sent: every event is read and written out once, for all who want to see it."""

from __future__ import annotations

import threading
from typing import Any

from safebo.runs.storage import Event, Store
from safebo.runs.words import event_text
from safebo.server.problems import encoded
from safebo.state import Settings, decode

BATCH = 64 * 1024
"""Bytes that are sent at once."""


class Reader:
    """Puts the entries of a run into words, in their order, and counts its measurements."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._units: dict[str, str] = {}
        self._told = 0

    def plain(self, item: Event) -> dict[str, Any]:
        """One entry of the record: as it is, in words, and with its number if it is a measurement."""
        if item.kind == "created":
            self._settings = Settings(**{key: decode(value) for key, value in item.body["settings"].items()})
            self._units, self._told = dict(item.body["config"].get("units", {})), len(item.body["samples"])
        elif item.kind == "configured":
            self._units = item.body["changes"].get("units", self._units)
        self._told += item.kind == "told"
        return {
            "seq": item.seq,
            "kind": item.kind,
            "at": item.at,
            "who": item.who,
            "text": "" if self._settings is None else event_text(item, self._settings, self._units),
            "number": self._told if item.kind == "told" else None,
            "body": item.body,
        }


class Record:
    """The events of a run as JSON, in the order of their numbers."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self._lock = threading.Lock()
        self._digest = ""
        self._reader = Reader()
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
                self._events.append(encoded(self._reader.plain(event)))
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

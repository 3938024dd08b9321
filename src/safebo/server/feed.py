"""The record of a run as it grows: Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from safebo.runs.storage import Event
from safebo.server.answers import event as plain

POLL = 0.25
"""Seconds between two looks at the database; what this server writes itself is sent at once."""

HEARTBEAT = 5.0
"""Seconds after which something is sent in any case, so that a lost connection is noticed."""

Fetch = Callable[[str, int], Awaitable[list[Event]]]


class Feed:
    """Wakes the streams of a run when there is something new. One look at the database serves all of them."""

    def __init__(self, fetch: Fetch, last: Callable[[str], Awaitable[int]]) -> None:
        self._fetch, self._last = fetch, last
        self._seen: dict[str, int] = {}
        self._streams: dict[str, set[asyncio.Event]] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    @property
    def open(self) -> int:
        """Streams at present."""
        return sum(len(streams) for streams in self._streams.values())

    def wake(self, name: str) -> None:
        """This server has written to the run."""
        for bell in self._streams.get(name, ()):
            bell.set()

    async def follow(self, name: str, after: int, seconds: float) -> AsyncIterator[str]:
        """Events after number `after`, as they come, for at most so many seconds."""
        bell, end, last = asyncio.Event(), time.monotonic() + seconds, after
        self._streams.setdefault(name, set()).add(bell)
        if name not in self._watchers:
            self._watchers[name] = asyncio.create_task(self._watch(name))
        try:
            yield "retry: 2000\n\n"
            while True:
                bell.clear()
                for item in await self._fetch(name, last):
                    last = item.seq
                    yield f"id: {item.seq}\nevent: {item.kind}\ndata: {json.dumps(plain(item))}\n\n"
                left = end - time.monotonic()
                if left <= 0.0:
                    return
                try:
                    await asyncio.wait_for(bell.wait(), min(HEARTBEAT, left))
                except asyncio.TimeoutError:
                    yield f": {last}\n\n"
        finally:
            self._streams[name].discard(bell)
            if not self._streams[name]:
                del self._streams[name]
                self._seen.pop(name, None)
                if (watcher := self._watchers.pop(name, None)) is not None:
                    watcher.cancel()

    async def _watch(self, name: str) -> None:
        """Look for what other processes write."""
        while True:
            await asyncio.sleep(POLL)
            try:
                last = await self._last(name)
            except Exception:  # the streams' own look at the database says what is wrong
                last = -1
            if last != self._seen.get(name):
                self._seen[name] = last
                self.wake(name)

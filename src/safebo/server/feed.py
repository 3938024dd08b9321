"""The record of a run as it grows: Server-Sent Events."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from safebo.server.record import Record

POLL = 0.25
"""Seconds between two looks at the database; what this server writes itself is sent at once."""

HEARTBEAT = 5.0
"""Seconds after which something is sent in any case, so that a lost connection is noticed."""

Update = Callable[[Record], Awaitable[int]]


class _Channel:
    """The streams of one run."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.bells: set[asyncio.Event] = set()
        self.wanted = asyncio.Event()
        self.watcher: asyncio.Task[None] | None = None
        self.trouble: Exception | None = None

    def ring(self) -> None:
        for bell in self.bells:
            bell.set()


class Feed:
    """Wakes the streams of a run when there is something new. One look at the database serves all of them."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self._channels: dict[str, _Channel] = {}
        self.open: Counter[str] = Counter()
        """Streams at present, by caller."""

    def wake(self, name: str) -> None:
        """This server has written to the run."""
        if (channel := self._channels.get(name)) is not None:
            channel.wanted.set()

    async def follow(self, record: Record, after: int, seconds: float, caller: str) -> AsyncIterator[bytes]:
        """Events after number `after`, as they come, for at most so many seconds; the record has been brought up to date."""
        bell, end, last, name = asyncio.Event(), time.monotonic() + seconds, after, record.name
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = _Channel(record)
            channel.watcher = asyncio.create_task(self._watch(channel))
        channel.bells.add(bell)
        self.open[caller] += 1
        try:
            yield b"retry: 2000\n\n"
            while True:
                bell.clear()
                while last < channel.record.last:
                    content, last = channel.record.batch(last)
                    yield content
                    await asyncio.sleep(0)  # others come in between
                if channel.trouble is not None:
                    raise channel.trouble
                left = end - time.monotonic()
                if left <= 0.0:
                    return
                try:
                    await asyncio.wait_for(bell.wait(), min(HEARTBEAT, left))
                except asyncio.TimeoutError:
                    yield b": %d\n\n" % last
        finally:
            channel.bells.discard(bell)
            self.open[caller] -= 1
            self.open += Counter()  # without those that have none
            if not channel.bells and self._channels.get(name) is channel:
                del self._channels[name]
                if channel.watcher is not None:
                    channel.watcher.cancel()

    async def _watch(self, channel: _Channel) -> None:
        """Look for what this server and other processes write."""
        while True:
            channel.wanted.clear()
            before, channel.trouble = channel.record.last, None
            try:
                await self._update(channel.record)
            except Exception as error:  # each stream ends with it
                channel.trouble = error
            if channel.record.last != before or channel.trouble is not None:
                channel.ring()
            try:
                await asyncio.wait_for(channel.wanted.wait(), POLL)
            except asyncio.TimeoutError:
                continue

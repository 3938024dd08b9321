"""Limits on what one client may send: bytes per request, requests per second."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a server takes from one client. Zero requests per second: no limit."""

    body: int = 256 * 1024
    """Bytes of a request's body at most."""
    rate: float = 100.0
    """Requests per second, on average."""
    burst: int = 200
    """Requests at once."""
    failures: int = 60
    """Requests without a valid token per minute from one address."""
    streams: int = 256
    """Event streams at once, over all clients."""
    streams_each: int = 64
    """Event streams at once of one caller."""
    waiting: int = 64
    """Requests of a kind that wait for a computation at once, over all clients."""
    waiting_each: int = 16
    """The same of one caller."""
    connections: int = 16_384
    """Connections at once, as far as the system allows; one address or one caller has half of them at most."""
    patience: float = 20.0
    """Seconds for the head of a request, for its body (of some connections half as much again), and for reading its answer."""


class Buckets:
    """Token buckets: each key may spend `burst` at once and gains `rate` per second."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic, keys: int = 4096) -> None:
        self._rate, self._burst, self._clock, self._keys = rate, burst, clock, keys
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> level, time
        self._lock = threading.Lock()

    def spend(self, key: str, amount: float = 1.0) -> float:
        """Seconds to wait before the next attempt; 0 if this one is allowed."""
        if not self._rate:
            return 0.0
        with self._lock:
            level, now = self._level(key)
            if level < amount:
                self._levels[key] = level, now
                return max((amount - level) / self._rate, 1e-3)
            self._levels[key] = level - amount, now
            while len(self._levels) > self._keys:
                self._levels.popitem(last=False)
            return 0.0

    def _level(self, key: str) -> tuple[float, float]:
        now = self._clock()
        level, then = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - then) * self._rate)
        self._levels[key] = level, now
        return level, now


def retry_after(seconds: float) -> str:
    """The value of a Retry-After header."""
    return str(max(1, math.ceil(seconds)))

"""Connections that carry one line at a time: the pipes of a process, and TCP."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from safebo.exceptions import InvalidMeasurementError, InvalidValueError, PlantError, PlantTimeoutError
from safebo.outputs import number
from safebo.runs.measurement import shown

MAX_LINE = 1_000_000
"""Bytes of an answer at most."""

BREATH = 0.2
"""Seconds that a process has to end by itself even in an emergency: its input has closed, and it may have got a Ctrl-C as well. A
signal in the middle of its own orderly end would kill it, and leave nobody who knows whether the rig is off."""

GRACE = 2.0
"""Seconds that a process has to end by itself before it is terminated, and then before it is killed."""

LONGEST_WAIT = 1e6
"""Seconds of a time-out at most, eleven days; sockets accept no more than twice that."""

KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
"""A silent connection is probed after 5 s and given up 3 s later, where the system lets us choose."""


def seconds_of(value: object, name: str) -> float:
    """A validated time-out."""
    seconds = number(value, name)
    if not 0.0 < seconds <= LONGEST_WAIT:
        raise InvalidValueError(f"{name} must be positive and at most {LONGEST_WAIT:g} s, got {value!r}.")
    return seconds


class Line(Protocol):
    """A connection that carries one line at a time; deadlines are those of time.monotonic."""

    def send(self, line: bytes, deadline: float) -> None:
        """Send a line; PlantError if that is not possible."""

    def receive(self, deadline: float) -> bytes:
        """The next line; PlantTimeoutError after the deadline, PlantError if there will be none."""

    def close(self, patience: float = 0.0) -> bool:
        """End the connection, whatever its state; the other side has `patience` seconds to end in order.

        False if it did not: whether it made the rig safe is unknown.
        """


class Pipe:
    """The pipes of a process. A thread reads its output, so that waiting for a line can end."""

    def __init__(self, command: Sequence[str], folder: str | None = None) -> None:
        try:
            self._process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=folder)
        except OSError as error:
            raise PlantError(f"The rig's program {list(command)} cannot be started: {error}.") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._lines: queue.Queue[bytes | None] = queue.Queue()  # None: the end
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        pending = b""
        with contextlib.suppress(OSError, ValueError):
            while len(pending) <= MAX_LINE and (chunk := self._out.read(65536)):
                *whole, pending = (pending + chunk).split(b"\n")
                for line in whole:
                    self._lines.put(line)
        self._lines.put(None)

    def send(self, line: bytes, deadline: float) -> None:
        """Write to the process, which must not have said anything unasked."""
        with contextlib.suppress(queue.Empty):
            unasked = self._lines.get_nowait()
            said = "ended" if unasked is None else f"said something unasked, {shown(unasked)}"
            raise PlantError(f"The rig's program {said} ({self._status()}). Nothing was sent.")
        try:
            self._in.write(line)
        except (OSError, ValueError) as error:  # ValueError: closed by an emergency stop
            raise PlantError(f"The rig's program is gone ({self._status()}): {error}.") from error

    def receive(self, deadline: float) -> bytes:
        """The next line of its output."""
        try:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            raise PlantTimeoutError("No line from the rig's program.") from None
        if line is None:
            raise PlantError(f"The rig's program ended without an answer ({self._status()}).")
        return line

    def expect_end(self, seconds: float) -> None:
        """Close the input and wait for the process to end well."""
        self._in.close()
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise PlantTimeoutError(f"The rig's program answered but did not end within {seconds:g} s.") from None
        if status != 0:
            raise PlantError(f"The rig's program answered but ended with status {status}.")

    def _status(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"exit status {self._process.wait(0.2)}"
        return "still running"

    def close(self, patience: float = 0.0) -> bool:
        """Close the input; terminate the process if it does not end in time, then kill it.

        True if it ended by itself with status 0: it has switched the rig off. A process that a signal killed has not said so.
        Windows only knows how to kill: there it has more time in any case.
        """
        process, forced = self._process, False
        patience = max(patience, GRACE if os.name == "nt" else BREATH)
        with contextlib.suppress(OSError):
            self._in.close()
        for end, seconds in ((None, patience), (process.terminate, GRACE), (process.kill, None)):
            if end is not None and process.poll() is None:
                end()
                forced = os.name == "nt"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        self._reader.join(GRACE)
        if not self._reader.is_alive():  # a grandchild may still hold the other end
            self._out.close()
        return not forced and process.returncode == 0


class Socket:
    """A TCP connection."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=seconds)
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
            raise PlantError(f"No connection to the rig at {host}:{port}: {error}. Nothing was sent.") from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._pending = b""

    def send(self, line: bytes, deadline: float) -> None:
        """Write to the other side, which must not have said anything unasked."""
        if self._pending:
            raise PlantError(f"The rig said something unasked, {shown(self._pending)}. Nothing was sent.")
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            self._socket.sendall(line)
        except OSError as error:
            raise PlantError(f"The connection to the rig broke: {error}.") from error

    def receive(self, deadline: float) -> bytes:
        """The next line."""
        while b"\n" not in self._pending:
            if len(self._pending) > MAX_LINE:
                raise InvalidMeasurementError(f"The rig's answer has no end: {shown(self._pending)}.")
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                chunk = self._socket.recv(65536)
            except TimeoutError:
                raise PlantTimeoutError("No line from the rig.") from None
            except OSError as error:
                raise PlantError(f"The connection to the rig broke: {error}.") from error
            if not chunk:
                raise PlantError("The rig closed the connection without an answer.")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def close(self, patience: float = 0.0) -> bool:
        """Close the connection."""
        self._socket.close()
        return True

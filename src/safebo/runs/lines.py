"""Connections that carry one line at a time: the pipes of a process, and TCP."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Protocol

from safebo.exceptions import InvalidMeasurementError, InvalidValueError, PlantError, PlantTimeoutError
from safebo.outputs import number
from safebo.runs.keeper import BREATH, GRACE
from safebo.runs.measurement import shown
from safebo.runs.programs import Ending, start

MAX_LINE = 1_000_000
"""Bytes of an answer at most."""

CHUNK = 65536
"""Bytes that are read at once."""

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

    def close(self, patience: float = 0.0) -> Ending:
        """End the connection, whatever its state; the other side has `patience` seconds to end in order.

        May be called again, for what could not be ended.
        """


def _next(pending: bytes, more: Callable[[], bytes]) -> tuple[bytes, bytes]:
    """The next line and what follows it; `more` gives further bytes."""
    while b"\n" not in pending:
        if len(pending) > MAX_LINE:
            raise InvalidMeasurementError(f"The rig's answer has no end: {shown(pending)}.")
        pending += more()
    line, _, rest = pending.partition(b"\n")
    return line, rest


class Pipe:
    """The pipes of a program. A thread reads its output, so that waiting for a line can end.

    The thread never holds more than a chunk or two: a program that talks on waits until somebody listens.
    """

    def __init__(self, command: Sequence[str], folder: str | None = None) -> None:
        try:
            self._program = start(command, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except (OSError, ValueError) as error:
            raise PlantError(f"The rig's program {list(command)} cannot be started: {error}.") from error
        assert self._program.stdin is not None and self._program.stdout is not None
        self._in = self._program.stdin
        self._pending = b""
        self._chunks: queue.Queue[bytes] = queue.Queue(1)  # an empty one is the end
        self._closed = threading.Event()
        threading.Thread(target=_listen, args=(self._program.stdout, self._chunks, self._closed), daemon=True).start()

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._program.pid

    def send(self, line: bytes, deadline: float) -> None:
        """Write to the program, which must not have said anything unasked."""
        self.quiet()
        try:
            self._in.write(line)
        except (OSError, ValueError) as error:  # ValueError: closed by an emergency stop
            raise PlantError(f"The rig's program is gone ({self._status()}): {error}.") from error

    def quiet(self) -> None:
        """PlantError if the program has said something unasked, or has ended."""
        if not self._pending:
            with contextlib.suppress(queue.Empty):
                self._pending = self._chunks.get_nowait()
                if not self._pending:
                    raise PlantError(f"The rig's program ended ({self._status()}). Nothing was sent.")
        if self._pending:
            raise PlantError(
                f"The rig's program said something unasked, {shown(self._pending)} ({self._status()}). Nothing was sent."
            )

    def receive(self, deadline: float) -> bytes:
        """The next line of its output."""

        def more() -> bytes:
            try:
                chunk = self._chunks.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise PlantTimeoutError("No line from the rig's program.") from None
            if not chunk:
                raise PlantError(f"The rig's program ended without an answer ({self._status()}).")
            return chunk

        line, self._pending = _next(self._pending, more)
        return line

    def expect_end(self, seconds: float) -> None:
        """Close the input and wait for the program to end well, with all that it has started and without another word."""
        self._in.close()
        status = self._program.wait(seconds)
        if status is None:
            raise PlantTimeoutError(f"The rig's program answered but did not end within {seconds:g} s.")
        if status != 0:
            raise PlantError(f"The rig's program answered but ended with status {status}.")
        if not self._program.end(BREATH).orderly:
            raise PlantError("The rig's program answered and ended, but left processes behind, which were ended.")
        with contextlib.suppress(queue.Empty):
            self._pending += self._chunks.get(timeout=GRACE)  # its end, as a rule
        if self._pending:
            raise PlantError(f"The rig's program said something after its answer, {shown(self._pending)}.")

    def _status(self) -> str:
        status = self._program.wait(0.2)
        return "still running" if status is None else f"exit status {status}"

    def close(self, patience: float = 0.0) -> Ending:
        """Close the input, terminate the program and all that it has started if they do not end in time, then kill them.

        Orderly if the program ended with status 0: it has switched the rig off. One that a signal killed has not said so.
        """
        with contextlib.suppress(OSError):
            self._in.close()
        self._closed.set()
        ending = self._program.end(max(patience, BREATH))
        with contextlib.suppress(queue.Full):  # what could not be ended may hold the pipe open: nobody waits for that
            self._chunks.put_nowait(b"")
        return ending


def _listen(source: IO[bytes], chunks: queue.Queue[bytes], closed: threading.Event) -> None:
    """Hand over what a program says, chunk by chunk, until its end or ours; nobody waits for the end of the pipe."""
    chunk = b"."
    with contextlib.suppress(OSError, ValueError), source:
        while chunk and not closed.is_set():
            chunk = source.read(CHUNK)
            while not closed.is_set():
                with contextlib.suppress(queue.Full):
                    chunks.put(chunk, timeout=BREATH)
                    break
    with contextlib.suppress(queue.Full):  # whoever still waits waits no longer
        chunks.put_nowait(b"")


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
        self.quiet()
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            self._socket.sendall(line)
        except OSError as error:
            raise PlantError(f"The connection to the rig broke: {error}.") from error

    def quiet(self) -> None:
        """PlantError if the rig has said something unasked, or is gone."""
        if not self._pending:
            try:
                self._socket.setblocking(False)
                self._pending = self._socket.recv(CHUNK)
            except BlockingIOError:
                return
            except OSError as error:
                raise PlantError(f"The connection to the rig broke: {error}. Nothing was sent.") from error
        said = f"said something unasked, {shown(self._pending)}" if self._pending else "closed the connection"
        raise PlantError(f"The rig {said}. Nothing was sent.")

    def receive(self, deadline: float) -> bytes:
        """The next line."""

        def more() -> bytes:
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                chunk = self._socket.recv(CHUNK)
            except TimeoutError:
                raise PlantTimeoutError("No line from the rig.") from None
            except OSError as error:
                raise PlantError(f"The connection to the rig broke: {error}.") from error
            if not chunk:
                raise PlantError("The rig closed the connection without an answer.")
            return chunk

        line, self._pending = _next(self._pending, more)
        return line

    def close(self, patience: float = 0.0) -> Ending:
        """Close the connection."""
        with contextlib.suppress(OSError):  # wakes whoever waits on it, in another thread
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        return Ending()

"""Plants on the other side of a pipe or a socket: one line of JSON there, one line back.

    {"id": 1804289383, "command": "run", "params": {"a1": 0.2, "a2": 0.4}}
    {"id": 1804289383, "objective": 0.61, "constraints": {"torque": -1.1}}

    {"id": 846930886, "command": "reset"}       {"id": 846930886}      the rig is ready for an experiment
    {"id": 1681692777, "command": "stop"}       {"id": 1681692777}     sockets only, on a second connection: the motor is off
    any command                                 {"id": .., "error": "arm is blocked"}

Every answer carries the id of its request, a random whole number of at most 31 bits: a late answer is never taken for that of
another experiment, and none can be written in advance. After a time-out or an error the line is closed; a new one is made by the
next `reset`, never within an experiment, and no request is sent twice: an experiment that was sent may have been executed.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from safebo.exceptions import (
    InvalidMeasurementError,
    InvalidValueError,
    NeverConnectedError,
    PlantError,
    PlantTimeoutError,
    StopFailedWarning,
)
from safebo.outputs import number
from safebo.runs.keeper import GRACE
from safebo.runs.lines import Line, Pipe, Socket, seconds_of
from safebo.runs.measurement import Measurement, decode, encode, measurement, shown
from safebo.runs.programs import Ending, succeed


class LinePlant(ABC):
    """A plant behind a `Line`; subclasses say how to open one and how to stop the rig.

    Stops with nothing started or sent in between are one stop. One that failed is tried again by the next that comes after it.
    """

    def __init__(self, timeout: float, reset_timeout: float | None = None) -> None:
        self.timeout = seconds_of(timeout, "timeout")
        self.reset_timeout = self.timeout if reset_timeout is None else seconds_of(reset_timeout, "reset_timeout")
        self._line: Line | None = None
        self._stops = self._stops_over = 0  # emergency stops that were asked for, and those that were made
        self._acts = 0  # how often something was started or sent
        self._stopped_at, self._stop_failed = -1, ""  # acts before the last stop, and what went wrong with it
        self._connected = False  # ever
        self._opened = threading.Event()  # no line is being opened at this moment
        self._opened.set()
        self._ending, self._endings = Ending(), 0  # how the last line ended, and how many have
        self._unended: Line | None = None  # a line of which something could not be ended
        self._state, self._dropping, self._stopping = threading.Lock(), threading.Lock(), threading.Lock()

    @abstractmethod
    def open_line(self) -> Line:
        """A new connection to the rig."""

    @abstractmethod
    def stop_rig(self) -> None:
        """Stop the rig and break the connection; PlantError if it is not certain that the rig is off."""

    def reset(self) -> None:
        """Connect if there is no connection, and bring the rig to where experiments start."""
        self._request(self._line or self._connect(), {"command": "reset"}, self.reset_timeout)
        self._ending = Ending()

    def run(self, params: Mapping[str, float]) -> Measurement:
        """One experiment. It is sent once, over the connection that `reset` made."""
        if self._line is None:
            raise PlantError("There is no connection to the rig: call reset() first. Nothing was sent.")
        answer = self._request(self._line, {"command": "run", "params": dict(params)}, self.timeout)
        try:
            return measurement(answer)
        except InvalidMeasurementError:
            self._drop()
            raise

    def emergency_stop(self) -> None:
        """Stop the rig and break the connection; PlantError if it is not certain that the rig is off."""
        with self._state:
            self._stops += 1
            begun = self._stops_over
        with self._stopping:
            together = self._stops_over != begun
            if self._stopped_at == self._acts and (together or not self._stop_failed):
                if self._stop_failed:
                    raise PlantError(self._stop_failed)
                return
            self._stopped_at, self._stop_failed = self._acts, "The emergency stop was interrupted. Switch the rig off by hand."
            try:
                self.stop_rig()
                self._stop_failed = ""
            except PlantError as error:
                self._stop_failed = str(error)
                raise
            finally:
                self._stops_over += 1

    def close(self) -> None:
        """End the connection; a program has two seconds to end in order."""
        self._drop(GRACE)

    def _act(self) -> None:
        """Something is started or sent: an earlier stop says nothing any more."""
        with self._state:
            self._acts += 1

    def _connect(self) -> Line:
        """Open a line, unless an emergency stop comes in the meantime."""
        if self._survivors():
            raise PlantError(
                f"{self._survivors()} of the rig's last program could not be ended and may still drive it. Nothing was started."
            )
        stops = self._stops
        self._act()
        self._opened.clear()
        try:
            line = self.open_line()
            with self._state:
                stopped, self._connected, self._line = self._stops != stops, True, line
            if stopped:
                self._act()  # it was started after the stop, perhaps
                self._drop()
        except PlantError as error:
            if self._connected:
                raise
            raise NeverConnectedError(str(error)) from error
        finally:
            self._opened.set()
        if stopped:
            raise PlantError("An emergency stop came while the connection was made. Nothing was sent.")
        return line

    def _survivors(self) -> str:
        """What could not be ended so far."""
        line = self._unended
        if line is None:
            return ""
        self._ending = line.close()
        if not self._ending.left:
            self._unended = None
        return self._ending.left

    def _drop(self, patience: float = 0.0) -> bool:
        """End the line; False if there was none."""
        with self._dropping:  # whoever comes second waits for the end as well
            with self._state:
                line, self._line = self._line, None
            if line is None:
                return False
            self._ending, self._unended = Ending(orderly=False), line  # unless the rest is not interrupted
            self._endings += 1
            self._ending = line.close(patience)
            if not self._ending.left:
                self._unended = None
            return True

    def _request(self, line: Line, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a message and wait for the answer with its id; anything unexpected breaks the connection."""
        self._act()
        try:
            return exchange(line, message, seconds)
        except BaseException:
            self._drop()
            raise


def exchange(line: Line, message: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer to a message, without its id, which nobody can know before the message was sent."""
    deadline = time.monotonic() + seconds
    identity = 2 + secrets.randbelow(2**31 - 2)  # 1 is equal to true
    line.send(encode({"id": identity, **message}), deadline)
    try:
        answer = decode(line.receive(deadline))
    except PlantTimeoutError:
        raise PlantTimeoutError(f"No answer to {message['command']!r} within {seconds:g} s.") from None
    if answer.pop("id", None) != identity:
        raise InvalidMeasurementError(f"The answer to request {identity} carries another id or none: {shown(answer)}.")
    if "error" in answer:
        raise PlantError(f"The rig reports an error: {shown(answer['error'])}.")
    return answer


def _program(value: object, name: str) -> tuple[str, ...]:
    """A validated command line."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidValueError(f"{name} must be a list: the program and its arguments, got {value!r}.")
    for part in value:
        if not isinstance(part, (str, os.PathLike)) or "\0" in os.fsdecode(part):
            raise InvalidValueError(f"{name} must be a list of texts, got {part!r} in {value!r}.")
    return tuple(os.fsdecode(part) for part in value)


UNCONFIRMED = (
    "The rig's program was killed or crashed, or left something running, and may not have stopped the rig: the stop is not "
    "confirmed. Switch the rig off by hand."
)


class SubprocessPlant(LinePlant):
    """A rig's program that reads requests from its standard input and writes answers to its standard output.

    command     program and arguments; what it writes to standard error goes to ours
    persistent  True: one process for all experiments, started by `reset`; False: one process per experiment, which gets a
                single "run" request, answers it and exits
    stop        a program that switches the rig off, run by `emergency_stop` before the program is ended, and once more if
                that did not end in order; it must exit with status 0 only if the rig is off
    folder      where both programs run; default: the current folder

    A program runs in a session of its own, without a terminal: a Ctrl-C does not reach it. When its standard input closes or it
    is terminated, it must leave the rig in a safe state and exit with status 0. Everything that it has started ends with it, also
    behind a start script, and when this process is killed. If it must be killed, or ends in another way, or before something that
    it has started, `emergency_stop` raises unless the stop program succeeded: nobody knows whether the rig is off.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        reset_timeout: float | None = None,
        persistent: bool = True,
        stop: Sequence[str] | None = None,
        folder: str | None = None,
    ) -> None:
        super().__init__(timeout, reset_timeout)
        self.command, self.persistent, self.folder = _program(command, "command"), persistent, folder
        self.stop = None if stop is None else _program(stop, "stop")

    def open_line(self) -> Line:
        """Start the program."""
        return Pipe(self.command, self.folder)

    def reset(self) -> None:
        """Start the program if it does not run, and let it reset the rig; nothing to do for one process per experiment."""
        if self.persistent:
            super().reset()

    def run(self, params: Mapping[str, float]) -> Measurement:
        """One experiment, in the running process or in one of its own."""
        if self.persistent:
            return super().run(params)
        pipe = self._connect()
        assert isinstance(pipe, Pipe)
        try:
            answer = self._request(pipe, {"command": "run", "params": dict(params)}, self.timeout)
            pipe.expect_end(GRACE)
            return measurement(answer)
        finally:
            self._drop()

    def stop_rig(self) -> None:
        """Run the stop program if there is one, close the rig's program's input, terminate it 0.2 s later, kill it if it stays.

        With the program ends everything that it has started. PlantError if it is not certain that the rig is off.
        """
        before = self._endings
        try:
            self._run_stop_program()
        finally:
            self._drop()
        if not self._opened.wait(GRACE):  # whoever starts it ends it again at once
            raise PlantError("The rig's program is only being started: the stop is not confirmed. Switch the rig off by hand.")
        if self._survivors():
            raise PlantError(f"{self._survivors()} of the rig's program could not be ended. Switch the rig off by hand.")
        if self._ending.orderly:
            return
        if self.stop is None:
            raise PlantError(UNCONFIRMED)
        if self._endings != before:
            self._run_stop_program()  # the program may have switched the rig on again before it ended

    def close(self) -> None:
        """Close the program's input; it has two seconds to end in order.

        If it does not, the stop program is run; `StopFailedWarning` if it is not certain that the rig is off.
        """
        if not self._drop(GRACE) or self._ending.orderly:
            return
        try:
            if self._survivors():
                raise PlantError(f"{self._survivors()} of the rig's program could not be ended. Switch the rig off by hand.")
            if self.stop is None:
                raise PlantError(UNCONFIRMED)
            self._run_stop_program()
        except PlantError as error:
            warnings.warn(str(error), StopFailedWarning, stacklevel=2)

    def _run_stop_program(self) -> None:
        if self.stop is None:
            return
        try:
            succeed(self.stop, self.folder, GRACE)
        except PlantError as error:
            raise PlantError(f"The stop program {list(self.stop)} failed: {error}. Switch the rig off by hand.") from error


class SocketPlant(LinePlant):
    """A rig's server at host:port, TCP. `emergency_stop` uses a connection of its own, which the server must accept at any time.

    When a connection breaks, the server must stop the rig.
    """

    def __init__(
        self, host: str, port: int, *, timeout: float, reset_timeout: float | None = None, stop_timeout: float = GRACE
    ) -> None:
        super().__init__(timeout, reset_timeout)
        if not isinstance(host, str) or not host or "\0" in host:
            raise InvalidValueError(f"host must be a name or an address, such as '192.168.0.7', got {host!r}.")
        if number(port, "port") not in range(1, 65536):
            raise InvalidValueError(f"port must be a whole number from 1 to 65535, got {port!r}.")
        self.host, self.port, self.stop_timeout = host, int(port), seconds_of(stop_timeout, "stop_timeout")

    def open_line(self) -> Line:
        """Connect."""
        return Socket(self.host, self.port, self.reset_timeout)

    def stop_rig(self) -> None:
        """Break the connection, and tell the server to stop, over a new one."""
        self._drop()
        line = Socket(self.host, self.port, self.stop_timeout)
        try:
            exchange(line, {"command": "stop"}, self.stop_timeout)
        finally:
            line.close()

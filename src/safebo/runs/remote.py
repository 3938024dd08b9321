"""Plants on the other side of a pipe or a socket: one line of JSON there, one line back.

    {"id": 7, "command": "run", "params": {"a1": 0.2, "a2": 0.4}}
    {"id": 7, "objective": 0.61, "constraints": {"torque": -1.1}}

    {"id": 8, "command": "reset"}       {"id": 8}              the rig is ready for an experiment
    {"id": 9, "command": "stop"}        {"id": 9}              sockets only, on a second connection: the motor is off
    any command                         {"id": .., "error": "arm is blocked"}

Every answer carries the id of its request, so that a late answer is never taken for that of another experiment. After a time-out
or an error the line is closed; a new one is made by the next `reset`, never within an experiment, and no request is sent twice:
an experiment that was sent may have been executed.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from safebo.exceptions import InvalidMeasurementError, InvalidValueError, NeverConnectedError, PlantError, PlantTimeoutError
from safebo.outputs import number
from safebo.runs.lines import GRACE, Line, Pipe, Socket, seconds_of
from safebo.runs.measurement import Measurement, decode, encode, measurement, shown


class LinePlant(ABC):
    """A plant behind a `Line`; subclasses say how to open one and how to stop the rig."""

    def __init__(self, timeout: float, reset_timeout: float | None = None) -> None:
        self.timeout = seconds_of(timeout, "timeout")
        self.reset_timeout = self.timeout if reset_timeout is None else seconds_of(reset_timeout, "reset_timeout")
        self._line: Line | None = None
        self._id = 0
        self._stops = 0  # emergency stops so far
        self._connected = False  # ever
        self._in_order = True  # whether the last line ended so
        self._state, self._dropping = threading.Lock(), threading.Lock()

    @abstractmethod
    def open_line(self) -> Line:
        """A new connection to the rig."""

    def reset(self) -> None:
        """Connect if there is no connection, and bring the rig to where experiments start."""
        self._request(self._line or self._connect(), {"command": "reset"}, self.reset_timeout)
        self._in_order = True

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
        """Break the connection; the rig must stop by itself when that happens."""
        self._count_stop()
        self._drop()

    def close(self) -> None:
        """End the connection; a program has two seconds to end in order."""
        self._drop(GRACE)

    def _connect(self) -> Line:
        """Open a line, unless an emergency stop comes in the meantime."""
        stops = self._stops
        try:
            line = self.open_line()
        except PlantError as error:
            if self._connected:
                raise
            raise NeverConnectedError(str(error)) from error
        with self._state:
            stopped, self._connected = self._stops != stops, True
            if not stopped:
                self._line = line
        if stopped:
            line.close()
            raise PlantError("An emergency stop came while the connection was made. Nothing was sent.")
        return line

    def _count_stop(self) -> None:
        with self._state:
            self._stops += 1

    def _drop(self, patience: float = 0.0) -> None:
        with self._dropping:  # whoever comes second waits for the end as well
            with self._state:
                line, self._line = self._line, None
            if line is not None:
                self._in_order = line.close(patience)

    def _request(self, line: Line, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a message and wait for the answer with its id; anything unexpected breaks the connection."""
        self._id += 1
        try:
            return exchange(line, {"id": self._id, **message}, seconds)
        except BaseException:
            self._drop()
            raise


def exchange(line: Line, message: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer to a message, without its id."""
    deadline = time.monotonic() + seconds
    line.send(encode(message), deadline)
    try:
        answer = decode(line.receive(deadline))
    except PlantTimeoutError:
        raise PlantTimeoutError(f"No answer to {message['command']!r} within {seconds:g} s.") from None
    if answer.pop("id", None) != message["id"]:
        raise InvalidMeasurementError(f"The answer to request {message['id']} carries another id or none: {shown(answer)}.")
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


class SubprocessPlant(LinePlant):
    """A rig's program that reads requests from its standard input and writes answers to its standard output.

    command     program and arguments; what it writes to standard error goes to ours
    persistent  True: one process for all experiments, started by `reset`; False: one process per experiment, which gets a
                single "run" request, answers it and exits
    stop        a program that switches the rig off, run by `emergency_stop` before the process is ended, and once more if
                the process did not end in order; it must exit with status 0 only if the rig is off
    folder      where both programs run; default: the current folder

    When its standard input closes, it is terminated, or a Ctrl-C in the terminal reaches it as well, the program must leave the
    rig in a safe state and exit with status 0. If it must be killed, or ends in another way, `emergency_stop` raises unless the
    stop program succeeded: nobody knows whether the rig is off.
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
        self._in_order = True

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

    def emergency_stop(self) -> None:
        """Run the stop program if there is one, close the rig's program's input, terminate it 0.2 s later, kill it if it stays.

        PlantError if it is not certain that the rig is off.
        """
        self._count_stop()
        try:
            self._run_stop_program()
        finally:
            self._drop()
        if self._in_order:
            return
        if self.stop is None:
            raise PlantError(
                "The rig's program was killed or crashed, and may not have stopped the rig: the stop is not confirmed. "
                "Switch the rig off by hand."
            )
        self._run_stop_program()  # the program may have switched the rig on again before it ended

    def _run_stop_program(self) -> None:
        if self.stop is None:
            return
        try:
            subprocess.run(self.stop, check=True, timeout=GRACE, stdin=subprocess.DEVNULL, cwd=self.folder)
        except (OSError, subprocess.SubprocessError) as error:
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

    def emergency_stop(self) -> None:
        """Tell the server to stop, over a new connection, and break the old one."""
        self._count_stop()
        try:
            line = Socket(self.host, self.port, self.stop_timeout)
            try:
                exchange(line, {"id": 0, "command": "stop"}, self.stop_timeout)
            finally:
                line.close()
        finally:
            self._drop()

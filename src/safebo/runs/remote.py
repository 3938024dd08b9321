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

import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from safebo.exceptions import InvalidMeasurementError, InvalidValueError, PlantError, PlantTimeoutError
from safebo.outputs import number
from safebo.runs.lines import GRACE, Line, Pipe, Socket
from safebo.runs.measurement import Measurement, decode, encode, measurement, shown


class LinePlant:
    """A plant behind a `Line`; subclasses say how to open one and how to stop the rig."""

    def __init__(self, timeout: float, reset_timeout: float | None = None) -> None:
        self.timeout = _positive(timeout, "timeout")
        self.reset_timeout = self.timeout if reset_timeout is None else _positive(reset_timeout, "reset_timeout")
        self._line: Line | None = None
        self._id = 0

    def open_line(self) -> Line:
        """A new connection to the rig."""
        raise NotImplementedError

    def reset(self) -> None:
        """Connect if there is no connection, and bring the rig to where experiments start."""
        if self._line is None:
            self._line = self.open_line()
        self._request(self._line, {"command": "reset"}, self.reset_timeout)

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
        self._drop()

    def close(self) -> None:
        """End the connection; a program has two seconds to end in order."""
        self._drop(GRACE)

    def _drop(self, patience: float = 0.0) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close(patience)

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


def _positive(value: object, name: str) -> float:
    seconds = number(value, name)
    if seconds <= 0.0:
        raise InvalidValueError(f"{name} must be positive, got {value!r}.")
    return seconds


class SubprocessPlant(LinePlant):
    """A rig's program that reads requests from its standard input and writes answers to its standard output.

    command     program and arguments; what it writes to standard error goes to ours
    persistent  True: one process for all experiments, started by `reset`; False: one process per experiment, which gets a
                single "run" request, answers it and exits
    stop        a program that switches the rig off, run by `emergency_stop` before the process is ended

    When its standard input closes or it is terminated, the program must leave the rig in a safe state.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        reset_timeout: float | None = None,
        persistent: bool = True,
        stop: Sequence[str] | None = None,
    ) -> None:
        super().__init__(timeout, reset_timeout)
        if isinstance(command, str) or not command:
            raise InvalidValueError(f"command must be a list: the program and its arguments, got {command!r}.")
        self.command, self.persistent, self.stop = tuple(command), persistent, stop

    def open_line(self) -> Line:
        """Start the program."""
        return Pipe(self.command)

    def reset(self) -> None:
        """Start the program if it does not run, and let it reset the rig; nothing to do for one process per experiment."""
        if self.persistent:
            super().reset()

    def run(self, params: Mapping[str, float]) -> Measurement:
        """One experiment, in the running process or in one of its own."""
        if self.persistent:
            return super().run(params)
        pipe = self._line = Pipe(self.command)
        try:
            answer = self._request(pipe, {"command": "run", "params": dict(params)}, self.timeout)
            pipe.expect_end(GRACE)
            return measurement(answer)
        finally:
            self._drop()

    def emergency_stop(self) -> None:
        """Run the stop program if there is one, then terminate the rig's program, and kill it if it does not end."""
        try:
            if self.stop is not None:
                subprocess.run(list(self.stop), check=True, timeout=GRACE, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise PlantError(f"The stop program {list(self.stop or ())} failed: {error}.") from error
        finally:
            self._drop()


class SocketPlant(LinePlant):
    """A rig's server at host:port, TCP. `emergency_stop` uses a connection of its own, which the server must accept at any time.

    When a connection breaks, the server must stop the rig.
    """

    def __init__(
        self, host: str, port: int, *, timeout: float, reset_timeout: float | None = None, stop_timeout: float = GRACE
    ) -> None:
        super().__init__(timeout, reset_timeout)
        self.host, self.port, self.stop_timeout = host, port, _positive(stop_timeout, "stop_timeout")

    def open_line(self) -> Line:
        """Connect."""
        return Socket(self.host, self.port, self.reset_timeout)

    def emergency_stop(self) -> None:
        """Tell the server to stop, over a new connection, and break the old one."""
        try:
            line = Socket(self.host, self.port, self.stop_timeout)
            try:
                exchange(line, {"id": 0, "command": "stop"}, self.stop_timeout)
            finally:
                line.close()
        finally:
            self._drop()

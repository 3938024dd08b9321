"""Programs that end with everything they have started: a keeper process on POSIX, a job object on Windows."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from safebo.exceptions import PlantError
from safebo.runs import keeper
from safebo.runs.keeper import BREATH, GRACE

STARTED = 30.0
"""Seconds that the start of a program may take, on a computer with other things to do."""

SLACK = 3.0
"""Seconds that the keeper may be late, on such a computer."""

MARK, UNKNOWN = "SAFEBO_PROGRAM", "unknown processes"


@dataclass(frozen=True)
class Ending:
    """How a program has ended."""

    orderly: bool = True
    """By itself or at a request to terminate, with status 0, and nothing that it had started outlived it."""
    left: str = ""
    """What could not be ended."""


class Program(Protocol):
    """A program and whatever it has started."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def wait(self, seconds: float) -> int | None:
        """Its exit status, or minus the signal that has killed it; None if it still runs then."""

    def end(self, patience: float) -> Ending:
        """End it with all that it has started: it has some seconds to do so by itself, then it is terminated, then killed."""


class _Report:
    """What a keeper reports; a thread of its own listens."""

    def __init__(self, source: IO[bytes]) -> None:
        self.started, self.ended, self.over = threading.Event(), threading.Event(), threading.Event()
        self.pid, self.failed, self.orderly = 0, "", False
        self.status: int | None = None
        self.left = UNKNOWN
        self.lost = False  # the keeper itself has ended
        self.seen: dict[int, str] | None = None  # what lived of the program when the keeper last looked: pid and birth
        threading.Thread(target=self._listen, args=(source,), daemon=True).start()

    def _listen(self, source: IO[bytes]) -> None:
        with source, contextlib.suppress(OSError, ValueError):  # a keeper that is killed leaves half a line
            for line in source:
                self._take(json.loads(line))
        if not self.over.is_set():
            self.lost, self.failed = True, self.failed or "its keeper has ended"
        for event in (self.started, self.ended, self.over):
            event.set()

    def _take(self, message: dict[str, Any]) -> None:
        if "over" in message:
            left = ", ".join(map(str, message["left"]))
            self.orderly, self.left = message["orderly"], f"process {left}" if left else ""
            self.over.set()
        elif "seen" in message:
            self.seen = {int(pid): birth for pid, birth in message["seen"].items()}
        elif "ended" in message:
            self.status = message["ended"]
            self.ended.set()
        else:
            self.pid, self.failed = message.get("started", 0), message.get("failed", "")
            self.started.set()


class KeptProgram:
    """A program with a keeper, see `keeper`. If this process dies, however it does, the keeper ends the program."""

    def __init__(self, command: Sequence[str], folder: str | None = None, *, stdin: int, stdout: int) -> None:
        listen, order = os.pipe()
        hear, report = os.pipe()
        self._orders = os.fdopen(order, "wb", buffering=0)
        source = os.fdopen(hear, "rb")
        place = str(Path(keeper.__file__).resolve())
        self._mark = secrets.token_hex(16)  # inherited by all that the program starts
        own = [sys.executable, "-I", "-S", place, str(os.getpid()), str(listen), str(report), *command]
        try:
            self._keeper = subprocess.Popen(
                own, stdin=stdin, stdout=stdout, bufsize=0, cwd=folder, pass_fds=(listen, report), start_new_session=True,
                env={**os.environ, MARK: self._mark},
            )  # fmt: skip
        except BaseException:
            self._orders.close()
            source.close()
            raise
        finally:
            os.close(listen)
            os.close(report)
        self.stdin, self.stdout = self._keeper.stdin, self._keeper.stdout
        self._report, self._ending = _Report(source), threading.Lock()
        self._due = 0.0  # when the keeper has to have ended everything
        try:
            in_time = self._report.started.wait(STARTED)
        except BaseException:  # an interrupt
            self.end(0.0)
            raise
        self.pid = self._report.pid
        if self.pid == 0:
            self.end(0.0)
            for stream in (self.stdin, self.stdout):
                if stream is not None:
                    stream.close()
            raise OSError(self._report.failed if in_time else f"not started within {STARTED:g} s")

    def wait(self, seconds: float) -> int | None:
        """Its exit status, or minus the signal that has killed it; None if it still runs then, or if that is unknown."""
        self._report.ended.wait(seconds)
        return self._report.status

    def end(self, patience: float) -> Ending:
        """Let the keeper end everything. May be called again, for what is left by then."""
        with self._ending:
            if self._due == 0.0:
                self._due = time.monotonic() + patience + 2.0 * GRACE + SLACK
                with contextlib.suppress(OSError):  # the keeper is gone
                    self._orders.write(b"%.6f\n" % patience)
            self._report.over.wait(max(self._due - time.monotonic(), 0.0))
            if self._report.lost:
                self._report.left = self._killed() if self._report.pid else ""
            if self._report.lost or (self._report.over.is_set() and not self._report.left):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._keeper.wait(SLACK)
                self._orders.close()
            return Ending(self._report.orderly, self._report.left)

    def _killed(self) -> str:
        """Kill what is left of a program whose keeper is gone; what could not be ended, as far as that is known.

        That is its group, what the keeper saw of it, what carries its mark, and all that descends from these. A program that has
        left the group, lost its parent and cleared its environment after the keeper's last look is not found.
        """
        group, roots = self._report.pid, dict(self._report.seen or {})
        deadline = time.monotonic() + GRACE
        while True:
            table = keeper.processes()
            roots |= {pid: birth for pid, _, _, birth in table if _marked(pid, self._mark)}
            left = keeper.family(table, roots, group=group)
            roots |= left
            if not left or time.monotonic() >= deadline:
                break
            with contextlib.suppress(OSError):  # ended in the meantime, or processes of another user
                if any(among == group for _, _, among, _ in table):
                    os.killpg(group, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if self._report.seen is None or not table:
            return UNKNOWN
        self._report.seen = left
        return f"process {', '.join(map(str, left))}" if left else ""


def _marked(pid: int, mark: str) -> bool:
    """Whether a process has inherited this mark; only Linux tells."""
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def start(command: Sequence[str], folder: str | None = None, *, stdin: int, stdout: int) -> Program:
    """Start a program in a group of its own; OSError if that is not possible."""
    if sys.platform == "win32":
        from safebo.runs.jobs import JobProgram

        return JobProgram(command, folder, stdin=stdin, stdout=stdout)
    return KeptProgram(command, folder, stdin=stdin, stdout=stdout)


def succeed(command: Sequence[str], folder: str | None, seconds: float) -> None:
    """Run a program that has to end with status 0 and leave nothing behind; PlantError otherwise. It ends in any case.

    What it says goes to standard error.
    """
    stdout = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # closed
        os.fstat(2)
        stdout = 2
    try:
        program = start(command, folder, stdin=subprocess.DEVNULL, stdout=stdout)
    except (OSError, ValueError) as error:
        raise PlantError(f"it cannot be started: {error}") from error
    status = None
    try:
        status = program.wait(seconds)
    finally:
        ending = program.end(BREATH if status == 0 else 0.0)
    if status is None:
        raise PlantError(f"it did not end within {seconds:g} s")
    if status != 0:
        raise PlantError(f"it ended with status {status}")
    if not ending.orderly:
        raise PlantError("it left processes behind")

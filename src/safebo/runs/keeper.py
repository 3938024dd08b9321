"""A process between safebo and a rig's program (POSIX): it ends the program, and whatever that has started, also without safebo.

    python -I -S keeper.py PARENT CONTROL REPORT PROGRAM ARGUMENT ...

    CONTROL   read end of a pipe. A number in a line: end everything, after that many seconds for an orderly end. The end of the
              pipe, or the death of PARENT: safebo is gone, end everything.
    REPORT    write end of a pipe, one line of JSON each: {"started": pid} or {"failed": text}, {"ended": status},
              {"seen": {pid: birth, ..}}, which is all that lives of the program, again whenever that has changed, and
              {"over": true, "orderly": bool, "left": [pid, ..]}; the last one again as long as processes are left

It keeps a session of its own, the program has a group of its own in it. On Linux the keeper adopts whatever loses its parent, so
that nothing that the program has started can leave it; elsewhere a process that has left the group and lost its parent can,
unless it was seen before. It runs without the packages of anybody, so that it starts fast and needs nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time

BREATH = 0.2
"""Seconds that a program has to end by itself even in an emergency, and when safebo is gone: its input has closed. A signal in
the middle of its own orderly end would kill it, and leave nobody who knows whether the rig is off."""

GRACE = 2.0
"""Seconds to end in order after a SIGTERM, and then until what a SIGKILL cannot end is reported."""

LOOK = 0.5
"""Seconds between two looks whether safebo still lives, and at what lives of the program."""

SHARE = 0.02
"""Of the time at most is spent on looking at what lives."""

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


def prctl(option: int, value: int) -> bool:
    """Whether the system (Linux) has done it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


Row = tuple[int, int, int, str]
"""pid, parent, group, birth: a pid is given again, and with its birth it is not."""


def processes() -> list[Row]:
    """Every process that is not dead already."""
    if os.path.exists("/proc/self/stat"):
        return [found for name in os.listdir("/proc") if name.isdigit() and (found := _stat(name)) is not None]
    import subprocess

    with contextlib.suppress(OSError, ValueError):
        with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="], stdout=subprocess.PIPE, text=True) as ps:
            rows = [line.split() for line in ps.communicate()[0].splitlines()]
        living = [row for row in rows if row[3][0] not in "ZX" and int(row[0]) != ps.pid]
        return [(int(pid), int(parent), int(group), " ".join(birth)) for pid, parent, group, _, *birth in living]
    return []


def _stat(name: str) -> Row | None:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it has ended in the meantime
        return None
    state, parent, group = fields[:3]
    return None if state in b"ZX" else (int(name), int(parent), int(group), fields[19].decode())


def family(table: list[Row], roots: dict[int, str], parent: int = 0, group: int = 0) -> dict[int, str]:
    """What lives of `roots`, of the children of `parent` and of a group, and of all that descends from these: pid and birth."""
    births = {pid: birth for pid, _, _, birth in table}
    found = {pid for pid, birth in roots.items() if births.get(pid) == birth}
    found |= {pid for pid, above, among, _ in table if (parent and above == parent) or (group and among == group)}
    while more := {pid for pid, above, _, _ in table if above in found} - found:
        found |= more
    return {pid: births[pid] for pid in sorted(found)}


class Kept:
    """The program and its descendants."""

    def __init__(self, command: list[str], signals: dict[int, object]) -> None:
        self.adopts = prctl(SET_CHILD_SUBREAPER, 1)
        self.status: int | None = None  # of the program
        self.seen: dict[int, str] = {}  # what lived at the last look
        self.error = ""  # why it could not be started
        said, say = os.pipe()  # closed by a successful start
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                prctl(SET_PDEATHSIG, signal.SIGTERM)  # if the keeper is killed
                for number, before in signals.items():
                    signal.signal(number, signal.SIG_IGN if before is signal.SIG_IGN else signal.SIG_DFL)
                os.execvp(command[0], command)
            except OSError as error:
                os.write(say, str(error).encode())
            finally:
                os._exit(127)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # whoever comes first
        os.close(say)
        with open(said, "rb") as file:
            self.error = file.read().decode(errors="replace")

    def reap(self) -> bool:
        """Whether nothing is left; the dead are buried."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self.pid:
                    self.status = os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # no children, so none of theirs either: they would have been adopted
            return self.adopts or not self.left()

    def left(self) -> list[int]:
        """Everything that descends from the keeper; without adoption also what is in the program's group, and what was seen."""
        me = os.getpid()
        found = family(processes(), {} if self.adopts else self.seen, me, 0 if self.adopts else self.pid)
        return [pid for pid in found if pid != me]

    def look(self) -> bool:
        """Whether something else lives than at the last look."""
        before, me = self.seen, os.getpid()
        found = family(processes(), before, me, self.pid)
        self.seen = {pid: birth for pid, birth in found.items() if pid != me}
        return self.seen != before

    def send(self, number: int) -> None:
        """A signal to each of them, once: to the group at once, as long as it is still theirs, then to the others."""
        left, group = self.left(), {pid for pid, _, group, _ in processes() if group == self.pid}
        with contextlib.suppress(OSError):  # ended in the meantime, or a process of another user
            if group.intersection(left):
                os.killpg(self.pid, number)
        for pid in left:
            with contextlib.suppress(OSError):
                if pid not in group:
                    os.kill(pid, number)

    def gone(self, seconds: float, kill: bool = False) -> bool:
        """Whether nothing is left within some seconds; with `kill`, what is started meanwhile is killed as well."""
        deadline, pause = time.monotonic() + seconds, 0.002
        while not self.reap():
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2.0 * pause, 0.05)
            if kill:
                self.send(signal.SIGKILL)
        return True

    def end(self, patience: float) -> bool:
        """End everything. True if the program has ended in order: by itself, or at a SIGTERM, with status 0, and as the last."""
        if self.gone(patience):
            return self.status == 0
        outlived = self.status is not None  # what is left has lost the program that answered for it
        self.send(signal.SIGTERM)
        if self.gone(GRACE):
            return self.status == 0 and not outlived
        self.send(signal.SIGKILL)
        self.gone(GRACE, kill=True)
        return False


def main(parent: int, control: int, report: int, command: list[str]) -> None:
    """Keep the program until it has to end; then end it."""
    for descriptor in (control, report):
        os.set_inheritable(descriptor, False)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGXFSZ")
    signals: dict[int, object] = {number: signal.getsignal(number) for name in names if (number := getattr(signal, name, None))}
    signals |= dict.fromkeys((signal.SIGPIPE, signal.SIGXFSZ), signal.SIG_DFL)  # Python ignores them, programs should not
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # the keeper outlives what it keeps
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def say(**message: object) -> None:
        with contextlib.suppress(OSError):  # nobody there
            os.write(report, json.dumps(message).encode() + b"\n")

    kept = Kept(command, signals)
    if kept.error:
        say(failed=kept.error)
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # they are the program's: it alone may keep them open
        os.dup2(null, descriptor)
    say(started=kept.pid)
    poll = select.poll()
    for descriptor in (control, woken):
        poll.register(descriptor, select.POLLIN)
    told, patience, due = False, None, 0.0
    while patience is None:
        if (now := time.monotonic()) >= due:
            if kept.look():
                say(seen=kept.seen)
            due = now + max(LOOK, (time.monotonic() - now) / SHARE)
        ready = [descriptor for descriptor, _ in poll.poll(1000.0 * LOOK)]
        if woken in ready:
            os.read(woken, 4096)
        kept.reap()
        if kept.status is not None and not told:
            told = True
            say(ended=kept.status)
        if control in ready:
            asked = os.read(control, 100)
            patience = float(asked) if asked else BREATH
        elif os.getppid() != parent:  # somebody else may still hold the other end of the pipe
            patience = BREATH
    orderly = kept.end(patience)
    if kept.status is not None and not told:
        say(ended=kept.status)
    say(over=True, orderly=orderly, left=[] if kept.reap() else kept.left())
    while not kept.gone(GRACE, kill=True):  # of another user, or in a call of the system that cannot be interrupted
        say(over=True, orderly=False, left=kept.left())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])

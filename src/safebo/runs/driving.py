"""One runner per run: whoever sends experiments to a plant holds the run, and others find out.

A runner has a lease in the database: a token that nobody can guess, and a time by the database's clock after which another may
take the run over. A thread renews it. Every step that a runner stores names its token, and is refused once somebody else holds
the run (a fence). A runner that could not renew its lease in time knows so by its own clock, and stops its plant before the lease
ends. On Linux the death of a process on the same computer is known at once, and nobody takes a run from one that lives.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from safebo.exceptions import DrivenError, SafeboError, StorageError
from safebo.runs.connect import SILENCE
from safebo.runs.schema import leases
from safebo.runs.storage import Store, now

if TYPE_CHECKING:
    from safebo.runs.campaign import Campaign

LEASE = 15.0
"""Seconds after which the run of a runner that is not heard of may be taken over."""

SILENT = 10.0
"""Seconds without a renewal after which a runner gives up: the rest of the lease is for stopping its plant."""

BEAT = 3.0
"""Seconds between two renewals: three may fail."""

FAREWELL = 60.0
"""Seconds for which a lease that could not be given up is tried again."""


class Lease:
    """A run that this process drives."""

    def __init__(self, store: Store, run: int, name: str, token: str, claimed: float) -> None:
        self.store, self.run, self.name, self.token = store, run, name, token
        self._renewed, self._lost = claimed, ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease of {name}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> str:
        """Why this process drives the run no more; empty as long as it does. Asks nobody, and so never waits."""
        silent = _elapsed() - self._renewed
        if not self._lost and self.store.dialect != "sqlite" and silent > SILENT:  # a file on this computer is never out of reach
            self._lost = f"the database {self.store.where} has not answered for {silent:.0f} s: another process may drive the run"
        return self._lost

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            asked = _elapsed()
            try:
                mine = _renew(self.store, self.run, self.token)
            except (SafeboError, OSError):
                continue  # `lost` counts the seconds
            if not mine:
                self._lost = "another process took the run over, because this one was silent for too long"
                return
            self._renewed = asked

    def end(self) -> None:
        """Give the run up at once; if the database does not answer, in the background."""
        self._over.set()
        self._thread.join(SILENCE)  # a renewal under way would use the store after it was closed
        give_up(self.store, self.run, self.token)


class _Held(NamedTuple):
    """A lease as it stands in the database."""

    fence: int
    holder: str
    who: str
    left: float  # seconds until it ends, by the database's clock

    @property
    def words(self) -> str:
        try:
            said = json.loads(self.who)
            return f"process {said['pid']} on {said['host']} since {said['since']}"
        except (ValueError, KeyError, TypeError):
            return "another process"

    @property
    def alive(self) -> bool | None:
        """Whether the process that holds it lives; None where that cannot be known."""
        try:
            said = json.loads(self.who)
            pid, place, born = int(said["pid"]), said["place"], said["born"]
        except (ValueError, KeyError, TypeError):
            return None
        if pid == os.getpid() and place == _place():
            return self.holder in _mine
        return None if not place or place != _place() else _lives(pid, born)

    @property
    def free(self) -> bool:
        """Whether another process may take the run."""
        return not self.holder or self.alive is False or (self.left <= 0.0 and self.alive is None)


@contextmanager
def driving(campaign: Campaign) -> Iterator[None]:
    """Hold the run while the body sends experiments; `DrivenError` if another process does."""
    if campaign.drives is not None:
        yield
        return
    campaign.drives = lease = claim(campaign.store, campaign.name)
    try:
        yield
    finally:
        campaign.drives = None
        lease.end()


def driver(store: Store, name: str) -> str:
    """Who drives a run at this moment, in words; empty if nobody does. Only looks."""
    with store._reading() as connection:
        held = _held(connection, store._head(connection, name).run)
    return "" if held.free else held.words


def claim(store: Store, name: str) -> Lease:
    """The lease of a run; `DrivenError` if another process has it."""
    token, claimed = secrets.token_hex(16), _elapsed()
    _mine.add(token)
    run = None
    try:
        with store._writing() as connection:
            run = store._head(connection, name, lock=True).run
            held = _held(connection, run)
            if not held.free:
                raise DrivenError(
                    f"Run {name!r} is being driven by {held.words}: two at once would send two experiments to one plant. "
                    f"{_advice(held)}"
                )
            values = {"fence": held.fence + 1, "holder": token, "who": json.dumps(_this()), "expires": _clock(store) + LEASE}
            connection.execute(sa.update(leases).where(leases.c.run == run).values(**values))
    except BaseException as error:
        if run is not None and isinstance(error, StorageError):  # it may have been stored nevertheless
            give_up(store, run, token)
        else:
            _mine.discard(token)
        raise
    return Lease(store, run, name, token, claimed)


def _advice(held: _Held) -> str:
    if held.left > 0.0:
        return f"Stop it, or wait until it has ended: if it is dead, in {held.left:.0f} s at the latest."
    return f"It has been silent for {LEASE - held.left:.0f} s, but it still lives: end that process first."


def _renew(store: Store, run: int, token: str) -> bool:
    """Whether the run is still ours."""
    mine = sa.and_(leases.c.run == run, leases.c.holder == token)
    with store._writing(patience=SILENCE) as connection:
        return connection.execute(sa.update(leases).where(mine).values(expires=_clock(store) + LEASE)).rowcount == 1


def give_up(store: Store, run: int, token: str) -> None:
    """Nobody holds the run any more; tried again for a while if the database does not answer."""

    def once() -> None:
        mine = sa.and_(leases.c.run == run, leases.c.holder == token)
        with store._writing(patience=SILENCE) as connection:
            connection.execute(sa.update(leases).where(mine).values(holder="", expires=0.0))

    def patiently() -> None:
        deadline = _elapsed() + FAREWELL
        while _elapsed() < deadline:
            time.sleep(BEAT)
            with suppress(SafeboError, OSError):
                return once()

    _mine.discard(token)  # from now on it is not believed to be alive
    try:
        once()
    except (SafeboError, OSError):
        threading.Thread(target=patiently, name="giving up a lease", daemon=True).start()


def _held(connection: sa.Connection, run: int) -> _Held:
    left = (leases.c.expires - _clock_of(connection.dialect.name)).label("left")
    columns = (leases.c.fence, leases.c.holder, leases.c.who, left)
    row = connection.execute(sa.select(*columns).where(leases.c.run == run)).one_or_none()
    if row is None:
        raise StorageError("The list of those who drive runs is damaged: restore a backup.")
    return _Held(*row)


def _clock(store: Store) -> sa.ColumnElement[Any]:
    return _clock_of(store.dialect)


def _clock_of(dialect: str) -> sa.ColumnElement[Any]:
    """The time in seconds by the database's own clock: those of two computers are never compared."""
    if dialect == "sqlite":
        return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Double())
    return sa.literal_column("CAST(extract(epoch FROM clock_timestamp()) AS double precision)", sa.Double())


def _elapsed() -> float:
    """Seconds that go on while this computer sleeps, where the system can count those."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


# -- processes ----------------------------------------------------------------------------------------------------------------

_mine: set[str] = set()
"""Tokens of this process."""


def _this() -> dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "host": platform.node(), "since": now(), "place": _place(), "born": _born(pid)}


def _place() -> str:
    """Names what process numbers refer to: this boot of this computer, and the container; empty where that is not known."""
    if sys.platform != "linux":
        return ""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _born(pid: int) -> str:
    """When a process was started, in ticks since the boot; empty if it has ended."""
    state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() if sys.platform == "linux" else ("", "")
    return "" if state in "ZX" else others[18]


def _lives(pid: int, born: str) -> bool | None:
    try:
        return _born(pid) == born
    except ProcessLookupError:
        return False
    except OSError:  # it has ended, or is hidden from other users
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return None
        return None

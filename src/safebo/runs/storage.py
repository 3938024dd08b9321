"""Runs in a database: SQLite in a file, or any PostgreSQL server.

A run is a list of events, numbered from 1 without gaps, that are only ever appended. All events of one step are one transaction,
synced to disk before `append` returns. Who appends says which event he saw last; if another process was quicker, nothing is
written (`ConflictError`). Each event carries a seal: a digest of itself, of the run's name, of the request that led to it and of
its predecessor; the run has the number and the seal of its last event. A record that was edited, renamed, or that lost events or
requests, is recognised when it is read. Readers never wait for a writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from safebo.exceptions import (
    ConflictError,
    DriveLostError,
    InDoubtError,
    InvalidValueError,
    OvertakenError,
    StorageError,
    UnknownRunError,
)
from safebo.nesting import loads
from safebo.runs import connect
from safebo.runs.schema import LONGEST_NAME, MIGRATIONS, NOBODY, OF_EVENTS, SCHEMA, seal_of_requests
from safebo.runs.schema import events as _events
from safebo.runs.schema import leases as _leases
from safebo.runs.schema import meta as _meta
from safebo.runs.schema import requests as _requests
from safebo.runs.schema import runs as _runs

__all__ = ["LONGEST_NAME", "MIGRATIONS", "SCHEMA", "Event", "Request", "Store", "now"]

_MIGRATION_LOCK = 0x5AFEB0


@dataclass(frozen=True)
class Event:
    """One entry of a run's record."""

    kind: str
    body: dict[str, Any] = field(default_factory=dict)
    who: str = ""
    at: str = ""  # UTC
    seq: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Request:
    """A request that has been served: what it asked for, and the last event it led to."""

    key: str
    fingerprint: str
    seq: int = 0


@dataclass(frozen=True)
class Head:
    """A run and where its record ends."""

    run: int
    name: str
    since: int  # seals from this event on cover the run's name and the requests
    seq: int
    seal: str

    def sealed(self, before: str, seq: Any, *parts: Any) -> str:
        """The seal of an event that follows one of the seal `before`: (kind, at, who, body, key of its request, fingerprint)."""
        *event, key, fingerprint = parts
        covered = [before, self.name, seq, *event, key, fingerprint] if seq >= self.since else [before, seq, *event]
        return hashlib.sha256(json.dumps(covered, default=repr).encode()).hexdigest()

    def earlier(self, served: Sequence[tuple[int, str, str]]) -> str:
        """The seal of the requests that the seals of the events do not cover."""
        return seal_of_requests(self.name, self.since, [entry for entry in served if entry[0] < self.since])


def now() -> str:
    """The time in UTC, to the microsecond."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


class Store:
    """A database of runs."""

    def __init__(self, engine: sa.Engine, where: str) -> None:
        self._engine, self.where, self._process = engine, where, os.getpid()
        self._file: tuple[Path, tuple[int, int]] | None = None  # SQLite: the file, and which one it is
        weakref.finalize(self, _dispose, engine, self._process)

    @classmethod
    def open(cls, url: str | Path, *, create: bool = True, read_only: bool = False) -> Store:
        """Open a file such as "safebo.db" or a database's URL; brings its tables up to date.

        create     make the file or the tables if there are none
        read_only  write nothing, not even the files that SQLite keeps beside its own: for a copy on a disk without write access
        """
        create = create and not read_only
        database = connect.connect(url, create, read_only)
        store = cls(database.engine, database.where)
        try:
            with store._named():
                store._migrate(create, read_only)
                if database.file is not None:
                    store._file = database.file, connect.identity(database.file)
        except BaseException:
            database.engine.dispose()
            raise
        return store

    @property
    def dialect(self) -> str:
        """The kind of database: "sqlite" or "postgresql"."""
        return self._engine.dialect.name

    @property
    def identity(self) -> str:
        """Names the database, however it was written down."""
        return self.where if self._file is None else str(self._file[0])

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- schema ---------------------------------------------------------------------------------------------------------

    def version(self) -> int:
        """Version of the tables; 0 if there are none."""
        with self._reading() as connection:
            return _version(connection, self.where)

    def _migrate(self, create: bool, read_only: bool) -> None:
        found = self._supported(self.version())
        if found == 0 and not create:
            raise StorageError(f"There are no runs in {self.where}.")
        if found == SCHEMA:
            return
        if read_only:
            raise StorageError(f"{self.where} was written by an older safebo: open it once with write access, or a copy of it.")
        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            found = self._supported(_version(connection, self.where))  # another process may have done it meanwhile
            if found == 0 and connection.dialect.name == "sqlite" and sa.inspect(connection).get_table_names():
                raise StorageError(connect.FOREIGN.format(self.where))
            for migration in MIGRATIONS[found:]:
                migration(connection)
            connection.execute(sa.delete(_meta).where(_meta.c.key == "schema"))
            connection.execute(sa.insert(_meta).values(key="schema", value=str(SCHEMA)))

    def _supported(self, version: int) -> int:
        if version > SCHEMA:
            raise StorageError(
                f"{self.where} was written by a newer safebo (tables of version {version}, this one knows {SCHEMA}): update it."
            )
        return version

    # -- runs -----------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The runs, in the order in which they were created."""
        of_runs = sa.select(_runs.c.id, _runs.c.name).outerjoin_from(_runs, _leases)
        orphans = sa.select(_leases.c.run, _runs.c.name).outerjoin_from(_leases, _runs).where(_runs.c.id.is_(None))
        with self._reading() as connection:
            found = connection.execute(sa.union_all(of_runs, orphans)).all()
        if not all(isinstance(row.id, int) and isinstance(row.name, str) for row in found):
            raise StorageError(f"The list of runs in {self.where} is damaged: restore a backup.")
        return [row.name for row in sorted(found, key=lambda row: row.id)]

    def create(self, name: str, events: Sequence[Event]) -> list[Event]:
        """A new run with its first events."""
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
            raise InvalidValueError(f"A run's name is one line of at most {LONGEST_NAME} characters, got {name!r:.220}.")
        stored: list[Event] = []
        with self._settled(name, stored), self._writing() as connection:
            _lock_name(connection, name)
            if connection.scalar(sa.select(_runs.c.id).where(_runs.c.name == name)) is not None:
                raise ConflictError(f"There is a run {name!r} in {self.where} already: resume it, or choose another name.")
            values = {"name": name, "since": 1, "earlier": seal_of_requests(name, 1, ()), "head": 0, "seal": ""}
            try:
                run = connection.execute(sa.insert(_runs).values(**values)).inserted_primary_key[0]  # type: ignore[index]
            except exc.IntegrityError:
                raise ConflictError(f"A run {name!r} was created at this moment: resume it, or choose another name.") from None
            connection.execute(sa.insert(_leases).values(run=run, **NOBODY))
            stored += self._insert(connection, Head(run, name, 1, 0, ""), events)
        return stored

    def append(
        self, name: str, after: int, events: Sequence[Event], request: Request | None = None, *, lease: str | None = None
    ) -> list[Event]:
        """Events after number `after`, which must be the last one; returns them as stored.

        lease: the token of whoever drives the run (see `driving`); nothing is stored if somebody else has taken it over.
        """
        stored: list[Event] = []
        with self._settled(name, stored), self._writing() as connection:
            head = self._head(connection, name, lock=True)
            last = sa.select(_events.c.seq, _events.c.seal).where(_events.c.run == head.run).order_by(_events.c.seq.desc())
            found = connection.execute(last.limit(1)).one_or_none()
            if found is None or tuple(found) != (head.seq, head.seal):
                raise self._damaged(name, 1 if found is None else min(found.seq, head.seq) + 1)
            if lease is not None:
                self._fenced(connection, head, lease)
            if head.seq != after:
                raise OvertakenError(
                    f"Run {name!r} was changed by another process (event {head.seq}, expected {after}). Nothing was stored: "
                    "read it again."
                )
            stored += self._insert(connection, head, events, request)
        return stored

    def append_now(
        self, name: str, after: int, seal: str, decide: Callable[[list[Event]], Sequence[Event]], *, lease: str | None = None
    ) -> list[Event]:
        """What `decide` makes of the events after number `after`, whose seal is `seal`; returns those and what was stored.

        Nobody can be quicker, since the run is held while `decide` works.
        """
        stored: list[Event] = []
        with self._settled(name, stored), self._writing() as connection:
            head = self._head(connection, name, lock=True)
            fresh = self._checked(name, connection.execute(_record(name, after)).all(), after, seal)
            if lease is not None:
                self._fenced(connection, head, lease)
            stored += self._insert(connection, head, decide(fresh), None)
        return [*fresh, *stored]

    def _fenced(self, connection: sa.Connection, head: Head, lease: str) -> None:
        row = connection.execute(sa.select(_leases.c.holder, _leases.c.who).where(_leases.c.run == head.run)).one_or_none()
        if row is None or row.holder != lease:
            raise DriveLostError(
                f"Run {head.name!r} is no longer driven by this process, which was silent for too long: "
                f"{'nobody drives it' if row is None or not row.holder else 'another one took it over'}. Nothing was stored."
            )

    def _damaged(self, name: str, seq: int) -> StorageError:
        return StorageError(f"The record of run {name!r} in {self.where} is damaged at event {seq}: restore a backup.")

    @contextlib.contextmanager
    def _settled(self, name: str, written: Sequence[Event]) -> Iterator[None]:
        """If the connection is lost during the commit of what was written, find out whether it is stored."""
        try:
            yield
        except StorageError as error:
            if not written:  # there was no commit
                raise
            deadline = time.monotonic() + connect.WAIT / 3.0
            while True:
                try:
                    stored = self._has(name, written[-1])
                    break
                except StorageError:
                    if time.monotonic() > deadline:
                        raise InDoubtError(
                            f"The connection to {self.where} was lost while event {written[-1].seq} of run {name!r} was being "
                            "stored: whether it is, is unknown. Look at the run before it is repeated."
                        ) from error
                    time.sleep(0.2)
            if not stored:
                raise

    def _has(self, name: str, event: Event) -> bool:
        """Whether this very event is stored; waits for a commit under way."""
        with self._writing() as connection:
            _lock_name(connection, name)
            try:
                head = self._head(connection, name, lock=True)
            except UnknownRunError:
                return False
            where = sa.and_(_events.c.run == head.run, _events.c.seq == event.seq)
            return connection.scalar(sa.select(_events.c.seal).where(where)) == event.digest

    def _insert(
        self, connection: sa.Connection, head: Head, events: Sequence[Event], request: Request | None = None
    ) -> list[Event]:
        stored, at, seal = [], now(), head.seal
        for seq, event in enumerate(events, head.seq + 1):
            body = json.dumps(event.body, allow_nan=False)
            served = request if request is not None and seq == head.seq + len(events) else None
            row = {"seq": seq, "kind": event.kind, "at": event.at or at, "who": event.who, "body": body}
            seal = head.sealed(seal, *row.values(), *((served.key, served.fingerprint) if served is not None else (None, None)))
            stored.append(Event(event.kind, loads(body), event.who, event.at or at, seq, seal))
            connection.execute(sa.insert(_events).values(run=head.run, **row, seal=seal))
            if served is not None:
                values = {"run": head.run, "key": served.key, "fingerprint": served.fingerprint, "seq": seq}
                connection.execute(sa.insert(_requests).values(**values))
        changes = {"head": head.seq + len(events), "seal": seal}
        connection.execute(sa.update(_runs).where(_runs.c.id == head.run).values(**changes))
        return stored

    def events(self, name: str, after: int = 0, digest: str = "") -> list[Event]:
        """The events of a run after number `after`, whose digest is `digest`; checks that nothing is missing or changed."""
        after = max(after, 0)
        with self._reading() as connection:
            rows = connection.execute(_record(name, after)).all() if name.isprintable() else []  # others do not exist, see create
            if not rows:
                raise self._unknown(connection, name)
        try:
            return self._checked(name, rows, after, digest)
        except TypeError:  # a number that became a text
            raise StorageError(f"The record of run {name!r} in {self.where} is damaged: restore a backup.") from None

    def _checked(self, name: str, rows: Sequence[sa.Row[Any]], after: int, digest: str) -> list[Event]:
        """The events of `_record`, if their seals are those that they should have."""
        first = rows[0]
        head = Head(first.run, first.name, first.since, first.head, first.head_seal)
        rows = [row for row in rows if row.seq is not None]
        if after:
            known = rows.pop(0) if rows and rows[0].seq == after else None
            if digest and (known is None or known.seal != digest):
                raise StorageError(
                    f"The record of run {name!r} in {self.where} is shorter or another one than before (event {after}): "
                    "was a backup restored? Open the run again."
                )
            if known is None:
                return []
            digest = known.seal
        result = []
        for seq, row in enumerate(rows, after + 1):
            digest = head.sealed(digest, row.seq, row.kind, row.at, row.who, row.body, row.key, row.fingerprint)
            if row.seq != seq or row.seal != digest:
                raise self._damaged(name, seq)
            result.append(Event(row.kind, loads(row.body), row.who, row.at, row.seq, row.seal))
        if (head.seq, head.seal) != (after + len(result), digest):
            raise StorageError(
                f"The record of run {name!r} in {self.where} is damaged: it has {after + len(result)} events, and should have "
                f"{head.seq!r:.20}. Restore a backup."
            )
        served = [(row.seq, row.key, row.fingerprint) for row in rows if row.key is not None]
        if not after and (len(served) != first.served or head.earlier(served) != first.earlier):
            raise StorageError(f"The name or the requests of run {name!r} in {self.where} are damaged: restore a backup.")
        return result

    def request(self, name: str, key: str) -> Request | None:
        """The request of this key, if it has been served.

        It is looked for among the requests of the events, as `events` checks them: a damaged index of keys would not be noticed.
        """
        of_event = sa.and_(_requests.c.run == _events.c.run, _requests.c.seq == _events.c.seq)
        query = sa.select(_events.c.seq, _requests.c.key, _requests.c.fingerprint).join_from(_events, _requests, of_event)
        query = query.with_hint(_requests, f"INDEXED BY {OF_EVENTS}", "sqlite")
        with self._reading() as connection:
            rows = connection.execute(query.where(_events.c.run == self._head(connection, name).run)).all()
        return next((Request(key, row.fingerprint, row.seq) for row in rows if row.key == key), None)

    def last(self, name: str) -> int:
        """Number of the last event."""
        last = sa.select(sa.func.max(_events.c.seq)).where(_events.c.run == _runs.c.id).correlate(_runs).scalar_subquery()
        with self._reading() as connection:  # one statement, one moment
            row = connection.execute(sa.select(_runs.c.head, last.label("last")).where(_runs.c.name == name)).one_or_none()
            if row is None:
                raise self._unknown(connection, name)
        if row.last != row.head:
            raise StorageError(f"The record of run {name!r} in {self.where} is damaged at its end: restore a backup.")
        return int(row.last)

    def check(self) -> None:
        """The database's own check of its file, where it has one; `StorageError` if it is damaged."""
        if self.dialect != "sqlite":
            return
        with self._reading() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        if found != "ok":
            raise StorageError(f"The file {self.where} is damaged: {' '.join(str(found).split())}. Restore a backup.")

    def _head(self, connection: sa.Connection, name: str, lock: bool = False) -> Head:
        query = sa.select(_runs.c.id, _runs.c.name, _runs.c.since, _runs.c.head, _runs.c.seal).where(_runs.c.name == name)
        query = query.with_for_update() if lock else query  # who appends to the same run waits
        found = connection.execute(query).one_or_none() if name.isprintable() else None  # others cannot be asked for, see create
        if found is None:
            raise self._unknown(connection, name)
        return Head(*found)

    def _unknown(self, connection: sa.Connection, name: str) -> UnknownRunError:
        names = ", ".join(repr(n) for n in connection.scalars(sa.select(_runs.c.name).order_by(_runs.c.id.desc()).limit(5)))
        return UnknownRunError(f"There is no run {name!r:.220} in {self.where}. " + (f"The latest are {names}." if names else ""))

    # -- transactions ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self, patience: float | None = None) -> Iterator[sa.Connection]:
        seconds = connect.WAIT + connect.SILENCE if patience is None else patience
        with self._named(), self._own().connect() as connection:
            connection = connection.execution_options(safebo_writes=True)
            self._same_file()
            with connect.patience(connection, seconds), connection.begin():
                yield connection
            self._same_file(written=True)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with (
            self._named(),
            self._own().connect() as connection,
            connect.patience(connection, connect.READING),
            connection.begin(),
        ):
            self._same_file()
            yield connection

    def _same_file(self, written: bool = False) -> None:
        """An open SQLite file can be deleted or replaced under its users: what they write then is lost without a word."""
        if self._file is None:
            return
        path, known = self._file
        try:
            same = connect.identity(path) == known and (not written or Path(f"{path}-wal").exists())
        except FileNotFoundError:
            same = False
        if not same:
            raise StorageError(
                f"The file {self.where}, or the one with -wal at its end, was deleted or replaced while it was in use. What is "
                "written now is lost: nothing more is stored. Put the file back, and start again from it."
            )

    def _own(self) -> sa.Engine:
        """The engine; in a forked child with connections of its own."""
        if os.getpid() != self._process:
            _inherited.append(self._engine.pool)  # kept: closing them here would disturb the parent
            self._engine.dispose(close=False)
            self._process = os.getpid()
        return self._engine

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """The database's errors as ours: in one line, and saying that nothing was stored."""
        try:
            yield
        except exc.IntegrityError as error:
            raise OvertakenError(
                f"Another process wrote the same step to {self.where} at this moment. Nothing was stored."
            ) from error
        except exc.TimeoutError as error:
            raise StorageError(f"All connections to {self.where} are busy: {error}. Nothing was stored.") from error
        except (exc.SQLAlchemyError, sqlite3.Error, OSError, UnicodeError, MemoryError) as error:
            cause = error.orig if isinstance(error, exc.DBAPIError) else error
            line = " ".join(str(cause).split()) or type(cause).__name__
            advice = next((f" {text}" for word, text in _ADVICE.items() if word in line.lower()), "")
            raise StorageError(f"The database {self.where} cannot be used: {line}.{advice} Nothing was stored.") from error


_ADVICE = {
    "disk is full": "Make space on its disk, then do it again.",
    "no space left": "Make space on the server's disk, then do it again.",
    "readonly": "Check the rights of the file and its folder, and whether its disk is mounted read-only.",
    "read-only": "Check the rights of the file and its folder, and whether its disk is mounted read-only.",
    "unable to open": "Check the rights of the file and its folder, and whether its disk is mounted read-only.",
    "disk i/o error": "Check its disk: is it full, over a quota, or broken?",
    "lock": "Another process is writing and does not finish: see what it does, then do it again.",
    "not a database": "It belongs to another program, or it is damaged: name another file, or restore a backup.",
    "malformed": "It is damaged: restore a backup.",
}
"""Part of a database's message -> what to do."""

_inherited: list[sa.Pool] = []


def _dispose(engine: sa.Engine, process: int) -> None:
    if os.getpid() == process:
        engine.dispose()


def _version(connection: sa.Connection, where: str) -> int:
    if not sa.inspect(connection).has_table(_meta.name):
        return 0
    value = connection.scalar(sa.select(_meta.c.value).where(_meta.c.key == "schema"))
    if value is None or not value.isdecimal() or int(value) < 1:
        raise StorageError(f"The version of the tables in {where} cannot be read, found {value!r:.40}: restore a backup.")
    return int(value)


def _lock_name(connection: sa.Connection, name: str) -> None:
    """Wait for whoever is creating a run of this name: before it is stored there is no row that could be waited for."""
    if connection.dialect.name == "postgresql":
        key = int.from_bytes(hashlib.sha256(f"create {name}".encode()).digest()[:8], "big", signed=True)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def _record(name: str, after: int) -> sa.Select[Any]:
    """Events from number `after` on with the requests that led to them, beside the head of the run: one statement, one moment.

    A run without such events is one row without an event; `served` is the number of all requests.
    """
    of_run = sa.and_(_events.c.run == _runs.c.id, _events.c.seq >= after)
    of_event = sa.and_(_requests.c.run == _events.c.run, _requests.c.seq == _events.c.seq)
    served = (
        sa.select(sa.func.count()).where(_requests.c.run == _runs.c.id).correlate(_runs).scalar_subquery()
        if not after
        else sa.null()
    )
    return (
        sa.select(
            *(_runs.c.id.label("run"), _runs.c.name, _runs.c.since, _runs.c.earlier, _runs.c.head),
            *(_runs.c.seal.label("head_seal"), served.label("served")),
            *(_events.c.seq, _events.c.kind, _events.c.at, _events.c.who, _events.c.body, _events.c.seal),
            *(_requests.c.key, _requests.c.fingerprint),
        )
        .select_from(_runs.outerjoin(_events, of_run).outerjoin(_requests, of_event))
        .where(_runs.c.name == name)
        .order_by(_events.c.seq)
    )

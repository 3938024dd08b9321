"""Runs in a database: SQLite in a file, or any PostgreSQL server.

A run is a list of events, numbered from 1 without gaps, that are only ever appended. All events of one step are one transaction,
synced to disk before `append` returns. Who appends says which event he saw last; if another process was quicker, nothing is
written (`ConflictError`). Each event carries a digest of itself and of its predecessor: a record that was edited, or that lost
events in the middle, is recognised when it is read. Readers never wait for a writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from safebo.exceptions import (
    ConflictError,
    InDoubtError,
    InvalidValueError,
    OvertakenError,
    StorageError,
    UnknownRunError,
)
from safebo.runs import connect
from safebo.runs.schema import LONGEST_NAME, MIGRATIONS, SCHEMA
from safebo.runs.schema import events as _events
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

    def connection(self) -> sa.Connection:
        """A connection of one's own, to be closed by whoever asked for it."""
        with self._named():
            return self._own().connect()

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
        with self._reading() as connection:
            return list(connection.scalars(sa.select(_runs.c.name).order_by(_runs.c.id)))

    def create(self, name: str, events: Sequence[Event]) -> list[Event]:
        """A new run with its first events."""
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
            raise InvalidValueError(f"A run's name is one line of at most {LONGEST_NAME} characters, got {name!r:.220}.")
        stored: list[Event] = []
        with self._settled(name, stored), self._writing() as connection:
            if connection.scalar(sa.select(_runs.c.id).where(_runs.c.name == name)) is not None:
                raise ConflictError(f"There is a run {name!r} in {self.where} already: resume it, or choose another name.")
            try:
                run = connection.execute(sa.insert(_runs).values(name=name)).inserted_primary_key[0]  # type: ignore[index]
            except exc.IntegrityError:
                raise ConflictError(f"A run {name!r} was created at this moment: resume it, or choose another name.") from None
            stored += self._insert(connection, run, "", 0, events)
        return stored

    def append(self, name: str, after: int, events: Sequence[Event], request: Request | None = None) -> list[Event]:
        """Events after number `after`, which must be the last one; returns them as stored."""
        stored: list[Event] = []
        with self._settled(name, stored), self._writing() as connection:
            run = self._run(connection, name, lock=True)
            last = connection.execute(
                sa.select(_events.c.seq, _events.c.digest).where(_events.c.run == run).order_by(_events.c.seq.desc()).limit(1)
            ).one_or_none()
            if last is None:
                raise StorageError(f"The record of run {name!r} in {self.where} is damaged at event 1: restore a backup.")
            if last.seq != after:
                raise OvertakenError(
                    f"Run {name!r} was changed by another process (event {last.seq}, expected {after}). Nothing was stored: "
                    "read it again."
                )
            fresh = self._insert(connection, run, last.digest, after, events)
            if request is not None:
                values = {"run": run, "key": request.key, "fingerprint": request.fingerprint, "seq": fresh[-1].seq}
                connection.execute(sa.insert(_requests).values(**values))
            stored += fresh
        return stored

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
            try:
                run = self._run(connection, name, lock=True)
            except UnknownRunError:
                return False
            where = sa.and_(_events.c.run == run, _events.c.seq == event.seq)
            return connection.scalar(sa.select(_events.c.digest).where(where)) == event.digest

    def _insert(self, connection: sa.Connection, run: int, digest: str, last: int, events: Sequence[Event]) -> list[Event]:
        stored, at = [], now()
        for seq, event in enumerate(events, last + 1):
            body = json.dumps(event.body, allow_nan=False)
            digest = _digest(digest, seq, event.kind, event.at or at, event.who, body)
            stored.append(Event(event.kind, json.loads(body), event.who, event.at or at, seq, digest))
            row = {"run": run, "seq": seq, "kind": event.kind, "at": event.at or at, "who": event.who, "body": body}
            connection.execute(sa.insert(_events).values(**row, digest=digest))
        return stored

    def events(self, name: str, after: int = 0, digest: str = "") -> list[Event]:
        """The events of a run after number `after`, whose digest is `digest`; checks that nothing is missing or changed."""
        after = max(after, 0)
        columns = (_events.c.seq, _events.c.kind, _events.c.at, _events.c.who, _events.c.body, _events.c.digest)
        with self._reading() as connection:
            run = self._run(connection, name)
            where = sa.and_(_events.c.run == run, _events.c.seq >= after)
            rows = list(connection.execute(sa.select(*columns).where(where).order_by(_events.c.seq)))
        if after:
            known = rows.pop(0) if rows and rows[0].seq == after else None
            if digest and (known is None or known.digest != digest):
                raise StorageError(
                    f"The record of run {name!r} in {self.where} is shorter or another one than before (event {after}): "
                    "was a backup restored? Open the run again."
                )
            digest = known.digest if known is not None else ""
        result = []
        for seq, row in enumerate(rows, after + 1):
            digest = _digest(digest, row.seq, row.kind, row.at, row.who, row.body)
            if row.seq != seq or row.digest != digest:
                raise StorageError(f"The record of run {name!r} in {self.where} is damaged at event {seq}: restore a backup.")
            result.append(Event(row.kind, json.loads(row.body), row.who, row.at, row.seq, row.digest))
        return result

    def request(self, name: str, key: str) -> Request | None:
        """The request of this key, if it has been served."""
        with self._reading() as connection:
            where = sa.and_(_requests.c.run == self._run(connection, name), _requests.c.key == key)
            row = connection.execute(sa.select(_requests.c.fingerprint, _requests.c.seq).where(where)).one_or_none()
        return None if row is None else Request(key, row.fingerprint, row.seq)

    def last(self, name: str) -> int:
        """Number of the last event."""
        with self._reading() as connection:
            run = self._run(connection, name)
            return int(connection.scalar(sa.select(sa.func.max(_events.c.seq)).where(_events.c.run == run)) or 0)

    def _run(self, connection: sa.Connection, name: str, lock: bool = False) -> int:
        query = sa.select(_runs.c.id).where(_runs.c.name == name)
        found = connection.scalar(query.with_for_update() if lock else query)  # who appends to the same run waits
        if found is None:
            names = ", ".join(repr(n) for n in connection.scalars(sa.select(_runs.c.name).order_by(_runs.c.id.desc()).limit(5)))
            raise UnknownRunError(
                f"There is no run {name!r:.220} in {self.where}. " + (f"The latest are {names}." if names else "")
            )
        return int(found)

    # -- transactions ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._named(), self._own().connect() as connection:
            connection = connection.execution_options(safebo_writes=True)
            self._same_file()
            with connection.begin():
                yield connection
            self._same_file(written=True)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._named(), self._own().connect() as connection, connection.begin():
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


def _digest(before: str, seq: int, kind: str, at: str, who: str, body: str) -> str:
    return hashlib.sha256(json.dumps([before, seq, kind, at, who, body]).encode()).hexdigest()

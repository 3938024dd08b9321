"""The tables of a database of runs, and how those of earlier versions are brought up to date."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

import sqlalchemy as sa

SCHEMA = 3
"""Version of the tables that this program reads and writes."""

LONGEST_NAME = 200

META = "safebo_meta"

OF_EVENTS = "safebo_requests_of_events"
"""Index of the requests by their events."""

tables = sa.MetaData()
meta = sa.Table(META, tables, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False))
runs = sa.Table(
    "safebo_runs",
    tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String(LONGEST_NAME), nullable=False, unique=True),
    sa.Column("since", sa.Integer, nullable=False),  # the first event whose seal covers the run's name and the request
    sa.Column("earlier", sa.String(64), nullable=False),  # seal of the requests before that
    sa.Column("head", sa.Integer, nullable=False),  # number of the last event
    sa.Column("seal", sa.String(64), nullable=False),  # its seal
)
events = sa.Table(
    "safebo_events",
    tables,
    sa.Column("run", sa.Integer, sa.ForeignKey("safebo_runs.id"), primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("at", sa.String(40), nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("seal", sa.String(64), nullable=False),
)
requests = sa.Table(
    "safebo_requests",
    tables,
    sa.Column("run", sa.Integer, sa.ForeignKey("safebo_runs.id"), primary_key=True, autoincrement=False),
    sa.Column("key", sa.String(200), primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
)
leases = sa.Table(  # who drives a run; a row for every run
    "safebo_leases",
    tables,
    sa.Column("run", sa.Integer, sa.ForeignKey("safebo_runs.id"), primary_key=True, autoincrement=False),
    sa.Column("fence", sa.Integer, nullable=False),  # how often the run was claimed
    sa.Column("holder", sa.String(64), nullable=False),  # an unguessable token; empty: nobody drives
    sa.Column("who", sa.Text, nullable=False),  # process, computer and time, as JSON
    sa.Column("expires", sa.Double, nullable=False),  # seconds by the database's clock
)


def seal_of_requests(name: str, since: int, served: Iterable[tuple[int, str, str]]) -> str:
    """What the seals of the events do not cover: requests before event `since`, as (event, key, fingerprint)."""
    return hashlib.sha256(json.dumps([name, since, sorted(map(list, served))]).encode()).hexdigest()


# -- from version to version --------------------------------------------------------------------------------------------------


def _first(connection: sa.Connection) -> None:
    _execute(
        connection,
        "CREATE TABLE safebo_meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE safebo_runs (id {serial}, name VARCHAR(200) NOT NULL UNIQUE)",
        "CREATE TABLE safebo_events (run INTEGER NOT NULL REFERENCES safebo_runs (id), seq INTEGER NOT NULL, "
        "kind VARCHAR(40) NOT NULL, at VARCHAR(40) NOT NULL, who TEXT NOT NULL, body TEXT NOT NULL, "
        "digest VARCHAR(64) NOT NULL, PRIMARY KEY (run, seq))",
    )


def _second(connection: sa.Connection) -> None:
    """Keys of requests, so that one which is sent twice counts once."""
    _execute(
        connection,
        "CREATE TABLE safebo_requests (run INTEGER NOT NULL REFERENCES safebo_runs (id), key VARCHAR(200) NOT NULL, "
        "fingerprint VARCHAR(64) NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (run, key))",
    )


def _third(connection: sa.Connection) -> None:
    """A head for every run, seals that cover its name and its requests, and leases for those who drive it.

    The digests get another name, so that a program of the version before, which knows nothing of heads, can write no more.
    """
    _execute(
        connection,
        "ALTER TABLE safebo_events RENAME COLUMN digest TO seal",
        "ALTER TABLE safebo_runs ADD COLUMN since INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE safebo_runs ADD COLUMN earlier VARCHAR(64) NOT NULL DEFAULT ''",
        "ALTER TABLE safebo_runs ADD COLUMN head INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE safebo_runs ADD COLUMN seal VARCHAR(64) NOT NULL DEFAULT ''",
        f"CREATE INDEX {OF_EVENTS} ON safebo_requests (run, seq)",
        "CREATE TABLE safebo_leases (run INTEGER NOT NULL PRIMARY KEY REFERENCES safebo_runs (id), fence INTEGER NOT NULL, "
        "holder VARCHAR(64) NOT NULL, who TEXT NOT NULL, expires DOUBLE PRECISION NOT NULL)",
    )
    for run, name in connection.execute(sa.select(runs.c.id, runs.c.name)).all():
        of_run = sa.select(events.c.seq, events.c.seal).where(events.c.run == run)
        last = connection.execute(of_run.order_by(events.c.seq.desc()).limit(1)).one_or_none()
        head, seal = (0, "") if last is None else (last.seq, last.seal)
        asked = sa.select(requests.c.seq, requests.c.key, requests.c.fingerprint).where(requests.c.run == run)
        earlier = seal_of_requests(name, head + 1, [(r.seq, r.key, r.fingerprint) for r in connection.execute(asked)])
        changes = {"since": head + 1, "earlier": earlier, "head": head, "seal": seal}
        connection.execute(sa.update(runs).where(runs.c.id == run).values(**changes))
        connection.execute(sa.insert(leases).values(run=run, **NOBODY))


def _execute(connection: sa.Connection, *statements: str) -> None:
    serial = "SERIAL PRIMARY KEY" if connection.dialect.name == "postgresql" else "INTEGER NOT NULL PRIMARY KEY"
    for statement in statements:
        connection.execute(sa.text(statement.replace("{serial}", serial)))


NOBODY = {"fence": 0, "holder": "", "who": "", "expires": 0.0}
"""The lease of a run that nobody has driven yet."""

MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_first, _second, _third)
"""From version i to i + 1; an empty database has version 0."""

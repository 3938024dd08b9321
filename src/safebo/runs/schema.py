"""The tables of a database of runs, and how those of earlier versions are brought up to date."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

SCHEMA = 2
"""Version of the tables that this program reads and writes."""

LONGEST_NAME = 200

META = "safebo_meta"

tables = sa.MetaData()
meta = sa.Table(META, tables, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False))
runs = sa.Table(
    "safebo_runs",
    tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String(LONGEST_NAME), nullable=False, unique=True),
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
    sa.Column("digest", sa.String(64), nullable=False),
)
requests = sa.Table(  # since version 2
    "safebo_requests",
    tables,
    sa.Column("run", sa.Integer, sa.ForeignKey("safebo_runs.id"), primary_key=True, autoincrement=False),
    sa.Column("key", sa.String(200), primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
)


def _first(connection: sa.Connection) -> None:
    tables.create_all(connection, tables=[meta, runs, events])


def _second(connection: sa.Connection) -> None:
    """Keys of requests, so that one which is sent twice counts once."""
    tables.create_all(connection, tables=[requests])


MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_first, _second)
"""From version i to i + 1; an empty database has version 0."""

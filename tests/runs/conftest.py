"""Databases for the tests of durable runs: SQLite in a temporary folder, and a private PostgreSQL server."""

from __future__ import annotations

import os

import pytest

from benchmarks import postgres


def missing(message: str) -> None:
    """Fails in CI, skips elsewhere: what is not tested is said."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(message)


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL server of this test session."""
    if postgres.binaries() is None:
        postgres.install("postgresql")
    if postgres.binaries() is None:
        missing(postgres.HELP)
    started = postgres.Server()
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """A new, empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/safebo.db"
    return request.getfixturevalue("server").schema()

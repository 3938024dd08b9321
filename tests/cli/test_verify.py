"""`safebo verify`: a record is complete, or the damage is named."""

from __future__ import annotations

import hashlib
import json
import sqlite3

import pytest


@pytest.fixture
def made(folder):
    folder("run", "small.toml")
    return folder


def damage(folder, statement, *values):
    with sqlite3.connect(folder.path / "safebo.db") as connection:
        connection.execute(statement, values)
    connection.close()


def test_a_complete_record(made):
    assert made("verify", "small").stdout.strip() == "small: 9 events, 3 measurements, 0 aborted or rejected, complete"
    assert made.json("verify", "small.toml") == {
        "run": "small", "events": 9, "measurements": 3, "aborts": 0, "complete": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM safebo_events WHERE seq = 9", "it has 8 events, and should have 9"),
        ("DELETE FROM safebo_events WHERE seq = 4", "damaged at event 4"),
        ("UPDATE safebo_events SET who = 'eve' WHERE seq = 3", "damaged at event 3"),
        ("UPDATE safebo_requests SET key = key || 'x'", "damaged"),
        ("UPDATE safebo_requests SET seq = 12345", "damaged"),
    ],
)
def test_a_damage_is_named(made, statement, said):
    damage(made, statement)
    result = made("verify", "small", code=1)
    assert said in result.stderr
    assert "error" in made.json("verify", "small", code=1)


def test_a_damaged_file_is_named(made):
    file = made.path / "safebo.db"
    content = bytearray(file.read_bytes())
    content[content.index(b'"violated"') + 2] ^= 1
    file.write_bytes(content)
    assert "damaged at event" in made("verify", "small", code=1).stderr


def test_a_record_that_was_sealed_again_obeys_the_rules(made):
    """Whoever recomputes the seals can still not tell a trial twice."""
    with sqlite3.connect(made.path / "safebo.db") as connection:
        last = connection.execute("SELECT seal, kind, at, who, body FROM safebo_events WHERE seq = 9").fetchone()
        seal = hashlib.sha256(json.dumps([last[0], "small", 10, *last[1:], None, None]).encode()).hexdigest()
        connection.execute("INSERT INTO safebo_events VALUES (1, 10, ?, ?, ?, ?, ?)", (*last[1:], seal))
        connection.execute("UPDATE safebo_runs SET head = 10, seal = ?", (seal,))
    connection.close()
    assert "breaks the rules" in made("verify", "small", code=1).stderr


def test_a_copy_that_cannot_be_written(made):
    copy = made.path / "backup"
    copy.mkdir()
    (copy / "safebo.db").write_bytes((made.path / "safebo.db").read_bytes())
    for path in (copy / "safebo.db", copy):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert "complete" in made("verify", "small", "--db", copy / "safebo.db").stdout
    finally:
        copy.chmod(0o755)


def test_a_run_that_does_not_exist(made):
    assert "no run 'other'" in made("verify", "other", code=2).stderr

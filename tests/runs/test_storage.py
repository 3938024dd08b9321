"""The database layer: committed or not there, recognised when damaged, and foreign files left alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import sqlite3
import threading
import time
import warnings

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import exc

from benchmarks.hostile._proxy import Proxy
from safebo.exceptions import ConflictError, InDoubtError, InvalidValueError, StorageError, UnknownRunError
from safebo.runs import Campaign, Event, Store, connect
from safebo.runs import storage as module
from safebo.runs.storage import MIGRATIONS, SCHEMA, Request
from tests.runs.common import dump, execute

NAMES = [
    "a",
    "Regler 3",
    "naïve café",
    "実験",
    "🤖 run",
    'it\'s "quoted"',
    "a/b\\c",
    "%s %(x)s {y}",
    "'; DROP TABLE safebo_runs; --",
    "x" * 200,
]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
BODIES = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)
shared = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def store(database_url):
    with Store.open(database_url) as opened:
        yield opened


@pytest.mark.parametrize("name", NAMES)
def test_names_are_kept_as_they_are(store, name):
    store.create(name, [Event("created")])
    store.append(name, 1, [Event("paused")])
    assert store.names() == [name] and [e.kind for e in store.events(name)] == ["created", "paused"]
    with pytest.raises(ConflictError, match="already"):
        store.create(name, [Event("created")])


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0b", "x" * 201, "\ud800", 3, None])
def test_names_that_cannot_be_shown_are_refused(store, name):
    with pytest.raises(InvalidValueError, match="name"):
        store.create(name, [Event("created")])
    assert store.names() == []


@shared
@given(bodies=st.lists(st.tuples(BODIES, TEXT), min_size=1, max_size=6), cuts=st.sets(st.integers(1, 5)))
def test_events_come_back_as_they_were_stored(database_url, bodies, cuts):
    """In one step or in several, to the last bit."""
    events = [Event(f"kind {i}", body, who) for i, (body, who) in enumerate(bodies)]
    with Store.open(database_url) as store:
        name = f"run {len(store.names())}"
        stored = store.create(name, events[:1])
        for i, event in enumerate(events[1:], 1):
            if i in cuts or len(events) == 2:
                stored += store.append(name, len(stored), [event])
            else:
                stored += store.append(name, len(stored), [event], Request(f"key {i}", "f" * 64))
        assert [(e.kind, e.body, e.who) for e in stored] == [(e.kind, e.body, e.who) for e in events]
        assert [e.seq for e in stored] == list(range(1, len(events) + 1))
        assert store.events(name) == stored and store.last(name) == len(events)
        assert store.events(name, len(events) + 5) == [] and store.events(name, -1) == stored
        for after in range(len(events)):
            assert store.events(name, after) == stored[after:]
            assert store.events(name, after, stored[after - 1].digest if after else "") == stored[after:]
    with Store.open(database_url, create=False) as again:
        assert again.events(name) == stored


def test_all_events_of_a_step_or_none(store, database_url):
    store.create("r", [Event("created")])
    before = dump(database_url)
    with pytest.raises(ValueError, match="JSON"):
        store.append("r", 1, [Event("paused"), Event("told", {"value": float("nan")})], Request("key", "f"))
    assert dump(database_url) == before
    with pytest.raises(ConflictError, match="event 1, expected 0"):
        store.append("r", 0, [Event("paused")], Request("key", "f"))
    assert dump(database_url) == before and store.request("r", "key") is None


def test_a_key_counts_once(store, database_url):
    store.create("r", [Event("created")])
    store.append("r", 1, [Event("a"), Event("b")], Request("key", "f"))
    assert store.request("r", "key") == Request("key", "f", 3)
    before = dump(database_url)
    with pytest.raises(ConflictError, match="Nothing was stored"):
        store.append("r", 3, [Event("c")], Request("key", "f"))
    assert dump(database_url) == before


def test_unknown_runs_are_named(store):
    store.create("known", [Event("created")])
    for look in (store.events, store.last, lambda n: store.append(n, 1, [Event("x")])):
        with pytest.raises(UnknownRunError, match=r"no run 'other'.*'known'"):
            look("other")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE safebo_events SET body = '{\"value\": 2}' WHERE seq = 2",
        "UPDATE safebo_events SET body = 'no json' WHERE seq = 2",
        "UPDATE safebo_events SET kind = 'other' WHERE seq = 2",
        "UPDATE safebo_events SET who = 'nobody' WHERE seq = 2",
        "UPDATE safebo_events SET at = '2020-01-01' WHERE seq = 2",
        "UPDATE safebo_events SET seal = 'x' WHERE seq = 2",
        "DELETE FROM safebo_events WHERE seq = 2",
        "UPDATE safebo_events SET seq = 9 WHERE seq = 2",
    ],
)
def test_a_record_edited_by_hand_is_recognised(store, database_url, damage):
    store.create("r", [Event("created"), Event("told", {"value": 1}), Event("told", {"value": 3})])
    execute(database_url, damage)
    with pytest.raises(StorageError, match="damaged at event 2"):
        store.events("r")


def test_a_run_without_its_events_is_recognised(store, database_url):
    store.create("r", [Event("created")])
    execute(database_url, "DELETE FROM safebo_events")
    with pytest.raises(StorageError, match="damaged at event 1"):
        store.append("r", 1, [Event("paused")])
    with pytest.raises(StorageError, match="it has 0 events, and should have 1"):
        Campaign.open(store, "r")


def test_a_restored_backup_under_a_running_program_is_recognised(store, database_url):
    stored = store.create("r", [Event("created"), Event("paused"), Event("resumed")])
    back = "UPDATE safebo_runs SET head = 2, seal = (SELECT seal FROM safebo_events WHERE seq = 2)"
    execute(database_url, "DELETE FROM safebo_events WHERE seq = 3", back)
    with pytest.raises(StorageError, match="shorter or another"):
        store.events("r", 3, stored[-1].digest)
    store.append("r", 2, [Event("stopped")])
    with pytest.raises(StorageError, match="shorter or another"):
        store.events("r", 3, stored[-1].digest)
    assert [e.kind for e in store.events("r")] == ["created", "paused", "stopped"]


def test_the_clock_may_go_backwards(store, monkeypatch):
    times = iter(["2030-01-01T00:00:00.000000+00:00", "1999-01-01T00:00:00.000000+00:00"])
    monkeypatch.setattr(module, "now", lambda: next(times))
    store.create("r", [Event("created")])
    store.append("r", 1, [Event("paused")])
    assert [e.at[:4] for e in store.events("r")] == ["2030", "1999"]


DAMAGES_OF_A_RUN = {
    "renamed": "UPDATE safebo_runs SET name = 's'",
    "the tail is lost": "DELETE FROM safebo_events WHERE seq = (SELECT max(seq) FROM safebo_events)",
    "another key": "UPDATE safebo_requests SET key = 'kex 2' WHERE key = 'key 2'",
    "another fingerprint": "UPDATE safebo_requests SET fingerprint = 'g' WHERE key = 'key 2'",
    "another event": "UPDATE safebo_requests SET seq = 1 WHERE key = 'key 2'",
    "a lost request": "DELETE FROM safebo_requests WHERE key = 'key 2'",
    "a request too many": "INSERT INTO safebo_requests SELECT run, 'key 9', 'f', 1 FROM safebo_requests WHERE key = 'key 2'",
    "a request of nothing": "INSERT INTO safebo_requests SELECT run, 'key 9', 'f', 99 FROM safebo_requests WHERE key = 'key 2'",
    "another rule": "UPDATE safebo_runs SET since = since + 1",
    "a lower head": "UPDATE safebo_runs SET head = head - 1",
    "another head": "UPDATE safebo_runs SET seal = 'x'",
}


@contextlib.contextmanager
def restored(url):
    """What is done to a database in the body is taken back."""
    tables = ("safebo_runs", "safebo_events", "safebo_requests")
    execute(url, *(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}" for table in tables))
    try:
        yield
    finally:
        columns = "(name, since, earlier, head, seal)"
        back = [
            "DELETE FROM safebo_requests",
            "DELETE FROM safebo_events",
            f"UPDATE safebo_runs SET {columns} = (SELECT {columns[1:-1]} FROM kept_safebo_runs AS k WHERE k.id = safebo_runs.id)",
        ]
        back += [f"INSERT INTO {table} SELECT * FROM kept_{table}" for table in tables[1:]]
        execute(url, *back, *(f"DROP TABLE kept_{table}" for table in tables))


@pytest.mark.parametrize("damage", DAMAGES_OF_A_RUN)
def test_name_length_and_keys_belong_to_the_record(store, database_url, damage):
    store.create("r", [Event("created"), Event("told", {"value": 1})])
    store.append("r", 2, [Event("told", {"value": 2})], Request("key 2", "f"))
    store.append("r", 3, [Event("told", {"value": 3})])
    execute(database_url, DAMAGES_OF_A_RUN[damage])
    for name in store.names():
        with pytest.raises(StorageError, match="damaged"):
            store.events(name)


def test_a_run_that_vanished_is_noticed(store, database_url):
    store.create("r", [Event("created")])
    store.create("s", [Event("created")])
    if store.dialect == "postgresql":
        execute(database_url, "ALTER TABLE safebo_leases DROP CONSTRAINT safebo_leases_run_fkey")
        execute(database_url, "ALTER TABLE safebo_events DROP CONSTRAINT safebo_events_run_fkey")
    execute(database_url, "DELETE FROM safebo_runs WHERE name = 'r'")
    with pytest.raises(StorageError, match="list of runs"):
        store.names()


# -- tables -----------------------------------------------------------------------------------------------------------


def digest_of_version_2(before, seq, kind, at, who, body):
    return hashlib.sha256(json.dumps([before, seq, kind, at, who, body]).encode()).hexdigest()


def old(url, version):
    """A database of an earlier version, with a run of two events if it can have one."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for migration in MIGRATIONS[:version]:
            migration(connection)
        if version:
            execute = lambda statement, **values: connection.execute(sa.text(statement), values)  # noqa: E731
            execute(f"INSERT INTO safebo_meta VALUES ('schema', '{version}')")
            execute("INSERT INTO safebo_runs (name) VALUES ('r')")
            digest = ""
            for seq, body in enumerate(['{"value": 1}', '{"value": 2}'], 1):
                row = {"seq": seq, "kind": "created", "at": "2026", "who": "ada", "body": body}
                digest = digest_of_version_2(digest, *row.values())
                execute("INSERT INTO safebo_events VALUES (1, :seq, :kind, :at, :who, :body, :digest)", **row, digest=digest)
            if version > 1:
                execute("INSERT INTO safebo_requests VALUES (1, 'key 2', 'f', 2)")
    engine.dispose()


@pytest.mark.parametrize("version", range(SCHEMA))
def test_an_older_database_is_brought_up_to_date(database_url, version):
    old(database_url, version)
    with Store.open(database_url, create=version == 0) as store:
        assert store.version() == SCHEMA
        bodies = [e.body for n in store.names() for e in store.events(n)]
        assert bodies == ([{"value": 1}, {"value": 2}] if version else [])
        if version:
            store.append("r", 2, [Event("paused")], Request("key", "f"))
            assert store.request("r", "key") == Request("key", "f", 3)
            assert (store.request("r", "key 2") is not None) == (version > 1)
            assert len(store.events("r", 2)) == 1 and len(store.events("r")) == 3
    for damage in DAMAGES_OF_A_RUN.values():
        if version > 1 or (version and "key 2" not in damage):
            with Store.open(database_url) as store, restored(database_url):
                execute(database_url, damage)
                for run in store.names():
                    with pytest.raises(StorageError, match="damaged"):
                        store.events(run)


def test_an_older_program_cannot_write_to_tables_of_today(database_url):
    """It knows nothing of heads: what it wrote would look like damage."""
    old(database_url, 2)
    Store.open(database_url).close()
    with pytest.raises(exc.DBAPIError, match="digest"):
        execute(
            database_url, "INSERT INTO safebo_events (run, seq, kind, at, who, body, digest) VALUES (1, 3, '', '', '', '', '')"
        )


def test_a_newer_database_is_left_alone(database_url):
    Store.open(database_url).close()
    execute(database_url, "UPDATE safebo_meta SET value = '99'")
    before = dump(database_url)
    for create in (True, False):
        with pytest.raises(StorageError, match=r"newer safebo .*version 99.*update"):
            Store.open(database_url, create=create)
    assert dump(database_url) == before


@pytest.mark.parametrize("value", ["two", "", "-1", "1e3"])
def test_a_damaged_version_is_named(database_url, value):
    Store.open(database_url).close()
    execute(database_url, f"UPDATE safebo_meta SET value = '{value}'")
    with pytest.raises(StorageError, match="version"):
        Store.open(database_url)


def test_without_create_nothing_is_made(database_url, tmp_path):
    with pytest.raises(StorageError, match=r"no database|no runs"):
        Store.open(database_url, create=False)
    assert not list(tmp_path.iterdir())


# -- many at once -----------------------------------------------------------------------------------------------------


def _create(url, name, gate, results):
    gate.wait()
    try:
        with Store.open(url) as store:
            store.create(name, [Event("created")])
        results.put("created")
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")


def _append(url, writes, gate, results):
    gate.wait()
    done = conflicts = 0
    try:
        with Store.open(url) as store:
            while done < writes:
                try:
                    store.append("r", store.last("r"), [Event("paused", {"pid": os.getpid(), "n": done})])
                    done += 1
                except ConflictError:
                    conflicts += 1
        results.put(done)
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")


def together(target, count, *arguments):
    """The results of processes that start at the same moment."""
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(count), context.Queue()
    processes = [context.Process(target=target, args=(*arguments, gate, results)) for _ in range(count)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return answers


def test_one_of_many_creates_the_database_and_the_run(database_url):
    answers = together(_create, 5, database_url, "r")
    assert answers.count("created") == 1, answers
    assert all(a == "created" or a.startswith("ConflictError") for a in answers), answers
    with Store.open(database_url, create=False) as store:
        assert store.names() == ["r"] and len(store.events("r")) == 1


def test_many_writers_lose_nothing(store, database_url):
    store.create("r", [Event("created")])
    assert together(_append, 4, database_url, 15) == [15] * 4
    events = store.events("r")
    assert len(events) == 61
    assert len({(e.body["pid"], e.body["n"]) for e in events[1:]}) == 60


def test_many_threads_share_a_store(store):
    store.create("r", [Event("created")])
    done, failed = [], []

    def work():
        try:
            while len(done) < 60:
                with contextlib.suppress(ConflictError):
                    done.extend(store.append("r", store.last("r"), [Event("paused")]))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and sorted(e.seq for e in done) == list(range(2, len(done) + 2))


def test_a_reader_does_not_wait_for_a_long_write(store, database_url):
    store.create("r", [Event("created")])
    with Store.open(database_url) as other, other._writing() as connection:
        other._insert(connection, other._head(connection, "r", lock=True), [Event("paused")])
        start = time.monotonic()
        assert [e.kind for e in store.events("r")] == ["created"] and store.names() == ["r"]
        assert time.monotonic() - start < 5.0
    assert [e.kind for e in store.events("r")] == ["created", "paused"]


def test_who_waits_too_long_for_a_writer_is_told(monkeypatch, database_url):
    monkeypatch.setattr(connect, "WAIT", 0.5)
    with Store.open(database_url) as one, Store.open(database_url) as two:
        one.create("r", [Event("created")])
        with one._writing() as connection:
            connection.execute(sa.select(module._runs.c.id).with_for_update())
            start = time.monotonic()
            with pytest.raises(StorageError, match=r"(lock|busy|wait).*Nothing was stored"):
                two.append("r", 1, [Event("paused")])
            assert 0.2 < time.monotonic() - start < 10.0
        two.append("r", 1, [Event("paused")])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_connections_of_its_own(store):
    store.create("r", [Event("created")])
    inherited = set(map(id, pooled(store)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # beside idle threads of other libraries
        child = os.fork()
    if child == 0:
        status = 1
        try:
            store.append("r", 1, [Event("in the child")])
            status = 0 if not inherited & set(map(id, pooled(store))) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.append("r", 2, [Event("in the parent")])
    assert [e.kind for e in store.events("r")] == ["created", "in the child", "in the parent"]


def pooled(store):
    """The connections that the pool holds."""
    held = []
    with store._engine.connect() as connection:
        held.append(connection.connection.dbapi_connection)
    return held


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/x",
        "postgresql://me:s3cret@127.0.0.1:port/x",
        "postgresql://me@127.0.0.1:1/x?password=s3cret",
        "postgresql://me:s3cret@[::1:1/x",
        "postgresql+none://me:s3cret@127.0.0.1:1/x",
        "mysql://me:s3cret@localhost/x",
        "post gres://me:s3cret@localhost/x",
        "://me:s3cret@localhost/x",
        "postgresql://me:s3cret@127.0.0.1:1/x?connect_timeout=1&sslmode=wrong",
    ],
)
def test_no_message_contains_the_password(url):
    with pytest.raises((StorageError, InvalidValueError, ImportError)) as caught:
        Store.open(url)
    error = caught.value
    while error is not None:
        assert "s3cret" not in str(error), repr(error)
        error = error.__cause__


@pytest.mark.parametrize("url", ["", "  ", "sqlite://", "sqlite:///:memory:", "mysql://a/b", "nonsense://"])
def test_what_is_not_a_database_is_refused(url):
    with pytest.raises(InvalidValueError):
        Store.open(url)


@pytest.mark.parametrize("folder", ["plain", "with space", "per%20cent", "que?stion#mark", "ünï ✓"])
def test_folders_of_any_name(tmp_path, folder):
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "safebo.db"
    with Store.open(path) as store:
        store.create("r", [Event("created")])
    assert [p.name for p in (tmp_path / folder).iterdir()] == ["safebo.db"]  # a checkpoint on close: one file to copy
    with Store.open(str(path), create=False) as store:
        assert store.names() == ["r"]


# -- foreign files ----------------------------------------------------------------------------------------------------


def foreign(path, kind):
    if kind == "text":
        path.write_text("name,value\n" * 100)
    elif kind == "binary":
        path.write_bytes(os.urandom(5000))
    elif kind == "truncated":
        with Store.open(path) as store:
            store.create("r", [Event("created", {"x": "y" * 20000})])
        path.write_bytes(path.read_bytes()[:5000])
    else:
        connection = sqlite3.connect(path)
        if kind == "wal":
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE photos (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO photos VALUES (1, 'cat')")
        connection.commit()
        connection.close()


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("kind", ["text", "binary", "truncated", "sqlite", "wal"])
def test_a_file_of_another_program_is_not_altered(tmp_path, kind, create):
    path = tmp_path / "other.db"
    foreign(path, kind)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(StorageError, match=r"other\.db"):
        Store.open(path, create=create)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert kind == "truncated" or [p.name for p in tmp_path.iterdir()] == ["other.db"]


def test_a_folder_or_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StorageError, match="folder"):
        Store.open(tmp_path)
    with pytest.raises(StorageError, match=r"folder.*does not exist"):
        Store.open(tmp_path / "none" / "x.db")


# -- PostgreSQL -------------------------------------------------------------------------------------------------------


def test_a_server_that_restarts_between_two_calls_goes_unnoticed(server):
    with Store.open(server.database()) as store:
        store.create("r", [Event("created")])
        server.crash()
        try:
            with pytest.raises(StorageError, match="cannot be used"):
                store.append("r", 1, [Event("paused")])
        finally:
            server.start()
        store.append("r", 1, [Event("paused")])
        assert [e.kind for e in store.events("r")] == ["created", "paused"]


@pytest.mark.parametrize("options", ["ENCODING 'SQL_ASCII' TEMPLATE template0", "ENCODING 'UTF8' TEMPLATE template0"])
def test_any_encoding_that_can_hold_the_text(server, options):
    with Store.open(server.database(options)) as store:
        store.create("実験 🤖", [Event("created", {"é": "ü"}, "Zoë")])
        assert store.names() == ["実験 🤖"] and store.events("実験 🤖")[0].who == "Zoë"


def test_a_schema_of_ones_own(server):
    url = server.database()
    execute(url, "CREATE SCHEMA lab")
    with Store.open(url + "&options=-csearch_path%3Dlab") as store:
        store.create("r", [Event("created")])
    assert execute(url, "SELECT count(*) FROM lab.safebo_runs")[0][0] == 1
    assert execute(url, "SELECT to_regclass('public.safebo_runs')")[0][0] is None


def test_commits_are_synced_whatever_the_database_defaults_to(server):
    url = server.database()
    name = url.split("?")[0].rpartition("/")[2]
    server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    with Store.open(url) as store, store._writing() as connection:
        assert connection.scalar(sa.text("SHOW synchronous_commit")) == "on"
        assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"


def test_sqlite_syncs_every_commit(tmp_path):
    with Store.open(tmp_path / "x.db") as store, store._writing() as connection:
        pragmas = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert pragmas == ["wal", 2, 1]


def test_events_are_plain_json(store, database_url):
    store.create("r", [Event("created", {"x": [0.1, 1e-300, 5e-324, -0.0]})])
    assert json.loads(execute(database_url, "SELECT body FROM safebo_events")[0][0]) == {"x": [0.1, 1e-300, 5e-324, -0.0]}


@pytest.mark.parametrize("harm", ["delete", "replace", "wal"])
def test_a_file_that_is_taken_away_is_noticed(tmp_path, harm):
    path = tmp_path / "runs.db"
    with Store.open(path) as store:
        store.create("a", [Event("created", {"n": 1})])
        if harm == "delete":
            for part in tmp_path.iterdir():
                part.unlink()
        elif harm == "replace":
            copy = tmp_path / "copy.db"
            copy.write_bytes(path.read_bytes())
            copy.replace(path)
        else:
            (tmp_path / "runs.db-wal").unlink()
        with pytest.raises(StorageError, match=r"deleted or replaced while it was in use|unknown"):
            store.append("a", 1, [Event("paused", {})])


# -- one file, whatever it is called ----------------------------------------------------------------------------------


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_symbolic_link_names_the_same_file(tmp_path, linked):
    """The files beside a database are looked for beside the file itself."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").mkdir()
    if linked == "file":
        (tmp_path / "home" / "lab.db").symlink_to(tmp_path / "disk" / "lab.db")
        link = tmp_path / "home" / "lab.db"
    else:
        (tmp_path / "home" / "lab").symlink_to(tmp_path / "disk")
        link = tmp_path / "home" / "lab" / "lab.db"
    with Store.open(link) as store, Store.open(tmp_path / "disk" / "lab.db") as direct:
        store.create("r", [Event("created")])
        direct.append("r", 1, [Event("paused")])
        store.append("r", 2, [Event("resumed")])
        assert [e.kind for e in direct.events("r")] == ["created", "paused", "resumed"]
    assert sorted(p.name for p in (tmp_path / "disk").iterdir()) == ["lab.db"]


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "loop.db").symlink_to(tmp_path / "loop.db")
    with pytest.raises(StorageError, match=r"loop\.db"):
        Store.open(tmp_path / "loop.db")


def test_a_file_with_two_names_is_refused(tmp_path):
    """SQLite keeps its log beside the name: under another name it is not found, and the file is damaged."""
    with Store.open(tmp_path / "lab.db") as store:
        store.create("r", [Event("created")])
    (tmp_path / "copy.db").hardlink_to(tmp_path / "lab.db")
    for name in ("lab.db", "copy.db"):
        with pytest.raises(StorageError, match=r"2 names \(hard links\)"):
            Store.open(tmp_path / name)
        with Store.open(tmp_path / name, read_only=True) as store:
            assert store.names() == ["r"]
    (tmp_path / "copy.db").unlink()
    with Store.open(tmp_path / "lab.db") as store:
        store.append("r", 1, [Event("paused")])


def test_a_connection_that_cannot_be_prepared_is_closed(tmp_path, monkeypatch):
    made = []

    class Stubborn(sqlite3.Connection):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.closed = False
            made.append(self)

        def execute(self, statement, *arguments):
            if "synchronous" in statement:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(statement, *arguments)

        def close(self):
            self.closed = True
            super().close()

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **k, factory=Stubborn))
    with pytest.raises(StorageError, match="disk I/O"):
        Store.open(tmp_path / "x.db")
    assert made
    assert all(connection.closed for connection in made)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://127.0.0.1:1/x?port=abc",
        "postgresql://127.0.0.1:1/x?nonsense=1",
        "postgresql://127.0.0.1:1/x?connect_timeout=abc",
        "postgresql://127.0.0.1:99999/x",
        f"postgresql://{'a' * 300}/x",
        "postgresql:///x?options=a&options=b&host=/nonexistent",
        "postgresql:",
        "sqlite:x.db",
        "sqlite:///a\0b",
        "a\0b",
        "sqlite:///" + "x" * 300,
        "x" * 5000,
        "a\ud800b",
        b"x",
        5,
        None,
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_wrong_address_is_one_line_of_ours(tmp_path, monkeypatch, url, read_only):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((StorageError, InvalidValueError)) as caught:
        Store.open(url, read_only=read_only)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [exc.InvalidRequestError, exc.PendingRollbackError, exc.ResourceClosedError, MemoryError])
def test_every_error_of_the_library_below_is_ours(store, monkeypatch, error):
    store.create("r", [Event("created")])

    def broken(*_, **__):
        raise error("out of order")

    monkeypatch.setattr(store, "_head", broken)
    with pytest.raises(StorageError, match="out of order"):
        store.append("r", 1, [Event("paused")])


# -- connections that are cut or fall silent --------------------------------------------------------------------------


@pytest.fixture
def proxy(server):
    made = Proxy(server.folder)
    yield made
    made.close()


@pytest.mark.parametrize("also_new", [False, True])
def test_a_silent_connection_is_given_up(server, proxy, monkeypatch, also_new):
    """Nothing is closed, no byte comes: as behind a firewall that forgot the line."""
    monkeypatch.setattr(connect, "SILENCE", 2)
    monkeypatch.setattr(connect, "READING", 2)
    with Store.open(proxy.url(server.schema())) as store:
        store.create("r", [Event("created")])
        proxy.silence(also_new=also_new)
        start = time.monotonic()
        if also_new:
            for work in (lambda: store.events("r"), lambda: store.append("r", 1, [Event("paused")])):
                with pytest.raises(StorageError, match=r"cannot be used.*Nothing was stored"):
                    work()
        else:
            assert len(store.events("r")) == 1
            store.append("r", 1, [Event("paused")])
        assert time.monotonic() - start < 25.0


def test_an_answer_that_takes_long_is_waited_for(server, proxy, monkeypatch):
    """Another writer holds the run: that is not silence."""
    monkeypatch.setattr(connect, "SILENCE", 1)
    with Store.open(proxy.url(server.schema())) as store:
        store.create("r", [Event("created")])
        with store._writing() as connection:
            connection.execute(sa.text("SELECT pg_sleep(3)"))


def test_what_the_url_says_about_the_line_counts(server):
    url = server.schema()
    with Store.open(f"{url}&keepalives_idle=77") as store, store._reading() as connection:
        given = connection.connection.dbapi_connection.info.get_parameters()
    assert (given["keepalives_idle"], given["tcp_user_timeout"], given["connect_timeout"]) == ("77", "10000", "5")


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("step", ["create", "append"])
def test_a_commit_that_arrives_late(server, proxy, monkeypatch, step, arrives):
    """The connection is cut while a COMMIT is on its way: whether it is stored is asked, not guessed."""
    monkeypatch.setattr(connect, "WAIT", 6.0)
    url = server.schema()
    with Store.open(url) as direct, Store.open(proxy.url(url)) as store:
        if step == "append":
            direct.create("r", [Event("created")])
        store.names()
        proxy.hold.set()

        def later():
            assert proxy.held.wait(20.0)
            proxy.hold.clear()  # other connections are as before
            proxy.cut()
            if arrives:
                time.sleep(1.0)
                proxy.release()

        thread = threading.Thread(target=later)
        thread.start()
        work = (lambda: store.create("r", [Event("created")])) if step == "create" else lambda: store.append("r", 1, [Event("a")])
        if arrives:
            assert [e.seq for e in work()] == [1 if step == "create" else 2]
        else:
            with pytest.raises(InDoubtError, match="unknown"):
                work()
        thread.join()
        proxy.release()
        time.sleep(0.5)
        assert direct.last("r") == (1 if step == "create" else 2)

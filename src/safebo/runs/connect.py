"""Connections to the databases of runs: SQLite in a file, or a PostgreSQL server.

Every commit is synced to disk. A connection that stays silent is given up after some seconds, so that nobody waits for a cable
that was pulled.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as listening
from sqlalchemy import exc

from safebo.exceptions import InvalidValueError, MissingExtraError, StorageError
from safebo.extras import how_to_install
from safebo.nesting import whole
from safebo.runs.schema import META

WAIT = 30.0
"""Seconds to wait for another process that writes."""

SILENCE = 5.0
"""Seconds without a byte from a server that has only to say that it is there."""

READING = 10.0
"""Seconds without a byte from a server that looks something up."""

EXAMPLE = 'A database is a file such as "safebo.db" or a URL such as postgresql://user@host/name'

FOREIGN = "{} belongs to another program: name another file. Nothing was changed in it."


class Database:
    """An engine, and where its data are."""

    def __init__(self, engine: sa.Engine, where: str, file: Path | None = None) -> None:
        self.engine, self.where, self.file = engine, where, file


def connect(url: str | Path, create: bool, read_only: bool) -> Database:
    """The database of a file's name or of a URL; no connection is made yet."""
    if not isinstance(url, (str, Path)) or not str(url).strip():
        raise InvalidValueError(f"{EXAMPLE}, got {url!r:.100}.")
    text = str(url)
    if "\0" in text:
        raise InvalidValueError(
            f"{EXAMPLE}, got {text.partition(chr(0))[0].rpartition('@')[2]!r:.100}... with a zero byte in it."
        )
    if re.match(r"(sqlite|postgres(ql)?)(\+\w+)?:(?!//)", text):
        raise InvalidValueError(f"{text.partition(':')[0]!r} has to be followed by two slashes: sqlite:///FILE, postgresql://...")
    if "://" in text and not whole(text):
        raise InvalidValueError("The URL of the database is not text in the encoding of this terminal or program.")
    if "://" not in text:
        return _sqlite(Path(text), create, read_only)
    try:
        parsed = sa.make_url(text)
        backend = parsed.get_backend_name()
    except (exc.SQLAlchemyError, ValueError):  # the text may contain a password
        scheme = text.partition("://")[0]
        raise InvalidValueError(
            f"Not a database URL: {scheme!r:.30}://... Use sqlite:///FILE or postgresql://USER@HOST/NAME."
        ) from None
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise InvalidValueError(f"{text!r} names no file: a durable run needs one, such as sqlite:///safebo.db.")
        return _sqlite(Path(parsed.database), create, read_only)
    if backend in ("postgresql", "postgres"):
        return _postgresql(parsed, read_only)
    raise InvalidValueError(f"{backend!r} databases are not supported: use SQLite (a file) or PostgreSQL.")


# -- SQLite -------------------------------------------------------------------------------------------------------------------


def _sqlite(given: Path, create: bool, read_only: bool) -> Database:
    path = _file(given, create, read_only)
    uri = path.as_uri() + (_reading_mode(path) if read_only else f"?mode={'rwc' if create else 'rw'}")

    def connection() -> sqlite3.Connection:
        made = sqlite3.connect(uri, uri=True, timeout=WAIT, isolation_level=None, check_same_thread=False)
        try:
            if not read_only:
                _log_ahead(made)
            made.execute("PRAGMA synchronous=FULL")  # every commit is synced: nothing told is lost in a power cut
            made.execute("PRAGMA foreign_keys=ON")
        except BaseException:
            made.close()
            raise
        return made

    engine = sa.create_engine("sqlite://", creator=connection, poolclass=sa.pool.QueuePool, pool_size=5, max_overflow=60)
    listening.listen(engine, "begin", _begin)
    return Database(engine, str(given), path)


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Writers that do not hinder readers. SQLite does not wait here where several processes make a file at the same moment."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _file(given: Path, create: bool, read_only: bool) -> Path:
    """The file itself: SQLite looks for what belongs to it (`-wal`) beside the name that it is opened by."""
    try:
        path = given.resolve()
        if path.is_dir():
            raise StorageError(f"{str(given)!r} is a folder: name a file in it, such as safebo.db.")
        if not create and not path.exists():
            raise StorageError(f"There is no database {str(given)!r}. Start a run first, or name another file.")
        if not path.parent.is_dir():
            raise StorageError(f"The folder of the database {str(given)!r} does not exist.")
        names = path.stat().st_nlink if path.exists() else 1
        path.as_uri()
    except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, a link that leads to itself
        why = getattr(error, "strerror", None) or str(error).partition(":")[0]
        raise StorageError(f"The file {str(given)!r:.200} cannot be used as a database: {why}.") from error
    if names > 1 and not read_only:
        raise StorageError(
            f"The file {str(given)!r} has {names} names (hard links), and who writes it under one of them damages it for the "
            "others: delete all names but one, or make a copy of it."
        )
    _refuse_foreign(path, given)
    return path


def identity(path: Path) -> tuple[int, int]:
    """Which file a name stands for."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _refuse_foreign(path: Path, given: Path) -> None:
    """Look at a file without touching it; what is no database, or damaged, shows when it is opened."""
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except (sqlite3.Error, UnicodeError):
        return
    if names and META not in names:
        raise StorageError(FOREIGN.format(str(given)))


def _reading_mode(path: Path) -> str:
    """Parameters of the file's URI for reading; without the files beside it where SQLite cannot make them."""
    plain = "?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(path.as_uri() + plain, uri=True, timeout=WAIT)) as connection:
            connection.execute("SELECT 1 FROM sqlite_master").fetchall()
    except (sqlite3.OperationalError, UnicodeError):
        if not Path(f"{path}-wal").exists():  # nobody writes it, and all of it is in the file
            return f"{plain}&immutable=1"
    return plain


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("safebo_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# -- PostgreSQL ---------------------------------------------------------------------------------------------------------------


def _postgresql(url: sa.URL, read_only: bool) -> Database:
    hidden = [name for name in url.query if "password" in name.lower()]
    where = url.difference_update_query(hidden).set(drivername="postgresql").render_as_string(hide_password=True)
    given = url.query.get("options", "")
    settings = {
        "synchronous_commit": "on",  # whatever the server's default is
        "lock_timeout": f"{WAIT * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{WAIT * 2000:.0f}",  # a client that hangs does not block the others
        "default_transaction_read_only": "on" if read_only else "off",
    }
    options = " ".join([given if isinstance(given, str) else " ".join(given), *(f"-c {k}={v}" for k, v in settings.items())])
    usual = {  # a line that is cut without a farewell: the system notices it as well
        "connect_timeout": SILENCE,
        "keepalives_idle": SILENCE,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": READING * 1000,
    }
    arguments: dict[str, Any] = {"options": options.strip(), "client_encoding": "utf8"}
    arguments |= {name: int(value) for name, value in usual.items() if name not in url.query}
    try:
        engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args=arguments,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,  # the server may have been restarted
            max_overflow=60,
        )
    except ImportError as error:
        raise MissingExtraError(f"PostgreSQL needs a driver ({error}): {how_to_install('postgres')}.") from None
    except (exc.SQLAlchemyError, ValueError) as error:
        raise InvalidValueError(f"The URL {where!r:.200} cannot be used: {' '.join(str(error).split())}") from None
    listening.listen(engine, "do_connect", _impatient)
    return Database(engine, where)


def _impatient(dialect: sa.Dialect, record: object, arguments: list[Any], options: dict[str, Any]) -> Any:
    """A connection that gives up when nothing is heard of the server: a cable may be pulled, or a firewall forget the line."""
    import psycopg

    class Connection(psycopg.Connection[Any]):
        patience = SILENCE

        def wait(self, gen: Generator[Any, Any, Any], *others: Any, **named: Any) -> Any:
            return super().wait(self._heard(gen), *others, **named)

        def _heard(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            last = time.monotonic()
            try:
                state = next(gen)
                while True:
                    ready = yield state
                    if ready:
                        last = time.monotonic()
                    elif time.monotonic() - last > self.patience:
                        self.pgconn.finish()  # closes it: what the server does meanwhile is unknown
                        raise psycopg.OperationalError(f"no answer within {self.patience:g} s")
                    state = gen.send(ready)
            except StopIteration as end:
                return end.value

    return Connection.connect(*arguments, **options)


@contextlib.contextmanager
def patience(connection: sa.Connection, seconds: float) -> Iterator[None]:
    """How long the body waits for a silent server."""
    raw: Any = connection.connection.dbapi_connection
    before = getattr(raw, "patience", None)
    if before is None:
        yield
        return
    raw.patience = seconds
    try:
        yield
    finally:
        raw.patience = before

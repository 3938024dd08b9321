"""A private PostgreSQL server for tests and benchmarks: its own folder, a unix socket, no network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

HELP = "PostgreSQL is not installed: apt-get install postgresql (Debian, Ubuntu), or put its initdb and postgres on the PATH."


def binaries() -> Path | None:
    """The folder with `initdb` and `postgres`; None if there is none."""
    found = shutil.which("initdb")
    if found is not None and (Path(found).parent / "postgres").exists():
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def install(*packages: str) -> None:
    """Install Debian packages where that is possible: as root, with apt-get."""
    if os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *packages]):
            subprocess.run(command, env=environment, capture_output=True, check=False, timeout=600)


class Server:
    """A server with an empty cluster; every commit is synced, as by default."""

    def __init__(self) -> None:
        found = binaries()
        if found is None:
            raise RuntimeError(HELP)
        self._bin = found
        self._as = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        self.folder = Path(tempfile.mkdtemp(prefix="safebo-pg-"))
        self.folder.chmod(0o711)
        if self._as:
            shutil.chown(self.folder, "postgres", "postgres")
        self._process: subprocess.Popen[bytes] | None = None
        arguments = ["-D", str(self.folder / "data"), "-A", "trust", "-U", "safebo", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            [str(self._bin / "initdb"), *arguments], cwd="/", capture_output=True, text=True, check=False, **self._as
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr}")
        self._databases = 0

    def start(self) -> None:
        """Start, or start again after a crash; returns when it answers."""
        deadline = time.monotonic() + 60.0
        while True:
            if self._process is None or self._process.poll() is not None:  # not yet, or still in the way of itself
                self._process = self._launch()
            if self.answers():
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def _launch(self) -> subprocess.Popen[bytes]:
        options = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "recovery_init_sync_method": "syncfs"}
        pairs = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            command = [str(self._bin / "postgres"), "-D", str(self.folder / "data"), *pairs]
            return subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as)

    def answers(self) -> bool:
        """Whether it takes connections."""
        import psycopg

        try:
            psycopg.connect(f"host={self.folder} user=safebo dbname=postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement as the administrator."""
        import psycopg

        with psycopg.connect(f"host={self.folder} user=safebo dbname=postgres", autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def database(self, options: str = "") -> str:
        """The URL of a new, empty database."""
        self._databases += 1
        name = f"safebo_{self._databases}"
        self.execute(f"CREATE DATABASE {name} {options}")
        return f"postgresql://safebo@/{name}?host={self.folder}"

    def schema(self) -> str:
        """The URL of a new, empty schema: quicker than a database of its own."""
        self._databases += 1
        self.execute(f"CREATE SCHEMA safebo_{self._databases}")
        return f"postgresql://safebo@/postgres?host={self.folder}&options=-csearch_path%3Dsafebo_{self._databases}"

    def crash(self, sent: signal.Signals = signal.SIGQUIT) -> None:
        """As `pg_ctl stop -m immediate` does (SIGQUIT), or kill -9: no checkpoint, no farewell to the clients."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(sent)
            self._process.wait(60)

    def stop(self) -> None:
        """Shut down and remove the folder."""
        self.crash()  # nothing is kept: no reason to wait for a checkpoint
        shutil.rmtree(self.folder, ignore_errors=True)

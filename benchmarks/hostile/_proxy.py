"""A proxy before a PostgreSQL server, on loopback, that can fall silent: it swallows bytes without closing anything."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from pathlib import Path


class Proxy:
    """Passes connections on, until it falls silent."""

    def __init__(self, server: Path) -> None:
        self._server = str(server / ".s.PGSQL.5432")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        self._all_silent = threading.Event()
        self.hold = threading.Event()  # set: a COMMIT is kept back
        self.held = threading.Event()
        self._go = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """The same database through the proxy."""
        return re.sub(r"@/(\w+)\?host=[^&]*&?", rf"@127.0.0.1:{self.port}/\1?", url)

    def silence(self, *, also_new: bool) -> None:
        """Every open connection falls silent; with `also_new` those made later as well."""
        self._silent |= {end for pair in self._pairs for end in pair}
        if also_new:
            self._all_silent.set()

    def cut(self) -> None:
        """The clients lose their connections; what was kept back reaches the server afterwards."""
        for client, _ in list(self._pairs):
            self._silent.add(client)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Send on what was kept back."""
        self.hold.clear()
        self._go.set()

    def close(self) -> None:
        self._go.set()
        for end in [self._listener, *(end for pair in self._pairs for end in pair)]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._pairs.append((client, server))
                if self._all_silent.is_set():
                    self._silent |= {client, server}
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, target, source is client), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, upwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source in self._silent or target in self._silent:
                    continue
                if upwards and self.hold.is_set() and re.search(rb"COMMIT(?!TED)", data):
                    self.held.set()
                    self._go.wait(60.0)
                target.sendall(data)

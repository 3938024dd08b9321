"""`safebo serve`."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from safebo.exceptions import InvalidValueError, NoGuaranteeWarning, SafeboWarning, SettingsWarning
from safebo.runs.storage import Store
from safebo.server.app import create_app
from safebo.server.auth import Tokens, is_loopback
from safebo.server.connections import Connections, more_files, protocol
from safebo.server.limits import Limits

QUEUE = 4096
"""Connections that wait to be taken."""

log = logging.getLogger("safebo.server")


def main(
    url: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    tokens: Tokens | None = None,
    limits: Limits | None = None,
    certificate: Path | None = None,
    private_key: Path | None = None,
) -> None:
    """Serve the runs of a database until interrupted.

    Tokens come from `token_file` and from SAFEBO_OPERATOR_TOKEN, SAFEBO_RIG_TOKEN and SAFEBO_VIEWER_TOKEN. Without any the server
    is open to this computer's own programs, and refuses to be reached from elsewhere.
    """
    known = (tokens or Tokens()) + Tokens.from_environment()
    if token_file is not None:
        known = known + Tokens.read(token_file)
    check_address(host, known)
    if (certificate is None) != (private_key is None):
        raise InvalidValueError("TLS needs both a certificate and its private key, got one of them.")
    for file in filter(None, (certificate, private_key)):
        file.open("rb").close()  # the error of TLS has no name in it
    if not is_loopback(host) and certificate is None:
        log.warning("Tokens travel unencrypted: use --certificate and --private-key, a VPN, or a proxy with TLS.")
    warnings.simplefilter("default", SafeboWarning)  # a warning about a run is no reason to refuse a request
    for category in (SettingsWarning, NoGuaranteeWarning):  # they are in the answer to whoever creates a run
        warnings.simplefilter("ignore", category)
    store = Store.open(url)
    if not store.names():
        log.warning(
            "There is no run in %s yet: `safebo init` writes a configuration and `safebo run --db %s` makes a run of it; "
            "POST /api/v1/runs makes one over HTTP. The page shows it as soon as it is there.",
            *(store.where, store.where),
        )
    more_files()
    server = server_of(
        store,
        known,
        limits=limits,
        apart=str(url),
        host=host,
        port=port,
        log_level="info",
        timeout_graceful_shutdown=3,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
    )
    try:
        server.run()
    except KeyboardInterrupt:
        pass
    except ssl.SSLError as error:
        raise InvalidValueError(
            f"{certificate} and {private_key} are not a certificate and its private key in PEM format: {error}."
        ) from None
    finally:
        store.close()


class Server(uvicorn.Server):
    """Takes new connections a few at a time, while many may wait to be taken."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        if self.config.ssl is not None:  # whoever connects and does not speak TLS has no longer than others
            loop = asyncio.get_running_loop()
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=20.0)  # type: ignore[method-assign]
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                with listening.dup() as same:
                    same.listen(QUEUE)


def server_of(
    store: Store,
    tokens: Tokens | None = None,
    *,
    limits: Limits | None = None,
    local: str = "",
    apart: str | None = None,
    **options: Any,
) -> Server:
    """A server for the runs of a store, not yet started; `options` are those of uvicorn."""
    limits = limits or Limits()
    connections = Connections(limits)
    app = create_app(store, tokens, limits=limits, local=local, apart=apart, connections=connections)
    app.state.connections = connections
    config = uvicorn.Config(
        app,
        http=protocol(connections),
        ws="none",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 * 1024,
        backlog=64,
        **options,
    )
    return Server(config)


@contextmanager
def serving(store: Store, *, port: int = 0, limits: Limits | None = None) -> Iterator[str]:
    """Serve a store to this computer from a thread, while the body runs; yields the page's address. Port 0: any free one."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = server_of(store, limits=limits, log_level="error", timeout_graceful_shutdown=1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(10.0)


def check_address(host: str, tokens: Tokens) -> None:
    """Without tokens only a loopback address is served."""
    if not tokens and not is_loopback(host):
        raise InvalidValueError(
            f"Serving on {host!r} needs a token, since others can reach it: --token-file with lines `name role token`, or the "
            "variable SAFEBO_OPERATOR_TOKEN. Without a token, serve on 127.0.0.1."
        )

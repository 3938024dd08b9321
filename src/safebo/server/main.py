"""`safebo serve`."""

from __future__ import annotations

import logging
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from safebo.exceptions import InvalidValueError, SafeboWarning
from safebo.runs.storage import Store
from safebo.server.app import create_app
from safebo.server.auth import Tokens, is_loopback
from safebo.server.limits import Limits

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
    if not is_loopback(host) and certificate is None:
        log.warning("Tokens travel unencrypted: use --certificate and --private-key, a VPN, or a proxy with TLS.")
    warnings.simplefilter("default", SafeboWarning)  # a warning about a run is no reason to refuse a request
    store = Store.open(url)
    if not store.names():
        log.warning(
            "There is no run in %s yet: `safebo init` writes a configuration and `safebo run --db %s` makes a run of it; "
            "POST /api/v1/runs makes one over HTTP. The page shows it as soon as it is there.",
            *(store.where, store.where),
        )
    try:
        uvicorn.run(
            create_app(store, known, limits=limits),
            host=host,
            port=port,
            server_header=False,
            proxy_headers=False,
            ws="none",
            log_level="info",
            access_log=False,
            timeout_keep_alive=30,
            limit_concurrency=1000,
            h11_max_incomplete_event_size=64 * 1024,
            timeout_graceful_shutdown=3,
            ssl_certfile=certificate,
            ssl_keyfile=private_key,
        )
    finally:
        store.close()


@contextmanager
def serving(store: Store, *, port: int = 0, limits: Limits | None = None) -> Iterator[str]:
    """Serve a store to this computer from a thread, while the body runs; yields the page's address. Port 0: any free one."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(
            create_app(store, limits=limits), log_level="error", access_log=False, ws="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
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

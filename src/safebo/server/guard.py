"""What every request passes before anything of it is read: address, rate, token, role, type and size of the body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from safebo.server.auth import Caller, Tokens, bearer, is_loopback
from safebo.server.limits import Buckets, Limits, retry_after
from safebo.server.problems import problem

API = "/api/"

RUNS = "/api/v1/runs/"

READING = ("GET", "HEAD")

PAUSE = 0.25
"""Seconds before somebody who sends too many requests is told so."""

HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    b"x-frame-options": b"DENY",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


class Guard:
    """The outermost layer of the server.

    Without tokens everybody who reaches the server is an operator: then it must be bound to a loopback address, and requests that
    a web page of another origin causes are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        limits: Limits,
        local: Caller,
        accepted: Callable[[tuple[str, int] | None, str], None] | None = None,
    ) -> None:
        self.app, self.tokens, self.limits, self.local, self.accepted = app, tokens, limits, local, accepted
        self._rate = Buckets(limits.rate, limits.burst)
        self._failures = Buckets(limits.failures / 60.0, limits.failures)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let through."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            if refusal.status_code == 429:  # who asks again without waiting would keep the server busy with refusals
                await asyncio.sleep(PAUSE)
            await refusal(scope, receive, _with_headers(send, scope["path"]))
            return
        if scope["path"].startswith(API) and scope.get("raw_path"):  # names stay percent-encoded until a handler decodes them
            scope["path"] = scope["raw_path"].partition(b"?")[0].decode("latin-1")
        body = _Body(receive, self.limits.body)
        sent = _with_headers(send, scope["path"])
        try:
            await self.app(scope, body, _Started(sent, body))
        except _TooLarge:
            await problem(413, self._too_large())(scope, receive, sent)

    def _too_large(self) -> str:
        return f"The body of a request has at most {self.limits.body} bytes: send less at once."

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Any:
        client = (scope.get("client") or ("?", 0))[0]
        api = scope["path"].startswith(API)
        if not self.tokens and (stranger := _stranger(headers)):
            return problem(403, stranger)
        reading = scope["method"] in READING
        caller: Caller | None = None
        if api and not self.tokens:
            caller = self.local
        elif api:
            secret = bearer(headers.get(b"authorization", b""))
            caller = None if secret is None else self.tokens.caller(secret)
            if caller is None:  # only the wrong ones wait: a neighbour's mistakes keep nobody from stopping a run
                if wait := self._failures.spend(client):
                    return _wait(wait, "Too many requests without a valid token")
                return problem(
                    401,
                    "This needs a token: send the header `Authorization: Bearer TOKEN`."
                    if secret is None
                    else "This token is not known here.",
                    {"www-authenticate": "Bearer"},
                )
        # Reading and acting have limits of their own: who watches too eagerly can still stop a run.
        if wait := self._rate.spend(f"{client} {caller.name if caller else ''} {reading}"):
            return _wait(wait, "Too many requests")
        if caller is None:
            return None
        scope.setdefault("state", {})["caller"] = caller
        if self.accepted is not None:
            self.accepted(scope.get("client"), caller.name)
        if reading:
            return None
        if not caller.may(_verb(scope)):
            return problem(403, f"{caller.name!r} is {caller.rights}: use an operator's token.")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.body:
            return problem(413, self._too_large())
        if int(length) or b"transfer-encoding" in headers:
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                return problem(415, "Send JSON, with the header `Content-Type: application/json`.")
        return None


def _stranger(headers: dict[bytes, bytes]) -> str:
    """Why a request to an open local server does not come from this computer's own programs; empty if it may."""
    host = headers.get(b"host", b"").decode("latin-1")
    if not is_loopback(_hostname(host)):
        return f"This server answers to localhost only, not to {host!r:.100}."
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and _place(origin) != host.lower():
        return f"Requests of pages from {origin!r:.100} are refused."
    if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
        return "Requests of other sites' pages are refused."
    return ""


def _place(origin: str) -> str | None:
    """Host and port of an origin; None for what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _verb(scope: Scope) -> str:
    """What a request does to a run, from the very path that finds its endpoint; empty if it is about no run."""
    path = (scope.get("raw_path") or scope["path"].encode("utf-8")).partition(b"?")[0].decode("latin-1")
    parts = path.removeprefix(RUNS).split("/") if path.startswith(RUNS) else []
    return parts[1] if len(parts) == 2 and scope["method"] == "POST" else ""


def _hostname(host: str) -> str:
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _wait(seconds: float, what: str) -> Any:
    text = retry_after(seconds)
    return problem(429, f"{what} from this address: wait {text} s.", {"retry-after": text})


class _TooLarge(Exception):
    """More bytes arrived than are taken."""


class _Body:
    """Counts the bytes of a body as they arrive."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._count = receive, limit, 0
        self.exceeded = False

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._count += len(message.get("body", b""))
            if self._count > self._limit:
                self.exceeded = True
                raise _TooLarge
        return message


class _Started:
    """Holds an answer back once the body was too large, whatever the application made of it."""

    def __init__(self, send: Send, body: _Body) -> None:
        self._send, self._body = send, body

    async def __call__(self, message: Message) -> None:
        if self._body.exceeded:
            raise _TooLarge
        await self._send(message)


def _with_headers(send: Send, path: str) -> Send:
    caching = b"no-store" if path.startswith(API) else b"no-cache"

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            extra = [(name, value) for name, value in HEADERS.items() if name not in present]
            if b"cache-control" not in present:
                extra.append((b"cache-control", caching))
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sending

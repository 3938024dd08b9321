"""Connections: how long a client may take, how many there may be, and who has to go when there are too many.

A connection that has brought no accepted request belongs to the address that it came from, one that has to its caller. Nobody is
turned away: the oldest idle connection of whoever holds the most is closed instead. So connections that only wait keep nobody
from stopping a run, not even behind a proxy, where all of them come from one address.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from functools import partial
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from safebo.server.limits import Limits
from safebo.server.problems import PROBLEM, problem

log = logging.getLogger("safebo.server")

Place = tuple[str, int]
"""Address and port of the other end."""

FILES_LEFT = 256
"""Open files that are left for the database, the page and the plants."""


class Connections:
    """All open connections of a server, by whom they belong to; in each group the oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.most = max(min(limits.connections, _files() - FILES_LEFT), 2)
        self.closed = 0
        """How many were closed because there were too many."""
        self._groups: dict[tuple[str, bool], dict[Connection, None]] = {}
        self._places: dict[Place, Connection] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, connection: Connection) -> None:
        """A new one: a stranger's until it has brought a request that was accepted."""
        if connection.client is not None:
            self._places[connection.client] = connection
        self._enter(connection, (connection.client[0] if connection.client else "", False))

    def accepted(self, place: Place | None, caller: str) -> None:
        """The guard has accepted a request of this connection."""
        connection = None if place is None else self._places.get(place)
        if connection is not None and connection.group != (caller, True):
            self._leave(connection)
            self._enter(connection, (caller, True))

    def discard(self, connection: Connection) -> None:
        """It is closed."""
        if connection.client is not None and self._places.get(connection.client) is connection:
            del self._places[connection.client]
        self._leave(connection)

    def _enter(self, connection: Connection, group: tuple[str, bool]) -> None:
        connection.group = group
        members = self._groups.setdefault(group, {})
        members[connection] = None
        if len(members) > self.most // 2:  # the other half is for the others
            self._shorten(members)
        elif len(self._places) > self.most:
            self._shorten(max(self._groups.items(), key=lambda item: (not item[0][1], len(item[1])))[1])

    def _leave(self, connection: Connection) -> None:
        members = self._groups.get(connection.group, {})
        members.pop(connection, None)
        if not members:
            self._groups.pop(connection.group, None)

    def _shorten(self, members: dict[Connection, None]) -> None:
        found = next((one for one in members if one.idle), None) or next(iter(members))
        self.discard(found)
        self.closed += 1
        if self.closed in (1, 10, 100) or self.closed % 1000 == 0:
            log.warning("Too many connections: %d idle ones were closed by now, the last of %s.", self.closed, found.group[0])
        found.transport.abort()


class Connection(H11Protocol):
    """One connection. Whoever takes too long to send a request, or to read its answer, is dropped."""

    def __init__(self, register: Connections, **more: Any) -> None:
        super().__init__(**more)
        self.group: tuple[str, bool] = ("", False)
        self._register = register
        self._awaited: object = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._register.add(self)
        self._await()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._register.discard(self)
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came. A byte now and then gains no time: the whole head, and then the whole body, has its deadline."""
        super().data_received(data)
        self._await()

    def on_response_complete(self) -> None:
        """An answer is sent; the next request may have begun to arrive before."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._await()

    def _await(self) -> None:
        theirs = self.conn.their_state
        if theirs is self._awaited:
            return
        self._awaited = theirs
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if theirs in (h11.IDLE, h11.SEND_BODY):
            patience = self._register.limits.patience * random.uniform(
                1.0, 1.5
            )  # thousands that came together do not go together
            self._deadline = self.loop.call_later(patience, self._late)

    def _late(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()  # nothing was asked
            return
        answer = problem(408, f"The request was not complete after {self._register.limits.patience:g} s: send it at once.")
        with suppress(h11.LocalProtocolError):  # an answer has begun
            head = [(b"content-type", PROBLEM.encode()), (b"connection", b"close"), (b"content-length", b"%d" % len(answer.body))]
            started = self.conn.send(h11.Response(status_code=408, headers=head, reason=b"Request Timeout"))
            self.transport.write((started or b"") + bytes(answer.body))
        self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read what it asked for."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._register.limits.patience, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def protocol(register: Connections) -> type[asyncio.Protocol]:
    """What uvicorn calls for every new connection."""
    return cast("type[asyncio.Protocol]", partial(Connection, register))


def _files() -> int:
    """Files that this process may open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 1 << 20


def more_files() -> None:
    """This process may open as many files as the system allows: every connection is one."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""Who may do what: tokens with a name and a role.

A viewer reads. A rig also asks for experiments, tells and aborts them, and may pause and stop a run. An operator may do all.
The name of a token is what the record of a run says under `who`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safebo.exceptions import InvalidValueError

ROLES = ("viewer", "rig", "operator")

RIG = ("ask", "tell", "abort", "pause", "stop")
"""What a rig may do to a run besides looking: the loop of its experiments, and to halt it."""

SHORTEST_TOKEN = 16
"""Characters of a token at least: shorter ones can be guessed."""

ENVIRONMENT = {"SAFEBO_OPERATOR_TOKEN": "operator", "SAFEBO_RIG_TOKEN": "rig", "SAFEBO_VIEWER_TOKEN": "viewer"}
"""Variables that may hold a token each."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


@dataclass(frozen=True)
class Caller:
    """Who makes a request."""

    name: str
    role: str

    def may(self, verb: str) -> bool:
        """Whether this caller may do this: "ask", "stop", ...; an empty verb stands for what is no step of a run."""
        return self.role == "operator" or (self.role == "rig" and verb in RIG)

    @property
    def rights(self) -> str:
        """What this caller may do, in words."""
        if self.role == "operator":
            return "an operator and may do everything"
        if self.role == "rig":
            return f"a rig and may look, {', '.join(RIG[:-1])} and {RIG[-1]}, nothing else"
        return "a viewer and may not change anything"


@dataclass(frozen=True)
class Token:
    """A caller and the digest of the secret that shows it; the secret itself is not kept."""

    caller: Caller
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, role: str, secret: str) -> Token:
        """A checked token."""
        if not _NAME.fullmatch(name):
            raise InvalidValueError(f"A token's name is 1 to 64 letters, digits or _.@-, got {name!r:.80}.")
        if role not in ROLES:
            raise InvalidValueError(f"The role of token {name!r} must be one of {', '.join(ROLES)}, got {role!r:.80}.")
        if len(secret) < SHORTEST_TOKEN or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise InvalidValueError(
                f"The token {name!r} must be at least {SHORTEST_TOKEN} printable ASCII characters without spaces, got "
                f"{len(secret)}: make one with python -c 'import secrets; print(secrets.token_urlsafe(32))'."
            )
        return cls(Caller(name, role), _digest(secret))


class Tokens:
    """The tokens that a server knows."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens = tuple(tokens)
        names = [token.caller.name for token in self._tokens]
        for name in names:
            if names.count(name) > 1:
                raise InvalidValueError(f"Two tokens are called {name!r}: the record could not tell their holders apart.")
        if len({token.digest for token in self._tokens}) < len(self._tokens):
            raise InvalidValueError("Two tokens are the same: give every holder his own.")

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def caller(self, secret: str) -> Caller | None:
        """Whose secret this is. Takes the same time for every secret of a length, right or wrong."""
        digest, found = _digest(secret), None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token.caller
        return found

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """From a file with lines `name role token`; # starts a comment. Others must not be able to read the file."""
        try:
            mode = path.stat().st_mode
            if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise InvalidValueError(f"The token file {str(path)!r} can be read by others: chmod 600 {path}")
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"The token file {str(path)!r} cannot be read: {error}.") from None
        found = []
        for number, line in enumerate(lines, 1):
            words = [] if line.lstrip().startswith("#") else line.split()
            if not words:
                continue
            if len(words) != 3:
                raise InvalidValueError(f"Line {number} of {str(path)!r} has {len(words)} words, expected: name role token.")
            found.append(Token.of(*words))
        if not found:
            raise InvalidValueError(f"The token file {str(path)!r} holds no token: one line `name role token` each.")
        return cls(found)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Tokens:
        """From SAFEBO_OPERATOR_TOKEN, SAFEBO_RIG_TOKEN and SAFEBO_VIEWER_TOKEN, whichever is set."""
        return cls(Token.of(role, role, environment[name]) for name, role in ENVIRONMENT.items() if environment.get(name))

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens((*self._tokens, *other._tokens))


def new_secret() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(32)


def bearer(header: bytes) -> str | None:
    """The secret of an Authorization header."""
    scheme, _, secret = header.decode("latin-1").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches the address."""
    return host.strip("[]").lower() in LOOPBACK


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()

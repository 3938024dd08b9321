"""Errors as answers: which status, and a body that says what was wrong and what to do."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse

from safebo.exceptions import (
    AlreadyToldError,
    ConflictError,
    InvalidValueError,
    NoInitialSampleError,
    NotPositiveDefiniteError,
    PendingTrialError,
    SafeboError,
    StorageError,
    UnknownRunError,
    UnknownTrialError,
)

PROBLEM = "application/problem+json"

STATUSES: tuple[tuple[type[SafeboError], int], ...] = (  # the first that fits
    (UnknownRunError, 404),
    (AlreadyToldError, 409),
    (UnknownTrialError, 409),
    (ConflictError, 409),
    (NoInitialSampleError, 409),
    (NotPositiveDefiniteError, 409),
    (InvalidValueError, 422),
    (StorageError, 503),
)

CHOICES = ("tell", "abort", "retry")
"""What can be done about a trial that is out."""


def encoded(content: Any) -> bytes:
    """JSON in ASCII."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class AsciiJSON(JSONResponse):
    """JSON in ASCII: any text of a client comes back, and no infinity gets out."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return encoded(content)


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> AsciiJSON:
    """An answer of one sentence."""
    body = {"status": status, "title": HTTPStatus(status).phrase, "detail": detail, **more}
    return AsciiJSON(body, status, headers=headers, media_type=PROBLEM)


def status_of(error: SafeboError) -> int:
    """The status that an error stands for."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 422)


def answer(error: SafeboError, detail: str, **more: Any) -> AsciiJSON:
    """The answer to a request that led to an error."""
    if isinstance(error, PendingTrialError):
        more = {"options": list(CHOICES), **more}
    return problem(status_of(error), detail, **more)

"""The description of the interface: who may call what, and what every error looks like."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from safebo.server.models import Problem
from safebo.server.problems import PROBLEM

ERRORS = {
    "400": "Not JSON",
    "401": "No token, or a wrong one",
    "403": "A viewer, a rig that wants more than its loop, or a page of another site",
    "404": "No such run",
    "405": "No such method",
    "409": "Not allowed in the run's present state; says why and what to do",
    "413": "Too large",
    "415": "Not declared as JSON",
    "422": "A value that cannot be accepted; says which",
    "429": "Too many requests; wait as long as Retry-After says",
    "503": "The database cannot be used",
}

ABOUT = "Ask for certified experiments, tell their measurements, and watch and command runs. docs/server.md has examples."


def describe(app: FastAPI) -> None:
    """Replace the generated description by one with tokens and problems in it."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
            parts = schema["components"]
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            parts["schemas"]["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            parts["schemas"] |= parts["schemas"]["Problem"].pop("$defs", {})
            for name in ("HTTPValidationError", "ValidationError"):
                parts["schemas"].pop(name, None)
            schema["security"] = [{"token": []}]
            for path in schema["paths"].values():
                for method, operation in path.items():
                    _complete(operation, method)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(operation: dict[str, Any], method: str) -> None:
    body = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    skipped = {"400", "413", "415"} if method == "get" else set()
    for status, text in ERRORS.items():
        if status not in skipped:
            operation["responses"][status] = {"description": text, "content": body}
    if operation["operationId"].startswith("stream"):
        operation["responses"]["200"]["content"] = {"text/event-stream": {}}
    if operation["operationId"].startswith("export"):
        operation["responses"]["200"]["content"]["text/csv"] = {"schema": {"type": "string"}}

"""HTTP ask/tell and the live page; needs the extra `serve`."""

from __future__ import annotations

from safebo.exceptions import MissingExtraError
from safebo.extras import how_to_install

try:
    import fastapi
    import uvicorn
except ImportError as error:
    raise MissingExtraError(f"The server needs fastapi and uvicorn ({error}): {how_to_install('serve')}.") from None

from safebo.server.app import create_app
from safebo.server.auth import Token, Tokens
from safebo.server.limits import Limits
from safebo.server.main import main, serving

__all__ = ["Limits", "Token", "Tokens", "create_app", "main", "serving"]

del fastapi, uvicorn

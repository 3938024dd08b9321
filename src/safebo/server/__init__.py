"""HTTP ask/tell and the live page; needs `pip install 'safebo[serve]'`."""

from __future__ import annotations

from safebo.exceptions import MissingExtraError

try:
    import fastapi
    import uvicorn
except ImportError as error:
    raise MissingExtraError(f"The server needs fastapi and uvicorn: pip install 'safebo[serve]' ({error}).") from None

from safebo.server.app import create_app
from safebo.server.auth import Token, Tokens
from safebo.server.limits import Limits
from safebo.server.main import main, serving

__all__ = ["Limits", "Token", "Tokens", "create_app", "main", "serving"]

del fastapi, uvicorn

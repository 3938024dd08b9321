"""Compiled code that is kept on disk where that is possible, and works where it is not.

numba raises if no folder for its files can be written, if the disk is full when it has compiled, and if a file is damaged: in the
middle of a run, as a rule after the first experiment. None of that is a reason not to compute.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache

from safebo.exceptions import CacheWarning

_warned = False


def compiled(**options: Any) -> Callable[[Any], Any]:
    """`numba.njit` with a cache on disk that may fail."""

    def decorate(function: Any) -> Any:
        dispatcher = numba.njit(error_model="numpy", **options)(function)
        try:
            dispatcher._cache = _Cache(function)
        except (OSError, RuntimeError) as error:
            _warn(error)
        return dispatcher

    return decorate


class _Cache(FunctionCache):  # type: ignore[misc]
    """What cannot be read is compiled again and replaced; what cannot be written is compiled by every process."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for this signature; None where there is none that can be used."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged pickle raises anything
            self._emptied()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _warn(error)

    def _emptied(self) -> None:
        try:
            self.flush()
        except OSError as error:
            _warn(error)


def _warn(error: Exception) -> None:
    """Once a process."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"Compiled code cannot be kept on disk ({error}): every process compiles anew, for some seconds to a minute. Make "
            "room, or set NUMBA_CACHE_DIR to a folder that can be written.",
            CacheWarning,
            stacklevel=3,
        )

"""Programs on Windows: a job object holds the program and whatever it starts, and ends with this process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence

from safebo.runs.keeper import GRACE
from safebo.runs.programs import Ending

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    KILL_ON_JOB_CLOSE, EXTENDED_LIMITS, ACCOUNTING = 0x2000, 9, 1  # <winnt.h>

    class _Limits(ctypes.Structure):
        """JOBOBJECT_EXTENDED_LIMIT_INFORMATION; only `flags` is set."""

        _fields_ = (
            ("times", ctypes.c_int64 * 2),
            ("flags", wintypes.DWORD),
            ("sizes", ctypes.c_size_t * 2),
            ("processes", wintypes.DWORD),
            ("affinity", ctypes.c_size_t),
            ("classes", wintypes.DWORD * 2),
            ("counters", ctypes.c_uint64 * 6),
            ("memory", ctypes.c_size_t * 4),
        )

    class _Accounting(ctypes.Structure):
        """JOBOBJECT_BASIC_ACCOUNTING_INFORMATION."""

        _fields_ = (
            ("times", ctypes.c_int64 * 4),
            ("faults", wintypes.DWORD),
            ("total", wintypes.DWORD),
            ("active", wintypes.DWORD),
            ("ended", wintypes.DWORD),
        )

    def _system() -> ctypes.WinDLL:
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = wintypes.HANDLE
        kernel.CreateJobObjectW.argtypes = (ctypes.c_void_p, wintypes.LPCWSTR)
        kernel.SetInformationJobObject.argtypes = (wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD)
        kernel.QueryInformationJobObject.argtypes = (
            *(wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD),
            ctypes.c_void_p,
        )
        kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
        kernel.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
        kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
        return kernel

    class JobProgram:
        """A program in a job object. Windows cannot ask it to terminate: after its patience it is killed."""

        def __init__(self, command: Sequence[str], folder: str | None = None, *, stdin: int, stdout: int) -> None:
            self._kernel = _system()
            self._job = self._kernel.CreateJobObjectW(None, None)
            limits = _Limits(flags=KILL_ON_JOB_CLOSE)
            size = ctypes.sizeof(limits)
            if not self._job or not self._kernel.SetInformationJobObject(self._job, EXTENDED_LIMITS, ctypes.byref(limits), size):
                raise ctypes.WinError(ctypes.get_last_error())
            flags = subprocess.CREATE_NEW_PROCESS_GROUP
            self._process = subprocess.Popen(
                list(command), stdin=stdin, stdout=stdout, bufsize=0, cwd=folder, creationflags=flags
            )  # fmt: skip
            if not self._kernel.AssignProcessToJobObject(self._job, int(self._process._handle)):  # type: ignore[attr-defined]
                error = ctypes.WinError(ctypes.get_last_error())
                self._process.kill()
                raise error
            self.pid, self.stdin, self.stdout = self._process.pid, self._process.stdin, self._process.stdout
            self._ended: Ending | None = None

        def wait(self, seconds: float) -> int | None:
            """Its exit status; None if it still runs then."""
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(seconds)
            return None

        def end(self, patience: float) -> Ending:
            """Wait for an end in order, at least as long as a program elsewhere would have; then kill the whole job."""
            if self._ended is not None and not self._ended.left:
                return self._ended
            if self._empty(max(patience, GRACE)):
                self._ended = Ending(self._process.wait() == 0)
            else:
                self._kernel.TerminateJobObject(self._job, 1)
                self._ended = Ending(False, "" if self._empty(GRACE) else "processes of its job")
            if not self._ended.left:
                self._kernel.CloseHandle(self._job)
            return self._ended

        def _empty(self, seconds: float) -> bool:
            """Whether no process of the job is left within some seconds."""
            deadline, found = time.monotonic() + seconds, _Accounting()
            while True:
                size = ctypes.sizeof(found)
                known = self._kernel.QueryInformationJobObject(self._job, ACCOUNTING, ctypes.byref(found), size, None)
                if known and found.active == 0:
                    return True
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.02)

"""Answers that have to be computed: the best parameters, slices, norm bounds.

They are computed in a process of their own, one at a time and with low priority: who looks, however often, takes nothing from
those who ask and tell. All who ask for the same at the same time share one computation, and its answer is kept until the run
changes.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from fastapi import HTTPException

from safebo.exceptions import InvalidValueError, SafeboError
from safebo.naming import hint
from safebo.runs.ledger import Ledger
from safebo.runs.storage import Store
from safebo.server import answers
from safebo.server.desk import Desk
from safebo.server.limits import Limits
from safebo.server.problems import encoded

KEPT = 64
"""Answers that are kept."""

Question = tuple[Any, ...]
"""What is asked, and its arguments: ("best",), ("norms",), ("slice", names, fixed, output or None, points)."""

Answerer = Callable[[str, Question], bytes]


def answer(desk: Desk, name: str, question: Question) -> bytes:
    """Compute an answer."""
    run = desk.run(name)
    reader = run.reader
    if question[0] == "best":
        return encoded(answers.best(*reader.best()))
    if question[0] == "norms":
        run.record.update()
        ledger = reader.ledger
        return encoded(answers.norms(*reader.norms(), reader.settings, ledger.pending, run.record.refutations))
    _, names, fixed, output, points = question
    outputs = [o.name for o in reader.settings.outputs]
    chosen = outputs[0] if output is None else output
    if chosen not in outputs:
        raise InvalidValueError(f"Unknown output {chosen!r:.100}: choose one of {outputs}.")
    if not set(names) <= set(reader.settings.domain.names) or len(set(names)) < len(names):
        known = list(reader.settings.domain.names)
        wrong = [name for name in names if name not in known]
        raise InvalidValueError(
            f"x, and y if it is given, are different parameters of {known}, got {', '.join(f'{n!r:.100}' for n in names)}."
            + hint(wrong, known)
        )
    found = reader.cut(names, dict(fixed), chosen, points, reader.ledger.trial)
    return encoded(answers.slice_of(*found, reader.settings, chosen))


class Apart:
    """Computes answers in another process, which is started when it is first needed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def __call__(self, name: str, question: Question) -> bytes:
        """The answer; errors of the other process are raised here."""
        with self._lock:
            for _ in range(2):
                if self._closed:
                    raise HTTPException(503, "The server is being stopped.")
                process = self._process or self._start()
                assert process.stdin is not None and process.stdout is not None
                try:
                    pickle.dump((name, question), process.stdin)
                    process.stdin.flush()
                    found = pickle.load(process.stdout)
                    break
                except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # it was ended from outside, or by close
                    self._end()
            else:
                raise HTTPException(503, "The process that computes was ended: try again.")
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, bytes)
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        # Not with multiprocessing: it would run the user's script once more.
        command = [sys.executable, "-c", _OTHER, *sys.path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        pickle.dump(self._url, self._process.stdin)  # not an argument: it may hold a password
        return self._process

    def close(self) -> None:
        """End the process for good, in the middle of a computation too: it writes nothing."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10.0)
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()


_OTHER = "import sys; sys.path[:] = sys.argv[1:]; from safebo.server.looking import serve; serve()"


def serve() -> None:
    """The other process: lives as long as the server's end of the pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the server
    with suppress(AttributeError, OSError):
        os.nice(10)
    questions, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by accident is no answer
    with suppress(EOFError, BrokenPipeError), Store.open(pickle.load(questions), create=False) as store:
        desk = Desk(store)
        while True:
            name, question = pickle.load(questions)
            found: bytes | Exception
            try:
                found = answer(desk, name, question)
            except SafeboError as error:
                found = error
            except Exception as error:
                found = RuntimeError(f"{type(error).__name__}: {error}")
            pickle.dump(found, replies)
            replies.flush()


class Looking:
    """Who asks for what, and what has been answered."""

    def __init__(self, answerer: Answerer, limits: Limits) -> None:
        self._answerer, self._limits = answerer, limits
        self._thread = ThreadPoolExecutor(1, "safebo-look")
        self._kept: OrderedDict[Any, bytes] = OrderedDict()
        self._under_way: dict[Any, asyncio.Task[bytes]] = {}
        self._waiting: Counter[str] = Counter()

    async def ask(self, ledger: Ledger, question: Question, caller: str) -> bytes:
        """The answer for a run as it is now."""
        key = (ledger.name, state_of(ledger, question), question)
        if (known := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return known
        task = self._under_way.get(key)
        if task is None:
            if self._waiting[caller] >= self._limits.waiting_each or len(self._under_way) >= self._limits.waiting:
                raise HTTPException(429, "Too many computations are waiting: try again in a few seconds.", {"retry-after": "5"})
            task = self._under_way[key] = asyncio.create_task(self._compute(key, caller))
        return await asyncio.shield(task)

    async def _compute(self, key: Any, caller: str) -> bytes:
        self._waiting[caller] += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._answerer, key[0], key[2])
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return found
        finally:
            self._waiting[caller] -= 1
            self._waiting += Counter()
            del self._under_way[key]

    def close(self) -> None:
        """End the thread and, if there is one, the process."""
        if isinstance(self._answerer, Apart):
            self._answerer.close()
        self._thread.shutdown(wait=True, cancel_futures=True)


def state_of(ledger: Ledger, question: Question) -> tuple[Any, ...]:
    """What the answer depends on."""
    if question[0] == "norms":
        return (ledger.seq,)
    data = len(ledger.samples), len(ledger.records), len(ledger.aborts), len(ledger.voided)
    trial = ledger.trial if question[0] == "slice" else None
    return (*data, trial and trial.id)

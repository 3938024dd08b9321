"""What every study needs: jobs on all cores, rows that survive an interruption, rate intervals, and where a file came from."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from safebo import heading
from safebo.exceptions import InvalidValueError, WorkerLostError
from safebo.state import Settings

Job = TypeVar("Job")
Result = TypeVar("Result")
Row = dict[str, Any]


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


LOSSES = 3
"""How often a job may be in the hands of workers when one of them dies, before the study ends."""


def parallel(work: Callable[[Job], Result], jobs: Sequence[Job], workers: int = 0, label: str = "") -> Iterator[Result]:
    """Results of `work`, a function of a module, in the order in which they finish; one thread per worker, 0: all cores.

    Shows a progress bar on a terminal. One worker runs in this process. An interrupt (Ctrl-C) reaches this process only, which
    ends the others. When a worker dies (killed, out of memory), what was being worked on is done again by new ones; a job that
    was lost `LOSSES` times ends the study with `WorkerLostError`.
    """
    workers = min(workers or cores(), len(jobs))
    with progress(len(jobs), label or work.__name__) as advance:
        if workers <= 1:
            for job in jobs:
                yield advance(work(job))
            return
        waiting, losses = deque(range(len(jobs))), [0] * len(jobs)
        while waiting:
            with _workers(workers) as submit:
                out: dict[Future[Result], int] = {}
                try:
                    while waiting or out:
                        while waiting and len(out) <= workers:  # one more than there are workers, so that none has to wait
                            out[submit(work, jobs[waiting[0]])] = waiting[0]
                            waiting.popleft()
                        finished = wait(out, return_when=FIRST_COMPLETED).done
                        for done in sorted(finished, key=lambda future: future.exception() is not None):  # results first
                            result = done.result()
                            del out[done]
                            yield advance(result)
                except BrokenProcessPool:
                    waiting.extendleft(_lost(out.values(), jobs, losses))


def _lost(numbers: Iterable[int], jobs: Sequence[object], losses: list[int]) -> list[int]:
    """Jobs to do again, the last one first; an error if one of them was lost too often."""
    again = sorted(numbers, reverse=True)
    for number in again:
        losses[number] += 1
    if suspects := [f"{jobs[n]!r:.200}" for n in again[::-1] if losses[n] >= LOSSES]:
        raise WorkerLostError(
            f"{LOSSES} times a worker process died while it had one of these jobs: {', '.join(suspects)}. Was it killed, or is "
            "there too little memory? Use fewer workers (--jobs). What was finished is kept where the study keeps its rows."
        )
    return again


@contextmanager
def _workers(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """Hands jobs to worker processes, which end with the block. They ignore interrupts and do not survive this process.

    An interrupt that comes while a worker is being started waits until it is.
    """
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, _begin)

    def submit(work: Callable[[Job], Result], job: Job) -> Future[Result]:
        with _environment(), _uninterrupted():
            return pool.submit(work, job)

    try:
        yield submit
    finally:
        mine = set(multiprocessing.active_children()) - before
        pool.shutdown(wait=False, cancel_futures=True)
        for process in mine:
            process.terminate()
        for process in mine:
            process.join()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Interrupts wait until the end of the block, also those of processes that are started inside."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start would end the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: workers are safe during their imports
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """A worker ignores interrupts, and ends when the process that started it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


_ONE_THREAD = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def _environment() -> Iterator[None]:
    """Workers started inside compute with one thread each."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def progress(total: int, label: str) -> Iterator[Callable[[Any], Any]]:
    """A progress bar on a terminal; the function given advances it and returns its argument."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=total)

        def advance(result: Any) -> Any:
            bar.advance(task)
            return result

        yield advance


class Stopwatch:
    """Seconds spent by name: `watch("rig", plant, params)` returns what the call returns."""

    def __init__(self, *names: str):
        self.seconds = dict.fromkeys(names, 0.0)

    def __call__(self, name: str, work: Callable[..., Result], *arguments: Any) -> Result:
        """The result of `work(*arguments)`; its time counts for `name`."""
        start = time.perf_counter()
        result = work(*arguments)
        self.seconds[name] += time.perf_counter() - start
        return result


class Table:
    """Rows of a CSV that are written as they come; opening it again continues it. A half-written last line is dropped."""

    def __init__(self, path: Path, fields: Sequence[str], key: Sequence[str]):
        self.path, self.fields, self.key = path, tuple(fields), tuple(key)
        self.rows: list[Row] = []
        if path.exists():
            text = path.read_text()
            whole = text[: text.rfind("\n") + 1].splitlines()
            if whole and whole[0] != ",".join(self.fields):
                raise InvalidValueError(f"{path} has the columns {whole[0]!r}, expected {','.join(self.fields)!r}: move it away.")
            self.rows = list(csv.DictReader(whole))
        self._known = {self._key(row) for row in self.rows}

    def _key(self, row: Row) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self.key)

    def __contains__(self, row: Row) -> bool:
        return self._key(row) in self._known

    def add(self, row: Row) -> None:
        """Append one row to the table and, at once, to the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.rows:
            self._write([])
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.fields, lineterminator="\n").writerow(row)
        self.rows.append({name: str(row[name]) for name in self.fields})
        self._known.add(self._key(row))

    def keep(self, wanted: Callable[[Row], bool]) -> int:
        """Drop all other rows from the table and the file; returns how many."""
        before = len(self.rows)
        self.rows = [row for row in self.rows if wanted(row)]
        self._known = {self._key(row) for row in self.rows}
        if len(self.rows) < before:
            self._write(self.rows)
        return before - len(self.rows)

    def sort(self, order: Callable[[Row], Any]) -> None:
        """Rewrite the file in a fixed order, so that the same study gives the same file."""
        self.rows.sort(key=order)
        self._write(self.rows)

    def _write(self, rows: Iterable[Row]) -> None:
        partial = self.path.with_suffix(".partial")
        with partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.fields, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(self.path)


def write_csv(path: Path, columns: dict[str, Any]) -> None:
    """Columns of equal length as a CSV, numbers with nine digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = {len(v) for v in columns.values()}
    if len(lengths) != 1:
        raise ValueError(f"Columns of different lengths: { {k: len(v) for k, v in columns.items()} }.")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow([f"{v:.9g}" if isinstance(v, (float, np.floating)) else v for v in row])


def write_durably(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """A file that is there whole or, as before, not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w+b") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    if os.name != "nt":  # the new name
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A JSON file, with numpy numbers as plain ones."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)

    path.write_text(json.dumps(content, indent=1, default=plain) + "\n")


def provenance(**settings: Any) -> Row:
    """What made a result: the command, the settings, the version, the commit (with + where files differ from it), the machine."""
    import safebo

    return {
        "command": shlex.join([*_program(), *sys.argv[1:]]),
        "settings": settings,
        "version": getattr(safebo, "__version__", ""),
        "commit": _commit(),
        "cores": cores(),
        "python": platform.python_version(),
    }


def _program() -> list[str]:
    """How this program is called again."""
    path = Path(sys.argv[0])
    if path.parent.name == "benchmarks":
        return ["python", "-m", f"benchmarks.{path.stem}"]
    return ["safebo"] if path.stem in ("safebo", "cli") or path.parent.name == "cli" else [path.name]


def _commit() -> str:
    """The commit of the source tree this package runs from; empty for an installed package."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return os.environ.get("SAFEBO_COMMIT", "")

    def git(*arguments: str) -> str:
        try:
            return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            return ""

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "src") else "")


def plan_constants(settings: Settings) -> str:
    """The constants of `heading` for a run that plans with them, else nothing: what a run depends on beside its settings."""
    if settings.acquisition != "directed":
        return ""
    return repr([(name, value) for name, value in sorted(vars(heading).items()) if name.isupper() and name[0] != "_"])


def rate_interval(hits: int, n: int) -> tuple[float, float]:
    """Exact (Clopper-Pearson) 95 % interval of a rate; (0, 1) without data."""
    from scipy.special import betaincinv

    low = 0.0 if hits == 0 else float(betaincinv(hits, n - hits + 1, 0.025))
    return low, 1.0 if hits == n else float(betaincinv(hits + 1, n - hits, 0.975))

"""The HTTP interface: every endpoint, and which thread it works in."""

from __future__ import annotations

import asyncio
import csv
import io
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote, unquote_to_bytes

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, StreamingResponse
from starlette.exceptions import HTTPException

from safebo import __version__
from safebo.exceptions import ConflictError, InvalidValueError, PendingTrialError, SafeboError, UnknownRunError
from safebo.runs import driving
from safebo.runs.campaign import Campaign, Receipt, user
from safebo.runs.ledger import Ledger
from safebo.runs.starts import approve_start
from safebo.runs.storage import LONGEST_NAME, Store
from safebo.runs.words import Standing
from safebo.server import answers
from safebo.server import models as m
from safebo.server.auth import Caller, Tokens
from safebo.server.connections import Connections
from safebo.server.desk import Desk, Run, persist
from safebo.server.feed import Feed
from safebo.server.guard import Guard
from safebo.server.limits import Limits
from safebo.server.looking import Apart, Looking, Question
from safebo.server.looking import answer as computed
from safebo.server.openapi import describe
from safebo.server.problems import AsciiJSON, answer, encoded, problem
from safebo.server.reader import places

Result = TypeVar("Result")

STATIC = Path(__file__).parent / "static"
PAGE = {"": ("index.html", "text/html"), "app.js": ("app.js", "text/javascript"), "charts.js": ("charts.js", "text/javascript")}
PAGE |= {"style.css": ("style.css", "text/css"), "icon.svg": ("icon.svg", "image/svg+xml")}

DRIVER_KEPT = 1.0
"""Seconds for which it is not asked again who drives a run."""

WAITING = "Waiting for an operator's approval: do not run it yet. Ask again with the same Idempotency-Key."
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="A retried request with the same key counts once."),
]


class Office:
    """What the endpoints share: the runs, the threads that work on them, and the streams.

    Each kind of work has threads of its own, so that none waits for another: stop, pause and approve; what else a person
    decides; ask and tell; reading; and what has to be computed for those who look.
    """

    def __init__(self, store: Store, limits: Limits, apart: str | None = None) -> None:
        self.store, self.limits, self.desk = store, limits, Desk(store)
        self._halting = ThreadPoolExecutor(2, "safebo-halt")
        self._acting = ThreadPoolExecutor(4, "safebo-act")
        self._working = ThreadPoolExecutor(4, "safebo-work")
        self._reading = ThreadPoolExecutor(2, "safebo-read")  # few: each that runs takes its share from who asks and tells
        self.looking = Looking(partial(computed, self.desk) if apart is None else Apart(apart), limits)
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self._lines: dict[str, tuple[int, Standing, dict[str, Any]]] = {}
        self._drivers: dict[str, tuple[float, str]] = {}
        self.feed = Feed(lambda record: self.read(record.update))

    async def read(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Quick work that writes nothing."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, partial(work, *arguments))

    async def halt(self, work: Callable[[], Result]) -> Result:
        """What must never wait, and takes no time itself."""
        return await asyncio.get_running_loop().run_in_executor(self._halting, work)

    async def act(self, work: Callable[[], Result]) -> Result:
        """What a person decides."""
        return await asyncio.get_running_loop().run_in_executor(self._acting, work)

    async def work(self, name: str, caller: str, work: Callable[[], Result]) -> Result:
        """A step of an experiment, which may take seconds; those of a run one after the other."""
        if self._waiting[caller] >= self.limits.waiting_each or self._waiting.total() >= self.limits.waiting:
            raise HTTPException(429, "The server is busy computing: try again in a few seconds.", {"retry-after": "5"})
        self._waiting[caller] += 1
        turn = self._turns.setdefault(name, asyncio.Lock())
        try:
            async with turn:
                return await asyncio.get_running_loop().run_in_executor(self._working, work)
        finally:
            self._waiting[caller] -= 1
            self._waiting += Counter()  # without those that have none
            if not turn.locked() and self._turns.get(name) is turn:
                del self._turns[name]

    async def look(self, name: str, caller: str, question: Question) -> Response:
        """Something that has to be computed for those who look."""
        ledger = await self.read(lambda: self.desk.run(name).ledger)
        return ready(await self.looking.ask(ledger, question, caller))

    def close(self) -> None:
        """End the threads; work that has begun is finished, unless it is for those who look."""
        self.looking.close()
        for pool in (self._halting, self._reading, self._acting, self._working):
            pool.shutdown(wait=True, cancel_futures=True)

    def line(self, name: str) -> dict[str, Any]:
        """A run in the list."""
        last = self.store.last(name)
        known = self._lines.get(name)
        if known is None or known[0] != last:
            ledger = self.desk.ledger(name)
            pending = ledger.pending
            waiting = pending is not None and ledger.config.confirm and pending.approved is None and not pending.out
            start = None if pending is not None else answers.start(ledger)
            waiting = waiting or (start is not None and start["waiting"])
            known = (
                ledger.seq,
                Standing.of(ledger),
                {
                    "name": name,
                    "title": ledger.config.title,
                    "status": ledger.status,
                    "measurements": len(ledger.samples),
                    "violations": len(ledger.violations),
                    "waiting": waiting,
                    "changed_at": self.changed_at(ledger),
                },
            )
            self._lines[name] = known
        driver = self.driver(name)
        return {**known[2], "driver": driver, "standing": answers.standing(known[1], driver)}

    def driver(self, name: str) -> str:
        """Who drives a run; all who want to know within a moment get the same answer."""
        now = time.monotonic()
        asked, known = self._drivers.get(name, (-math.inf, ""))
        if now - asked > DRIVER_KEPT:
            known = driving.driver(self.store, name)
            self._drivers[name] = now, known
        return known

    def changed_at(self, ledger: Ledger) -> str:
        """When the last event happened."""
        return self.store.events(ledger.name, ledger.seq - 1)[0].at


def create_app(
    store: Store,
    tokens: Tokens | None = None,
    *,
    limits: Limits | None = None,
    local: str = "",
    apart: str | None = None,
    connections: Connections | None = None,
) -> FastAPI:
    """The server for the runs of a store.

    tokens       who may do what; without any, everybody who reaches the server is an operator called `local`
    apart        the database's URL: slices and the like are computed in a process of their own; None: in a thread of this one
    connections  the connections that the server has; they are told which of them are accepted
    """
    office = Office(store, limits or Limits(), apart)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, office.close)

    app = FastAPI(
        title="safebo",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        default_response_class=AsciiJSON,
        lifespan=lifespan,
    )
    app.state.office = office
    app.include_router(_reading(office), prefix="/api/v1")
    app.include_router(_acting(office), prefix="/api/v1")
    _errors(app, office)
    _page(app)
    describe(app)
    app.add_middleware(
        Guard,
        tokens=tokens or Tokens(),
        limits=office.limits,
        local=Caller(local or user(), "operator"),
        accepted=None if connections is None else connections.accepted,
    )
    return app


def caller_of(request: Request) -> Caller:
    """Who makes this request; the guard has found out."""
    caller: Caller = request.scope["state"]["caller"]
    return caller


def name_of(name: str) -> str:
    """The run's name, percent-encoded."""
    try:
        text = unquote_to_bytes(name).decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > LONGEST_NAME:
        raise UnknownRunError(f"There is no run {name!r:.220}.")
    return text


def ready(content: bytes) -> Response:
    """An answer that a worker has written already: the thread that talks to all clients has nothing left to do with it."""
    return Response(content, media_type="application/json")


Who = Annotated[Caller, Depends(caller_of)]
Name = Annotated[str, Depends(name_of)]


# -- reading -------------------------------------------------------------------------------------------------------------


def _reading(office: Office) -> APIRouter:
    router, desk = APIRouter(tags=["read"]), office.desk

    @router.get("/runs", response_model=m.Runs)
    async def runs(who: Who, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> Any:
        """All runs, the newest first."""

        def work() -> list[dict[str, Any]]:
            return [office.line(name) for name in reversed(office.store.names()[-limit:])]

        return {"runs": await office.read(work), "you": who.name, "role": who.role}

    @router.get("/runs/{name}", response_model=m.RunAnswer)
    async def state(name: Name, who: Who) -> Any:
        """Status, limits, counts, and the pending trial with its certificate."""

        def work() -> dict[str, Any]:
            run = desk.run(name)
            ledger = run.ledger
            return answers.state(run, ledger, office.changed_at(ledger), who, office.driver(name))

        return await office.read(work)

    @router.get("/runs/{name}/samples", response_model=m.Samples)
    async def samples(name: Name, after: Annotated[int, Query(ge=0, le=2**31)] = 0) -> Any:
        """Measurements after number `after`, and all that were taken back or aborted."""

        def work() -> bytes:
            run = desk.run(name)
            return encoded(answers.samples(run.ledger, run.reader.settings, after))

        return ready(await office.read(work))

    @router.get("/runs/{name}/best", response_model=m.BestAnswer)
    async def best(name: Name, who: Who) -> Any:
        """The parameters to use: the best measured inside all limits, or certified ones that are surely better."""
        return await office.look(name, who.name, ("best",))

    @router.get("/runs/{name}/events", response_model=m.Events)
    async def events(
        name: Name,
        after: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Any:
        """The record after event number `after`."""

        def work() -> bytes:
            record = desk.run(name).record
            last = record.update()
            return b'{"events":%b,"last":%d}' % (record.events(after, limit), last)

        return ready(await office.read(work))

    @router.get("/runs/{name}/events/stream", response_class=StreamingResponse)
    async def stream(
        name: Name,
        who: Who,
        after: Annotated[int, Query(ge=0, le=2**31)] = 0,
        seconds: Annotated[float, Query(ge=0.0, le=86400.0, description="The stream ends after this.")] = 3600.0,
        last: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=2**31)] = None,
    ) -> Any:
        """The record as it grows, as Server-Sent Events; the event's number is its id."""
        if office.feed.open.total() >= office.limits.streams or office.feed.open[who.name] >= office.limits.streams_each:
            raise HTTPException(429, "Too many event streams are open: close some, or try again later.", {"retry-after": "30"})
        record = await office.read(lambda: desk.run(name).record)
        await office.read(record.update)
        follow = office.feed.follow(record, after if last is None else last, seconds, who.name)
        return StreamingResponse(follow, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    @router.get("/runs/{name}/slice", response_model=m.SliceAnswer)
    async def slice_(
        name: Name,
        who: Who,
        x: Annotated[str, Query(max_length=200)],
        y: Annotated[str | None, Query(max_length=200)] = None,
        at: Annotated[list[str] | None, Query(max_length=8, description="name:value; the others are those of the best.")] = None,
        output: Annotated[str | None, Query(max_length=200)] = None,
        points: Annotated[int | None, Query(ge=2, le=401, description="Per axis; at most 81 with y.")] = None,
    ) -> Any:
        """Mean, interval, safe set, maximisers and expanders along one or two parameters."""
        if y is not None and points is not None and points > 81:
            raise InvalidValueError(f"A slice along two parameters has at most 81 points per axis, got {points}.")
        fixed = tuple(sorted(places(at or []).items()))
        names = (x,) if y is None else (x, y)
        return await office.look(name, who.name, ("slice", names, fixed, output, points or (301 if y is None else 61)))

    @router.get("/runs/{name}/norms", response_model=m.Norms)
    async def norms(name: Name, who: Who) -> Any:
        """The norm bound of every sub-domain over time, and the refuted ones."""
        return await office.look(name, who.name, ("norms",))

    @router.get("/runs/{name}/export", response_model=m.ExportAnswer)
    async def export(name: Name, form: Annotated[Literal["json", "csv"], Query(alias="format")] = "json") -> Any:
        """The whole record as JSON, or the measurements as CSV."""

        def record() -> bytes:
            kept = desk.run(name).record
            kept.update()
            return b'{"name":%b,"events":%b}' % (encoded(name), kept.events())

        def work() -> str:
            run = desk.run(name)
            return _table(run, run.ledger)

        if form == "json":
            return ready(await office.read(record))
        heading = f"attachment; filename*=UTF-8''{quote(name, safe='')}.csv"
        return Response(await office.read(work), media_type="text/csv", headers={"content-disposition": heading})

    return router


def _table(run: Run, ledger: Ledger) -> str:
    content, settings = io.StringIO(), run.reader.settings
    writer = csv.writer(content)
    writer.writerow(["number", *settings.domain.names, *(o.name for o in settings.outputs), "trial", "outside"])
    for number, sample in zip(ledger.numbers, ledger.samples, strict=True):
        writer.writerow([number, *sample[0], *sample[2], sample[3] or "", int(number in ledger.violations)])
    return content.getvalue()


# -- acting --------------------------------------------------------------------------------------------------------------


def _acting(office: Office) -> APIRouter:
    router, desk = APIRouter(tags=["act"]), office.desk

    def done(run: Run) -> dict[str, Any]:
        ledger = run.ledger
        return {"seq": ledger.seq, "status": ledger.status}

    async def decide(name: str, step: Callable[[Campaign], object]) -> Any:
        def work() -> dict[str, Any]:
            run = desk.run(name)
            persist(lambda: step(run.gate))
            return done(run)

        found = await office.act(work)
        office.feed.wake(name)
        return found

    async def at_once(name: str, step: Callable[[Campaign], object]) -> Any:
        def work() -> dict[str, Any]:
            run = desk.run(name)
            persist(lambda: step(run.switch))
            return done(run)

        found = await office.halt(work)
        office.feed.wake(name)
        return found

    async def measure(name: str, caller: str, step: Callable[[Run], Receipt]) -> Any:
        def work() -> dict[str, Any]:
            run = desk.run(name)
            got = persist(lambda: step(run))
            return {"seq": got.seq, "violated": got.violated, "status": got.status, "repeated": got.repeated}

        found = await office.work(name, caller, work)
        office.feed.wake(name)
        return found

    @router.post("/runs", response_model=m.CreatedAnswer, status_code=201)
    async def create(new: m.NewRun, who: Who) -> Any:
        """A new run."""

        def work() -> dict[str, Any]:
            optimizer, config = new.build()
            Campaign.create(office.store, new.name, optimizer, config=config, who=who.name)
            run = desk.run(new.name)
            ledger = run.ledger
            warned = answers.cautions(optimizer.state, config)
            return {**answers.state(run, ledger, office.changed_at(ledger), who), "warnings": warned}

        return await office.act(work)

    @router.post("/runs/{name}/ask", response_model=m.AskAnswer, responses={202: {"model": m.AskAnswer}})
    async def ask(name: Name, who: Who, response: Response, key: Key = None) -> Any:
        """The next trial, handed out: tell its measurement, or abort it. 202: it waits for an approval, do not run it yet."""

        def work() -> tuple[int, dict[str, Any]]:
            run = desk.run(name)
            pending = persist(lambda: run.worker.hand_out(who=who.name, key=key))
            ledger = run.ledger
            if pending is None:
                return 200, {"ready": False, "trial": None, "status": ledger.status, "reason": answers.reason(ledger)}
            trial = answers.trial(pending, run.reader.settings, ledger.config.confirm)
            if pending.out:
                return 200, {"ready": True, "trial": trial, "status": ledger.status, "reason": ""}
            return 202, {"ready": False, "trial": trial, "status": ledger.status, "reason": WAITING}

        response.status_code, content = await office.work(name, who.name, work)
        office.feed.wake(name)
        return content

    @router.post("/runs/{name}/tell", response_model=m.ReceiptAnswer)
    async def tell(name: Name, body: m.Tell, who: Who, key: Key = None) -> Any:
        """A measurement of the trial that is out, or of parameters."""
        what = _target(body.trial, body.params)

        def step(run: Run) -> Receipt:
            _require_out(run.ledger, what)
            return run.worker.tell(what, body.objective, body.constraints, context=body.context, who=who.name, key=key)

        return await measure(name, who.name, step)

    @router.post("/runs/{name}/abort", response_model=m.ReceiptAnswer)
    async def abort(name: Name, body: m.Abort, who: Who, key: Key = None) -> Any:
        """An experiment that failed or was stopped: others keep away from it."""
        what = _target(body.trial, body.params)

        def step(run: Run) -> Receipt:
            _require_out(run.ledger, what)
            return run.worker.abort(what, body.reason, who=who.name, key=key)

        return await measure(name, who.name, step)

    @router.post("/runs/{name}/abandon", response_model=m.ReceiptAnswer)
    async def abandon(name: Name, body: m.OfTrialWithReason, who: Who, key: Key = None) -> Any:
        """Give up the pending trial; others keep away from it."""
        return await measure(name, who.name, lambda run: run.worker.abandon(body.trial, body.reason, who=who.name, key=key))

    @router.post("/runs/{name}/retry", response_model=m.DoneAnswer)
    async def retry(name: Name, body: m.OfTrial, who: Who) -> Any:
        """The trial that is out was certainly not executed: it may be asked for once more."""
        return await decide(name, lambda gate: gate.retry(body.trial, who=who.name))

    @router.post("/runs/{name}/approve", response_model=m.DoneAnswer)
    async def approve(name: Name, body: m.OfTrial, who: Who) -> Any:
        """Consent to the pending trial, or to the next start."""
        if body.trial.startswith("start-"):
            return await at_once(name, lambda switch: approve_start(switch, who.name, body.trial))
        return await at_once(name, lambda switch: switch.approve(body.trial, who=who.name))

    @router.post("/runs/{name}/reject", response_model=m.DoneAnswer)
    async def reject(name: Name, body: m.OfTrialWithReason, who: Who) -> Any:
        """Refuse the pending trial; others keep away from it."""
        return await decide(name, lambda gate: gate.reject(body.trial, body.reason, who=who.name))

    @router.post("/runs/{name}/pause", response_model=m.DoneAnswer)
    async def pause(name: Name, who: Who, body: m.Pause | None = None) -> Any:
        """Nothing is asked or started until the run is resumed."""
        given = body or m.Pause()
        return await at_once(name, lambda switch: switch.pause(given.reason, who=who.name, seen=given.seen))

    @router.post("/runs/{name}/resume", response_model=m.DoneAnswer)
    async def resume(name: Name, who: Who, body: m.Resume | None = None) -> Any:
        """Go on after a pause or a stop; after a violation only if it is accepted."""
        given = body or m.Resume()

        def step(gate: Campaign) -> None:
            gate.resume(given.reason, who=who.name, accept_violation=given.accept_violation, seen=given.seen)

        return await decide(name, step)

    @router.post("/runs/{name}/void", response_model=m.DoneAnswer)
    async def void(name: Name, body: m.Void, who: Who) -> Any:
        """Take a measurement back, a typing error for example: the run is as if it had not been told."""
        return await decide(name, lambda gate: gate.void(body.number, body.reason, who=who.name, seen=body.seen))

    @router.post("/runs/{name}/stop", response_model=m.DoneAnswer)
    async def stop(name: Name, who: Who, body: m.Because | None = None) -> Any:
        """The stop button: nothing is asked or started any more, and a runner stops its plant."""
        return await at_once(name, lambda switch: switch.stop("" if body is None else body.reason, who=who.name))

    return router


def _require_out(ledger: Ledger, what: object) -> None:
    """A trial that waits is not told and not aborted by who runs experiments: an operator approves or rejects it."""
    pending = ledger.pending
    if pending is not None and pending.trial.id == what and not pending.out:
        raise ConflictError(
            f"Trial {what} has not been handed out: ask for it first. What was measured without asking is told with its "
            "parameters."
        )


def _target(trial: str | None, params: dict[str, float] | None) -> str | dict[str, float]:
    if trial is not None and params is None:
        return trial
    if params is not None and trial is None:
        return params
    raise InvalidValueError("Name the trial or give the parameters: exactly one of `trial` and `params`.")


# -- errors and page -----------------------------------------------------------------------------------------------------


def _errors(app: FastAPI, office: Office) -> None:
    @app.exception_handler(SafeboError)
    async def known(request: Request, error: SafeboError) -> Response:
        if not isinstance(error, PendingTrialError):
            return answer(error, str(error).replace(office.store.where, "the database"))  # where it lies is nobody's business

        def trial() -> dict[str, Any] | None:
            run = office.desk.run(name_of(request.path_params["name"]))
            return answers.pending_of(run, run.ledger)

        return answer(error, str(error), trial=await office.read(trial))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        lines = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()[:5]]
        return problem(422, "; ".join(lines)[:2000])

    @app.exception_handler(HTTPException)
    async def plain(_: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, RecursionError):
            return problem(422, "The body is nested too deeply: write what lies deeper as text.")
        if isinstance(error.__cause__, UnicodeDecodeError):
            return problem(422, "The body is not UTF-8: send JSON in UTF-8.")
        return problem(error.status_code, str(error.detail)[:2000], dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return problem(500, f"Unexpected {type(error).__name__}; the server's log has more.")


def _page(app: FastAPI) -> None:
    def serve(file: str, kind: str) -> Callable[[], Any]:
        async def page() -> Response:
            return FileResponse(STATIC / file, media_type=kind)

        return page

    for path, (file, kind) in PAGE.items():
        app.get(f"/{path}", include_in_schema=False)(serve(file, kind))

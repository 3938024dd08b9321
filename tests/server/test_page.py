"""The live page in a real browser: Chromium through Playwright. Screenshots go to out/page/."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from safebo import Box, Fixed, SafeOptimizer
from safebo.runs import Campaign, RunConfig
from safebo.runs.driving import driving
from safebo.runs.starts import send_start
from safebo.server import Tokens
from tests.server.conftest import LINE, OPERATOR, RIG, VIEWER, Served, truth

pytestmark = pytest.mark.filterwarnings("default::safebo.exceptions.SafeboWarning")

SHOTS = Path("out/page")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if found is None:
        advice = "Chromium is missing, which tests the live page: install it, for example with apt-get install chromium."
        pytest.fail(advice) if os.environ.get("CI") else pytest.skip(advice)
    SHOTS.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, served: Served) -> Iterator[Callable[..., Page]]:
    contexts, problems = [], []

    def opened(run: str = "line", token: str | None = OPERATOR, size: tuple[int, int] = (1280, 900), **more: Any) -> Page:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith((served.url, "data:")) else problems.append(f"asked for {r.url}"))
        page.on("console", lambda m: problems.append(m.text) if "Content Security Policy" in m.text else None)
        page.goto(f"{served.url}/#{run}")
        if token is not None:
            page.locator("input[name=token]").fill(token)
            page.keyboard.press("Enter")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def events(served: Served, *kinds: str) -> list[tuple[str, str]]:
    return [(e.kind, e.who) for e in served.store.events("line") if e.kind in kinds]


def status(page: Page, text: str) -> None:
    text = "open" if text == "running" else text  # no process drives the runs of these tests
    expect(page.locator("#status")).to_have_text(text, timeout=15_000)


def test_approve_by_keyboard_and_tell_by_hand(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create(confirm=True, title="Pendulum, rig 2")
    served.operator.post(f"{run}/ask", headers={"idempotency-key": "rig"})
    page = opened()
    expect(page.get_by_text("Waits for your approval")).to_be_visible()
    expect(page.locator("#slice svg").first).to_be_visible()
    page.screenshot(path=SHOTS / "waiting.png")
    page.keyboard.press("a")
    expect(page.get_by_text("Approved by olga").first).to_be_visible()
    assert events(served, "approved", "started") == [("approved", "olga")]
    assert served.operator.post(f"{run}/ask", headers={"idempotency-key": "rig"}).status_code == 200  # the rig's program
    expect(page.get_by_text("waiting for its measurement")).to_be_visible()
    page.keyboard.press("m")
    page.get_by_role("textbox", name="objective").fill("nonsense")
    page.keyboard.press("Enter")
    expect(page.get_by_text("objective is not a number")).to_be_visible()
    page.get_by_role("textbox", name="objective").fill("0,85")
    page.get_by_label("Note").fill("<img src=x onerror=alert(1)>")
    page.screenshot(path=SHOTS / "measurement.png")
    page.keyboard.press("Enter")
    expect(page.get_by_text("None is pending")).to_be_visible()
    sample = served.viewer.get(f"{run}/samples").json()["measurements"][-1]
    assert sample["values"] == {"objective": 0.85} and sample["trial"] is not None
    assert sample["context"] == {"entered": "by hand", "note": "<img src=x onerror=alert(1)>"}


def test_reject_with_a_reason(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create(confirm=True)
    served.operator.post(f"{run}/ask")
    page = opened()
    page.get_by_role("button", name="Reject").click()
    page.get_by_label("Why").fill("too fast for today")
    page.screenshot(path=SHOTS / "reject.png")
    page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    record = page.get_by_role("region", name="Record")  # the picture has the same words as an invisible title
    expect(record.get_by_text("rejected: too fast for today").first).to_be_visible()
    assert events(served, "rejected") == [("rejected", "olga")]
    expect(page.get_by_text("None is pending")).to_be_visible()  # the record may be quicker than the panel
    page.keyboard.press("n")
    expect(page.get_by_text("Waits for your approval")).to_be_visible()


def test_pause_resume_and_stop(served: Served, opened: Callable[..., Page]) -> None:
    served.create()
    page = opened()
    status(page, "running")
    page.keyboard.press("p")
    status(page, "paused")
    resume(page, "lunch is over")
    status(page, "running")
    page.keyboard.press("s")
    expect(page.get_by_text("Press S again")).to_be_visible()
    page.screenshot(path=SHOTS / "stop.png")
    page.keyboard.press("Escape")
    status(page, "running")
    page.keyboard.press("s")
    page.keyboard.press("s")
    status(page, "stopped")
    expect(page.locator("#halt")).to_contain_text("Stopped: stopped on the page")
    page.screenshot(path=SHOTS / "stopped.png")
    page.keyboard.press("p")
    expect(page.locator("#error")).to_contain_text("stopped already")
    status(page, "stopped")
    resume(page, "the cable is back")
    status(page, "running")
    page.locator("#stop").click()  # at once
    status(page, "stopped")
    assert [k for k, _ in events(served, "paused", "resumed", "stopped")] == ["paused", *["resumed", "stopped"] * 2]


def resume(page: Page, reason: str) -> None:
    page.get_by_role("button", name="Resume").click()
    page.get_by_label("Why it may go on").fill(reason)
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()


def test_whoever_pauses_in_the_moment_of_a_stop_does_not_resume(served: Served, opened: Callable[..., Page]) -> None:
    served.create()
    page = opened()
    status(page, "running")
    expect(page.locator("#best")).to_contain_text("certified between")
    held: list[Any] = []
    page.route("**/runs/line", lambda route: held.append(route))  # what the page shows is old
    Campaign.open(served.store, "line").stop("the rig smokes", who="anna")
    page.wait_for_timeout(1000)
    status(page, "running")
    page.keyboard.press("p")
    expect(page.locator("#error")).to_contain_text("the rig smokes")
    page.unroute("**/runs/line")
    status(page, "stopped")
    for _ in range(3):
        page.keyboard.press("p")
    page.wait_for_timeout(500)
    status(page, "stopped")
    assert events(served, "paused", "resumed", "stopped") == [("stopped", "anna")]


def test_what_was_stopped_again_under_a_dialog_stays_stopped(served: Served, opened: Callable[..., Page]) -> None:
    served.create()
    campaign = Campaign.open(served.store, "line")
    campaign.pause("lunch")
    page = opened()
    status(page, "paused")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("dialog")).to_be_visible()  # not without a reason
    campaign.stop("the rig smokes")
    status(page, "stopped")
    page.get_by_label("Why it may go on").fill("lunch is over")
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.locator("#error")).to_contain_text("the rig smokes")
    assert [k for k, _ in events(served, "paused", "resumed", "stopped")] == ["paused", "stopped"]


def test_a_trial_that_has_just_taken_the_place_of_another_is_not_approved(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create(confirm=True)
    first = served.operator.post(f"{run}/ask").json()["trial"]["id"]
    page = opened()
    expect(page.locator("#next")).to_contain_text(first)
    page.clock.install()  # the page's time stands still from here on
    page.clock.pause_at(time.time() + 60.0)
    served.operator.post(f"{run}/reject", json={"trial": first, "reason": "for another one"})
    second = served.operator.post(f"{run}/ask").json()["trial"]["id"]
    for _ in range(300):
        page.clock.run_for(100)
        if second in page.locator("#next").inner_text():
            break
        time.sleep(0.1)
    assert second in page.locator("#next").inner_text()
    page.keyboard.press("a")
    expect(page.locator("#error")).to_contain_text("just taken the place of another")
    assert events(served, "approved") == []
    page.clock.run_for(2000)
    page.keyboard.press("a")
    page.clock.resume()
    expect(page.get_by_text("Approved by olga").first).to_be_visible()


def test_a_withdrawn_trial_and_a_voided_measurement_are_gone_at_once(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create(confirm=True)
    trial = served.operator.post(f"{run}/ask").json()["trial"]["id"]
    page = opened()
    expect(page.get_by_role("button", name="Approve")).to_be_enabled()
    served.operator.post(f"{run}/tell", json={"params": {"kp": 2.1}, "objective": 0.9})  # beside it
    expect(page.locator("#next")).to_contain_text(f"Trial {trial} was withdrawn")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    expect(page.locator("#counts")).to_contain_text("measurements2")
    Campaign.open(served.store, "line").void(2, "not 0.9")
    expect(page.locator("#counts")).to_contain_text("measurements1")
    page.wait_for_timeout(300)
    assert served.operator.post(f"{run}/approve", json={"trial": trial}).status_code == 409


def test_a_rig_sees_the_buttons_of_its_loop_only(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create(confirm=True)
    trial = served.operator.post(f"{run}/ask").json()["trial"]
    page = opened(token=RIG)
    expect(page.get_by_text("Waits for an operator's approval")).to_be_visible()
    for name in ("Approve", "Reject", "Resume"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    for key in "ar":
        page.keyboard.press(key)
    served.operator.post(f"{run}/approve", json={"trial": trial["id"]})
    page.get_by_role("button", name="Take it").click()
    expect(page.get_by_text("waiting for its measurement")).to_be_visible()
    expect(page.get_by_role("button", name="It was not executed")).to_have_count(0)
    page.keyboard.press("p")
    status(page, "paused")
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    page.locator("#stop").click()
    status(page, "stopped")
    assert [e.who for e in served.store.events("line")[2:]] == ["olga", "rig-2", "rig-2", "rig-2"]
    page.screenshot(path=SHOTS / "rig.png")


def test_a_violation_is_hard_to_overlook(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create()
    for _ in range(3):
        trial = served.operator.post(f"{run}/ask").json()["trial"]
        served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": truth(trial["params"])})
    page = opened()
    status(page, "running")
    page.keyboard.press("n")
    expect(page.get_by_text("waiting for its measurement")).to_be_visible()
    page.keyboard.press("m")
    page.get_by_role("textbox", name="objective").fill("-0.4")
    page.keyboard.press("Enter")
    expect(page.get_by_text("this stops the run")).to_be_visible()
    page.keyboard.press("Enter")
    status(page, "stopped")
    expect(page.locator("#halt")).to_contain_text("outside a limit")
    expect(page.locator("#progress .violation").first).to_be_visible()
    page.screenshot(path=SHOTS / "violation.png")
    page.get_by_role("button", name="Resume").click()
    page.get_by_label("Why it may go on").fill("a loose cable")
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("dialog")).to_be_visible()  # not before it is accepted
    status(page, "stopped")
    page.get_by_label("I accept that a measurement was outside").check()
    page.screenshot(path=SHOTS / "resume.png")
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    status(page, "running")


def test_a_lost_connection_is_announced_and_mended(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create(confirm=True)
    served.operator.post(f"{run}/ask")
    page = opened()
    expect(page.get_by_role("button", name="Approve")).to_be_enabled()
    page.context.set_offline(True)
    served.operator.post(f"{run}/pause", json={"reason": "behind its back"})
    expect(page.locator("#lost")).to_contain_text(re.compile(r"No connection since \d"), timeout=25_000)
    expect(page.get_by_role("button", name="Approve")).to_be_disabled()
    expect(page.locator("#status")).to_have_text("was open")
    page.locator("#stop").click()
    expect(page.locator("#error")).to_contain_text("NOT STOPPED")
    page.screenshot(path=SHOTS / "lost.png")
    page.context.set_offline(False)
    expect(page.locator("#lost")).to_be_hidden(timeout=20_000)
    status(page, "paused")


def test_a_viewer_sees_everything_and_no_button(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create(confirm=True)
    served.operator.post(f"{run}/ask")
    page = opened(token=VIEWER)
    expect(page.get_by_text("Waits for an operator's approval")).to_be_visible()
    expect(page.locator("#norms svg").first).to_be_visible()
    for name in ("STOP", "Pause", "Resume", "Approve", "Reject"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    for key in "arnmps":
        page.keyboard.press(key)
    time.sleep(0.3)
    assert [e.kind for e in served.store.events("line")] == ["created", "asked"]
    page.screenshot(path=SHOTS / "viewer.png", full_page=True)


def test_a_wrong_token_is_asked_for_again(served: Served, opened: Callable[..., Page]) -> None:
    served.create()
    page = opened(token="not the right one")
    expect(page.get_by_text("not known here")).to_be_visible()
    page.screenshot(path=SHOTS / "login.png")
    page.locator("input[name=token]").fill(OPERATOR)
    page.keyboard.press("Enter")
    status(page, "running")
    assert page.evaluate("sessionStorage.getItem('safebo-token')") == OPERATOR
    assert OPERATOR not in page.url and page.evaluate("localStorage.length") == 0


def test_without_tokens_on_this_computer(start: Callable[..., Served], browser: Browser) -> None:
    served = start(Tokens())
    served.stranger.post("/runs", json=LINE)
    page = browser.new_page()
    page.goto(served.url)
    status(page, "running")
    page.keyboard.press("n")
    expect(page.get_by_text("waiting for its measurement")).to_be_visible()
    page.close()


def plane(served: Served, experiments: int = 4, **changes: Any) -> str:
    """Two parameters and a limit, after some experiments."""

    def values(p: dict[str, float]) -> dict[str, Any]:
        objective = 1.0 - (p["kp"] - 3.0) ** 2 / 4.0 - 4.0 * (p["kd"] - 0.4) ** 2
        return {"objective": objective, "constraints": {"torque": 0.4 * p["kp"] + 0.3 * p["kd"]}}

    first = {"kp": 2.0, "kd": 0.3, **({"ki": 0.5} if changes.pop("three", False) else {})}
    run = served.create(
        name="plane",
        title="Pendulum, rig 2",
        parameters={n: {"low": 0.0, "high": 5.0 if n == "kp" else 1.0, "unit": "V/rad"} for n in first},
        constraints={"torque": {"upper": 1.6, "unit": "Nm", "noise": 0.02}},
        norm={"type": "adaptive", "m": 300, "gamma": 0.05} if len(first) == 2 else {"type": "fixed", "value": 3.0},
        points_per_axis=40 if len(first) == 2 else 10,
        confirm=True,
        initial={"params": first, **values(first)},
        **changes,
    )
    for i in range(experiments + 1):
        trial = served.operator.post(f"{run}/ask").json()["trial"]
        if i < experiments:
            served.operator.post(f"{run}/approve", json={"trial": trial["id"]})
            served.operator.post(f"{run}/ask")
            served.operator.post(f"{run}/tell", json={"trial": trial["id"], **values(trial["params"])})
    return run


def test_two_parameters_in_light_and_dark(served: Served, opened: Callable[..., Page]) -> None:
    plane(served)
    for scheme in ("light", "dark"):
        page = opened("plane", color_scheme=scheme)
        expect(page.locator("#slice image")).to_have_count(1)
        expect(page.locator("#norms svg").first).to_be_visible()
        page.screenshot(path=SHOTS / f"plane-{scheme}.png", full_page=True)
        page.screenshot(path=SHOTS / f"plane-{scheme}-top.png")
        expect(page.locator("#slice svg[role=img] .m-mark").first).to_be_attached()  # points that are both have both marks
        expect(page.locator("#slice svg[role=img] .g-mark").first).to_be_attached()
        page.get_by_label("up", exact=True).select_option("")
        expect(page.locator("#sliders input")).to_have_count(1)
        expect(page.locator("#slice .mean").first).to_be_visible()
        page.get_by_role("slider", name="kd [V/rad]").focus()
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        page.get_by_label("output", exact=True).first.select_option("torque")
        expect(page.locator("#slice svg").first).to_have_attribute("aria-label", re.compile("torque along kp"))
        page.locator("#slice").scroll_into_view_if_needed()
        page.screenshot(path=SHOTS / f"line-{scheme}.png")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(14, 19, 23)"


def test_three_parameters_have_sliders(served: Served, opened: Callable[..., Page]) -> None:
    plane(served, 2, three=True)
    page = opened("plane")
    expect(page.locator("#sliders input")).to_have_count(1)
    expect(page.locator("#slice image")).to_have_count(1)
    page.locator("#slice").scroll_into_view_if_needed()
    page.screenshot(path=SHOTS / "three.png")


def test_the_page_asks_only_for_what_it_shows(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create()
    page = opened()
    expect(page.locator("#norms svg").first).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url.rpartition("/")[2].partition("?")[0]))
    trial = served.operator.post(f"{run}/ask").json()["trial"]  # a slice shows where it lies; the best stays what it is
    expect(page.get_by_text("waiting for its measurement")).to_be_visible()
    page.wait_for_timeout(500)
    assert asked.count("slice") == 1 and "best" not in asked
    asked.clear()
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": truth(trial["params"])})
    expect(page.locator("#next")).to_contain_text("None is pending")
    page.wait_for_timeout(500)
    assert not {"slice", "best"} & set(asked)  # nobody looks
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#slice svg").first).to_have_attribute("aria-label", re.compile("kp"))
    for _ in range(100):
        if asked.count("slice") and asked.count("best"):
            break
        page.wait_for_timeout(100)
    assert asked.count("slice") == asked.count("best") == 1


def test_a_long_record_is_not_read_from_its_beginning(served: Served, opened: Callable[..., Page]) -> None:
    served.create()
    Campaign.open(served.store, "line").tell_many([({"kp": 2.0}, 0.8)] * 700)
    streams: list[str] = []
    with served.viewer.stream("GET", "/runs/line/events/stream?seconds=0") as whole:
        assert sum(line.startswith("data: ") for line in whole.iter_lines()) == 701
    page = opened(token=None)
    page.on("request", lambda r: streams.append(r.url) if "/stream" in r.url else None)
    page.locator("input[name=token]").fill(VIEWER)
    page.keyboard.press("Enter")
    status(page, "running")
    expect(page.locator("#log li").first).to_contain_text("701")
    assert streams[0].endswith("?after=201")


def test_on_a_phone(served: Served, opened: Callable[..., Page]) -> None:
    plane(served)
    page = opened("plane", size=(360, 740), device_scale_factor=2, has_touch=True, is_mobile=True)
    expect(page.locator("#slice image")).to_have_count(1)
    page.screenshot(path=SHOTS / "phone-top.png")
    page.screenshot(path=SHOTS / "phone.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    stop = page.locator("#stop").bounding_box()
    assert stop is not None and stop["width"] > 300 and stop["height"] >= 48 and stop["y"] + stop["height"] <= 740
    page.get_by_role("button", name="Approve").tap()
    expect(page.get_by_text("Approved by olga").first).to_be_visible()
    page.locator("#stop").tap()
    status(page, "stopped")


def test_everything_is_reached_by_keyboard_and_named(served: Served, opened: Callable[..., Page]) -> None:
    plane(served, 1)
    page = opened("plane")
    expect(page.locator("#slice image")).to_have_count(1)
    seen = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"runs", "pause", "stop", "log"} <= seen and any("Approve" in text for text in seen)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, input, svg[role=img]')].filter(e => e.offsetParent !== null && "
        "!(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).length"
    )
    assert unnamed == 0
    assert page.locator("svg[role=img]").first.get_attribute("aria-label").startswith("objective over 2 measurements")


def test_what_another_process_does_appears(served: Served, opened: Callable[..., Page]) -> None:
    served.create()
    page = opened()
    status(page, "running")
    Campaign.open(served.store, "line").stop("from the terminal", who="anna")
    status(page, "stopped")
    expect(page.locator("#log li").first).to_contain_text("from the terminal (by anna)")


def test_a_start_waits_for_its_approval(served: Served, opened: Callable[..., Page]) -> None:
    optimizer = SafeOptimizer(Box({"kp": (0.0, 5.0)}), 0.0, norm=Fixed(5.0), cubes=None, points_per_axis=50)
    config = RunConfig(confirm=True, plant={"start": [{"kp": 2.0}]}, units={"kp": "V"})
    campaign = Campaign.create(served.store, "rig", optimizer, config=config)
    page = opened("rig")
    expect(page.locator("#next")).to_contain_text("The start waits for your approval")
    page.screenshot(path=SHOTS / "start.png")
    page.keyboard.press("a")
    expect(page.locator("#next")).to_contain_text("approved by olga")
    assert send_start(campaign) == {"kp": 2.0}
    expect(page.locator("#next")).to_contain_text("waiting for its measurement")


def test_rejected_aborted_and_taken_back(served: Served, opened: Callable[..., Page]) -> None:
    run = plane(served, 3)
    served.operator.post(f"{run}/reject", json={"trial": served.operator.get(run).json()["pending"]["id"], "reason": "too fast"})
    served.operator.post(f"{run}/abort", json={"params": {"kp": 4.0, "kd": 0.9}, "reason": "the arm is blocked"})
    page = opened("plane")
    expect(page.locator("#slice svg .rejected").first).to_be_attached()
    expect(page.locator("#slice svg .aborted").first).to_be_attached()
    below = """() => [...document.querySelectorAll('#progress svg[role=img]')].every((chart) => {
      const floor = chart.querySelector('path.frame').getBoundingClientRect().y;
      const marks = [...chart.querySelectorAll('.rejected, .aborted')];
      return marks.length === 2 && marks.every((mark) => mark.getBoundingClientRect().y > floor);
    })"""
    assert page.evaluate(below)  # what has no value does not stand at one
    for text in ("rejected", "aborted"):
        expect(page.locator("#progress .legend")).to_contain_text(text)
        expect(page.locator("#slice .legend")).to_contain_text(text)
    expect(page.locator("#progress svg[role=img] .rejected title").first).to_have_text(re.compile("rejected: too fast at kp = "))
    expect(page.locator("#counts")).to_contain_text("rejected1")
    Campaign.open(served.store, "plane").void(3, "a typing error", who="anna")
    expect(page.locator("#progress svg[role=img] .gone").first).to_be_attached()
    told = page.locator("#log li", has_text="told").filter(has=page.locator("strong", has_text=re.compile("^3 $")))
    expect(told.locator(".gone")).to_contain_text("measured: objective")
    expect(told).to_contain_text("taken back by anna: a typing error")
    expect(page.locator("#log")).to_contain_text("certified with a measurement that was taken back later")
    expect(page.locator("#progress .doubtful").first).to_be_attached()
    expect(page.locator("#age")).to_be_hidden()
    page.screenshot(path=SHOTS / "taken-back.png", full_page=True)


def test_the_record_is_in_words_with_the_entry_behind_a_fold(served: Served, opened: Callable[..., Page]) -> None:
    served.create()
    Campaign.open(served.store, "line").configure(who="anna", experiments=7, confirm=True)
    page = opened()
    row = page.locator("#log li").first
    expect(row).to_contain_text("The run makes 7 experiments in all; Experiments need approval from now on (by anna)")
    assert "{" not in page.locator("#log").inner_text()
    row.locator("summary").click()
    expect(row.locator("pre")).to_contain_text('"experiments": 7')
    Campaign.open(served.store, "line").pause("lunch")
    expect(page.locator("#log li").first).to_contain_text("The run was paused: lunch")
    expect(page.locator("#log li").nth(1).locator("pre")).to_be_visible()  # what is open stays open
    time_ = page.locator("#log li time").first
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time_.inner_text()) and re.search(r"\.\d{6}", time_.get_attribute("title") or "")
    expect(page.locator("#zone")).to_contain_text("times in")


def test_a_picture_that_is_not_of_the_present_says_so(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create()
    page = opened()
    expect(page.locator("#slice svg").first).to_be_visible()
    expect(page.locator("#age")).to_be_hidden()
    held: list[Any] = []
    slow = [True]  # the server takes its time
    page.route("**/slice?*", lambda route: held.append(route) if slow else route.continue_())
    served.operator.post(f"{run}/tell", json={"params": {"kp": 2.1}, "objective": 0.85})
    expect(page.locator("#age")).to_have_text("Computed from 1 measurement; 2 are in. Being computed anew …")
    expect(page.locator("#slice")).to_have_class("old")
    page.screenshot(path=SHOTS / "old.png")
    slow.clear()
    for route in held:
        route.continue_()
    expect(page.locator("#age")).to_be_hidden()
    expect(page.locator("#slice")).to_have_class("")


def test_the_next_trial_lies_in_the_safe_area(served: Served, opened: Callable[..., Page]) -> None:
    plane(served, 0)
    page = opened("plane")
    expect(page.locator("#slice image")).to_have_count(1)
    inside = page.evaluate(
        """async () => {
          const mark = document.querySelector('#slice .trial-fill'), image = document.querySelector('#slice image');
          const [, x, y] = mark.getAttribute('d').match(/M([\\d.]+) ([\\d.]+)/).map(Number), picture = new Image();
          picture.src = image.getAttribute('href');
          await picture.decode();
          const canvas = document.createElement('canvas');
          Object.assign(canvas, { width: picture.width, height: picture.height });
          const pen = canvas.getContext('2d'), box = ['x', 'y', 'width', 'height'].map((n) => Number(image.getAttribute(n)));
          pen.drawImage(picture, 0, 0);
          const at = [(x - box[0]) / box[2] * picture.width, (y + 10 - box[1]) / box[3] * picture.height];
          return pen.getImageData(Math.floor(at[0]), Math.floor(at[1]), 1, 1).data[3];
        }"""
    )
    assert inside == 255  # what is not certified is pale


def test_the_list_of_runs_says_what_the_page_says(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create()
    page = opened()
    status(page, "open")
    expect(page.locator("#runs option")).to_have_text("line – open")
    page.route("**/api/v1/runs", lambda route: None)  # the list is not asked for again
    served.operator.post(f"{run}/pause", json={"reason": "lunch"})
    status(page, "paused")
    expect(page.locator("#runs option")).to_have_text("line – paused")


def test_a_surprising_value_is_asked_for_twice(served: Served, opened: Callable[..., Page]) -> None:
    run = served.create()
    trial = served.operator.post(f"{run}/ask").json()["trial"]
    page = opened()
    expect(page.get_by_text("waiting for its measurement")).to_be_visible()
    page.keyboard.press("m")
    page.get_by_role("textbox", name="objective").fill("46")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text(re.compile(r"objective: 46 was measured, \S+ to \S+ is certified"))
    warning = page.get_by_role("dialog").get_by_role("alert")
    expect(warning).to_have_class("wrong")
    assert warning.evaluate("e => getComputedStyle(e).fontWeight") == "700"
    assert served.viewer.get(run).json()["measurements"] == 1
    page.get_by_role("textbox", name="objective").fill(str(truth(trial["params"])))
    page.keyboard.press("Enter")
    expect(page.get_by_text("None is pending")).to_be_visible()


def test_who_drives_it(served: Served, opened: Callable[..., Page]) -> None:
    served.create()
    page = opened()
    status(page, "open")
    expect(page.locator("#counts")).to_contain_text("a Python program, or clients over HTTP, may ask; nobody has asked yet")
    with driving(Campaign.open(served.store, "line")):
        expect(page.locator("#status")).to_have_text("running")
        expect(page.locator("#counts")).to_contain_text(
            re.compile(r"running, driven by process \d+ on \S+ since \d\d:\d\d:\d\d(?!\.)")
        )
    status(page, "open")


def test_without_a_run_the_page_says_how_to_make_one(start: Callable[..., Served], browser: Browser) -> None:
    served = start(Tokens())
    page = browser.new_page()
    page.goto(served.url)
    expect(page.locator("#none")).to_contain_text("safebo init")
    served.stranger.post("/runs", json=LINE)
    status(page, "open")
    expect(page.locator("#none")).to_be_hidden()
    page.close()

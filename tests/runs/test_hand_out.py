from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from safebo import Box, Fixed, Matern, SafeOptimizer
from safebo.exceptions import ConflictError, InvalidValueError, OvertakenError, PendingTrialError
from safebo.runs import Campaign, RunConfig, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs.db") as store:
        yield store


def campaign(store: Store, **config: object) -> Campaign:
    optimizer = SafeOptimizer(
        Box({"kp": (0.0, 5.0)}), threshold=0.0, kernel=Matern(1.5, 0.3), norm=Fixed(5.0), points_per_axis=50
    )
    optimizer.tell({"kp": 2.0}, 0.8)
    return Campaign.create(store, "line", optimizer, config=RunConfig(**config))  # type: ignore[arg-type]


def test_a_trial_is_asked_for_and_started_in_one(store: Store) -> None:
    run = campaign(store)
    pending = run.hand_out(who="rig", key="a")
    assert pending is not None and pending.out and [e.kind for e in run.events()] == ["created", "asked", "started"]
    assert run.hand_out(who="rig", key="a") == pending  # the same key, the same trial
    assert Campaign.open(store, "line").hand_out(who="rig", key="a") == pending  # from another process as well
    with pytest.raises(ConflictError, match="another"):  # somebody else who chose the same key is not told to run it as well
        run.hand_out(who="second rig", key="a")
    for key in (None, "b"):
        with pytest.raises(PendingTrialError):
            run.hand_out(key=key)
    run.tell(pending.trial.id, 0.8)
    with pytest.raises(ConflictError, match="not out any more"):
        run.hand_out(who="rig", key="a")
    with pytest.raises(ConflictError, match="another request"):
        run.tell({"kp": 2.0}, 0.8, key="a")
    assert len(run.events()) == 4


def test_an_old_key_does_not_get_a_trial_that_was_started_again(store: Store) -> None:
    run = campaign(store)
    pending = run.hand_out(key="a")
    assert pending is not None
    run.retry(pending.trial.id)
    with pytest.raises(ConflictError, match="not out any more"):
        run.hand_out(key="a")
    again = run.hand_out(key="b")
    assert again is not None and again.out and again.trial == pending.trial
    with pytest.raises(ConflictError, match="not out any more"):
        run.hand_out(key="a")


def test_it_waits_for_the_approval(store: Store) -> None:
    run = campaign(store, confirm=True)
    waiting = run.hand_out(key="a")
    assert waiting is not None and not waiting.out and run.hand_out(key="a") == waiting
    run.approve(waiting.trial.id, who="olga")
    started = run.hand_out(key="a")
    assert started is not None and started.out and started.approved is not None and started.approved[0] == "olga"


def test_nothing_while_halted_or_complete(store: Store) -> None:
    run = campaign(store, experiments=1)
    run.pause()
    assert run.hand_out() is None
    run.resume()
    pending = run.hand_out()
    assert pending is not None and not run.ledger.complete
    run.tell(pending.trial.id, 0.8)
    assert run.ledger.complete and run.hand_out() is None


def test_who_is_overtaken_is_told_so(store: Store) -> None:
    run = campaign(store)
    other = Campaign.open(store, "line")
    other.pause()
    with pytest.raises(OvertakenError, match="read it again"):
        store.append("line", 1, [run.events()[0]])


@pytest.mark.parametrize("trial", [None, 1, ["a"], {"kp": 1.0}])
def test_a_trial_is_named_by_text(store: Store, trial: object) -> None:
    run = campaign(store)
    for step in (run.approve, run.retry, run.start, run.reject):
        with pytest.raises((ConflictError, InvalidValueError)):
            step(trial)  # type: ignore[operator]
    assert len(run.events()) == 1

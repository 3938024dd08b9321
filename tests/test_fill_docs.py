"""The tables of the documentation come from the committed results."""

from __future__ import annotations

import json

import pytest

from benchmarks import fill_docs
from safebo.studies.calibrate.cases import ELSEWHERE, HELD_OUT, KINKS, KNOWN, SHORT, YARDSTICK


def line(method, **given):
    values = {"part": "main", "family": "1-D, norm 1..10", "assumptions": True, "runs": 10, "unsafe_runs": 0, "solved": 9}
    rest = {"unsafe_rate_95": [0.0, 0.3085], "worst_violation": 0.0, "median_experiments_to_95": 7.0, "norm_too_small": 1}
    rest["interval_missed"] = 2
    return values | rest | {"method": method} | given


def test_committed_documents_agree_with_the_committed_results():
    for path, content in fill_docs.filled(fill_docs.ROOT).items():
        assert path.read_bytes() == content, f"{path}: run python -m benchmarks.fill_docs"


def test_only_what_is_marked_is_replaced():
    text = "a\n<!-- x -->\nold\n| table |\n<!-- /x -->\nb\n<!-- a comment -->\n"
    assert fill_docs.fill(text, {"x": "new"}) == "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n<!-- a comment -->\n"
    with pytest.raises(ValueError, match="<!-- x -->"):
        fill_docs.fill(text, {"y": "new"})


def test_a_changed_result_is_noticed_and_written(tmp_path, monkeypatch, capsys):
    for name in ("README.md", "docs/guarantees.md", "docs/images/calibration.png", "results"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(fill_docs.ROOT / name)
    (tmp_path / "README.md").unlink()
    (tmp_path / "README.md").write_text((fill_docs.ROOT / "README.md").read_text().replace(" of 300 ", " of 301 "))
    monkeypatch.setattr(fill_docs, "ROOT", tmp_path)
    assert fill_docs.main(["--check"]) == 1 and "README.md differs" in capsys.readouterr().out
    assert fill_docs.main([]) == 0 and "README.md written" in capsys.readouterr().out
    assert fill_docs.main(["--check"]) == 0 and not capsys.readouterr().out
    assert (tmp_path / "README.md").read_text() == (fill_docs.ROOT / "README.md").read_text()


def test_a_table_without_a_place_is_an_error(tmp_path):
    (tmp_path / "results").symlink_to(fill_docs.ROOT / "results")
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/guarantees.md"):
        (tmp_path / name).write_text("nothing marked\n")
    with pytest.raises(ValueError, match="No file has the marker"):
        fill_docs.filled(tmp_path)


def test_numbers_of_a_line():
    text = fill_docs.methods([line("default", unsafe_runs=1, worst_violation=-0.0123)], ("main",))
    assert "| 1-D, norm 1 to 10 | default | 1 of 10 (0.0 to 30.9 %) | -0.012 | 90 % (55 to 100 %) | 7 | 1 | 2 |" in text
    assert text.splitlines()[1] == "|" + 8 * "---|"
    unsolved = fill_docs.methods([line("default", part="3-D", median_experiments_to_95=None, norm_too_small=None)], ("3-D",))
    assert "| not reached | not measured |" in unsolved


def test_conditions_side_by_side():
    given = [line(method, part="conditions", family="kink", assumptions=False) for method in ("default", YARDSTICK)]
    text = fill_docs.conditions([*given, line("default", part="conditions", family="noise")])
    cells = "0 of 10 (0.0 to 30.9 %) | - | 90 % | 7"
    assert f"| kink (outside the assumptions) | {cells} | 1 | {cells} |" in text
    assert f"| noise | {cells} | 1 | not run | - | - | - |" in text


def test_goals_that_are_missed_stand_out():
    good = line("default", runs=100, solved=95), line(YARDSTICK, runs=100, median_experiments_to_95=6.0)
    text = fill_docs.goals([*good, line("default", part="3-D"), line("scenario/paper/union/local", part="published")])
    assert "| 1-D, norm 1 to 10 | 0 of 100 | 95 of 100 (95.0 %; goal 95 %) | 7 (SafeOpt 6) |" in text and "**" not in text
    bad = line("default", runs=100, solved=94, unsafe_runs=1, median_experiments_to_95=8.0), good[1]
    assert "| **1 of 100** | **94 of 100 (94.0 %; goal 95 %)** | **8 (SafeOpt 6)** |" in fill_docs.goals([*bad])
    unsolved = line("default", runs=100, median_experiments_to_95=None), line(YARDSTICK, median_experiments_to_95=None)
    assert "| not reached (SafeOpt not reached) |" in fill_docs.goals([*unsolved])
    assert "norm 1 to 10, held out | 0 of 10 | 9 of 10 (90.0 %; goal 90 %)" in fill_docs.goals(
        [line(method, part=HELD_OUT) for method in ("default", YARDSTICK)]
    )
    outside = [line(method, part="conditions", assumptions=False) for method in ("default", YARDSTICK)]
    assert len(fill_docs.goals(outside).splitlines()) == 1  # the head


def test_digest_of_the_combinations():
    def row(method, unsafe, solved, **where):
        return line(method, unsafe_runs=unsafe, solved=solved, **{"part": "combinations", **where})

    rows = [
        row("true/paper/union/local", 0, 5),
        row("true/ay/union/local", 0, 9),
        row("scenario/mixture/confidence/local", 3, 10),
    ]
    elsewhere = [row(rows[2]["method"], 1, 0, part=ELSEWHERE, family=f"{k}-D, norm 1..30") for k in (2, 3)]
    text = fill_docs.combinations(rows + rows + elsewhere)
    assert "| with | combinations with an unsafe run | 1-D, Matern 3/2 | 2-D | 3-D |" in text
    assert "| true | 0 of 2 | 0 of 40, 70 % | - | - |" in text
    assert "| local | 1 of 3 | 6 of 60, 80 % | 1 of 10, 0 % | 1 of 10, 0 % |" in text
    assert "| `scenario/mixture/confidence/local` | 1 of 1 | 6 of 20, 100 % | 1 of 10, 0 % | 1 of 10, 0 % |" in text
    assert "global" not in text and "not been run" in fill_docs.combinations([line("default")])


def test_bottlenecks_by_reach():
    def way(reach, *outcomes):
        numbers = {"reach": reach, "noise_sds": "12.4", "half_widths": "7"}
        return numbers | dict(zip(("default", KNOWN, YARDSTICK), outcomes, strict=True))

    text = fill_docs.bottlenecks([way("0.0075", "", None, ""), way("0.0199", "9", "", ""), way("0.1", "9", "9", "9")])
    assert "| 0 to 0.02 | 2 | 12 to 12 | 7 to 7 | 1 of 2 | 0 of 1 | 0 of 2 |" in text
    assert "2 of 3, 67 % (95 % interval 9 to 99 %).\n" in text
    told = fill_docs.bottlenecks([way("0.0075", "", "7", ""), way("0.0199", "9", "", "")])
    assert "Told the true norm, the defaults solve 1 of the 1 others that they ran on." in told
    untold = fill_docs.bottlenecks([way("0.0075", "", None, ""), way("0.0199", "9", None, "")])
    assert "| 0 to 0.02 | 2 | 12 to 12 | 7 to 7 | 1 of 2 | 0 of 2 |" in untold and "true norm, the defaults" not in untold
    assert "| from 0.04 | 1 | 12 to 12 | 7 to 7 | 1 of 1 | 1 of 1 | 1 of 1 |" in text


def test_study_rows_are_those_of_its_summary():
    lines = json.loads((fill_docs.ROOT / "results/study/summary.json").read_text())["methods"]
    assert len(fill_docs.published(lines).splitlines()) == 2 + len(lines)


def test_alternatives_by_hand():
    """Three groups: the published bound is half the norm in one, so the factor is 2 (quantiles of equal values)."""
    common = {"norm": "5", "local_norm": "2.0", "largest": "2.0", "adaptive": "8", "posterior": "1"}
    groups = (("0.1", "1", "1.0"), ("0.3", "3", "4.0"), ("1.0", "8", "4.0"))
    rows = [common | {"width": width, "samples": n, "scenario": bound} for width, n, bound in groups]
    text = fill_docs.alternatives(rows * 4)
    assert "| `Scenario`, as published | 90 % | 0 to 100 % | 1 | 0.5 | 2.0 | 2.0 |" in text
    assert "nothing discarded | 90 % | 100 to 100 % | 0 | 1.0 | 1.0 | 1.0 |" in text
    assert "`Scenario` times 2.0," in text and "in every row | 98 % | 100 to 100 % | 0 | 1.0 | 4.0 | 4.0 |" in text
    assert "| `PosteriorScenario` | 99 % | 0 to 0 % | 3 | 0.5 | 0.5 | 0.5 |" in text
    assert "| the larger of the last two | 98 % | 100 to 100 % | 0 | 4.0 | 4.0 | 4.0 |" in text
    assert "of 3 rows below nominal" in text


def test_kinks_are_beside_what_helps_and_what_it_costs():
    given = [
        line("default", part="conditions", family="kink above the limit", unsafe_runs=3, worst_violation=-0.5),
        line(SHORT, part="short strides", family="1-D, norm 1..30"),
        line(SHORT, part=KINKS, family="kink above the limit"),
        line("default", part="main", family="1-D, norm 1..30"),
        line(YARDSTICK, part="conditions", family="kink above the limit"),
    ]
    rows = fill_docs.kinks(given).splitlines()[2:]
    assert [tuple(row.split(" | ")[:3]) for row in rows] == [
        ("| kink above the limit", "default", "3 of 10 (0.0 to 30.9 %)"),
        ("| kink above the limit", "default, `stride=0.1`", "0 of 10 (0.0 to 30.9 %)"),
        ("| 1-D, norm 1 to 30", "default", "0 of 10 (0.0 to 30.9 %)"),
        ("| 1-D, norm 1 to 30", "default, `stride=0.1`", "0 of 10 (0.0 to 30.9 %)"),
    ]

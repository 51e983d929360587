"""Claims and tables from results, checked with numbers computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.papers.toy_paper import SMALL, with_entry

from polyfed.comparison import Difference, Run
from polyfed.papers import evaluate_claims, table_result
from polyfed.papers.claims import Verdict, judge
from polyfed.papers.loading import parse_paper
from polyfed.papers.measures import read_value
from polyfed.papers.page import page_text
from polyfed.papers.paper_file import PaperMeasure
from polyfed.papers.text import plain_table, published_text, results_json, results_text
from polyfed.runs.records import Result

PAPER = parse_paper(SMALL, "toy")
DIGITS_FEDVTC, DIGITS_LOCAL = ("digits", "fedvtc"), ("digits", "local")


def run(seed: int, accuracy: float, *, untuned: float | None = None, mib: float = 1.0) -> Run:
    """Return a finished run with an accuracy on the common test set in per cent."""
    also = {} if untuned is None else {"untuned": {"final": untuned / 100, "by_round": [None, untuned / 100]}}
    measured = {"final": accuracy / 100, "best": accuracy / 100, "by_round": [0.99, accuracy / 100], "also": also}
    personal = {"final": 0.5, "best": 0.5, "by_round": [0.5]}
    result: dict[str, Any] = {
        "seed": seed,
        "accuracy": {"global": measured, "personal": personal},
        "metrics": {"personal": {"client_mean": {"final": 0.25, "by_round": [0.75, 0.25]}}},
        "bytes": {"up": int(mib * 2**20), "down": 2**20},
        "state_hash": str(seed) * 64,
    }
    return Run("folder", Result(result), {"versions": {"polyfed": "1.0", "torch": "2", "code": {}}})


def runs(gains: Mapping[int, float]) -> dict[tuple[str, str], list[Run]]:
    """Return runs of FedVTC with an accuracy of 60 % and the given gain by fine-tuning, and of local training."""
    tuned = [run(seed, 60 + gain, untuned=60) for seed, gain in gains.items()]
    return {
        DIGITS_FEDVTC: tuned,
        ("digits", "before"): tuned,
        DIGITS_LOCAL: [run(seed, 50) for seed in gains],
    }


# Gains of 2, 3 and 4 points: mean 3, sample standard deviation 1. The 97.5 % quantile of the t distribution with two
# degrees of freedom is 4.303, so half the interval is 4.303 / sqrt(3) = 2.484: from 0.516 to 5.484.
@pytest.mark.parametrize(
    ("by", "verdict"), [(0.0, "shown"), (0.6, "not shown"), (5.4, "not shown"), (5.5, "opposite")]
)
def test_a_claim_is_judged_by_the_interval_and_its_margin(by: float, verdict: str) -> None:
    paper = parse_paper(with_entry("claims/0/by", by), "toy")
    (result,) = evaluate_claims(paper, "cpu", ["table1"], runs({0: 2, 1: 3, 2: 4}))
    (one,) = result.comparisons
    assert one.difference is not None and one.difference.n == 3
    assert (one.difference.mean, one.difference.low, one.difference.high) == pytest.approx(
        (3, 0.516, 5.484), abs=1e-3
    )
    assert (one.verdict, result.verdict) == (verdict, verdict)


def test_missing_runs_and_single_seeds_decide_nothing() -> None:
    (result,) = evaluate_claims(PAPER, "cpu", ["table1"], {})
    assert (result.verdict, result.count("not run")) == ("not run", 1)
    (result,) = evaluate_claims(PAPER, "cpu", ["table1"], runs({0: 30}))
    assert result.verdict == "not shown"
    assert evaluate_claims(PAPER, "cpu", [], runs({0: 30})) == []


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        (("shown", "shown"), "shown"),
        (("shown", "not shown"), "not shown"),
        (("shown", "opposite"), "opposite"),
        (("shown", "not run"), "not shown"),
        (("not run", "not run"), "not run"),
    ],
)
def test_the_verdict_of_a_claim_with_several_comparisons(verdicts: tuple[Verdict, Verdict], whole: str) -> None:
    # gains over rows: +10 is shown, no difference is not shown, -10 is the opposite, and no runs
    gains = {"shown": 10.0, "not shown": 0.0, "opposite": -10.0}
    raw = with_entry("claims/0/than", ["local", "few"])
    found: dict[tuple[str, str], list[Run]] = {DIGITS_FEDVTC: [run(seed, 60 + seed / 10) for seed in range(3)]}
    for row, verdict in zip(("local", "few"), verdicts, strict=True):
        if verdict in gains:
            found["digits", row] = [run(seed, 60 - gains[verdict]) for seed in range(3)]
    if "not shown" in verdicts:
        found["digits", "few"] = [run(seed, 60 + 10 * (seed - 1)) for seed in range(3)]
    (result,) = evaluate_claims(parse_paper(raw, "toy"), "cpu", ["table1"], found)
    assert tuple(one.verdict for one in result.comparisons) == verdicts
    assert result.verdict == whole


def test_less_traffic_is_better() -> None:
    raw = with_entry("tables/table1/measure", {"of": "traffic"})
    raw["claims"][0]["than"] = ["local"]
    found = {
        DIGITS_FEDVTC: [run(s, 50, mib=1 + s) for s in (0, 1)],
        DIGITS_LOCAL: [run(s, 50, mib=4 + s) for s in (0, 1)],
    }
    (result,) = evaluate_claims(parse_paper(raw, "toy"), "cpu", ["table1"], found)
    assert result.comparisons[0].difference == Difference(3.0, 3.0, 3.0, 2, "seeds")
    assert result.verdict == "shown"


def test_one_seed_has_no_interval_to_judge() -> None:
    assert judge(Difference(50.0, None, None, 1), 0.0) == "not shown"
    assert judge(None, 0.0) == "not run"


@pytest.mark.parametrize(
    ("measure", "moment", "value"),
    [
        ({"of": "global"}, None, 63.0),
        ({"of": "global"}, "untuned", 60.0),
        ({"of": "global"}, "head", None),
        ({"of": "global", "round": "best"}, None, 99.0),
        ({"of": "personal"}, None, 50.0),
        ({"of": "personal", "over": "clients"}, None, 25.0),
        ({"of": "personal", "over": "clients", "round": "best"}, None, 75.0),
        ({"of": "personal", "over": "clients"}, "untuned", None),
        ({"of": "traffic"}, None, 4.0),
    ],
)
def test_measures_read_the_result(measure: dict[str, Any], moment: str | None, value: float | None) -> None:
    result = run(0, 63, untuned=60, mib=3).result
    assert read_value(PaperMeasure.model_validate(measure), moment, result) == pytest.approx(value)


def test_the_table_has_the_published_number_and_the_gain_with_its_interval() -> None:
    found = runs({0: 2, 1: 3, 2: 4})
    tables = [table_result(PAPER, "cpu", "table1", found, [0, 1, 2, 3])]
    claims = evaluate_claims(PAPER, "cpu", ["table1"], found)
    lines = results_text(PAPER, "cpu", tables, claims, markdown=True).splitlines()
    start = lines.index("|  | MNIST |")
    assert lines[start + 2 : start + 6] == [
        "| local training | 50.0 ± 0.0, 3 of 4 seeds |",
        "| before | 60.0 ± 0.0, 3 of 4 seeds |",
        "| FedVTC | 63.0 ± 1.0, 3 of 4 seeds (88.7) |",
        "| few | not run |",
    ]
    gains = lines.index("|  | MNIST |", start + 1)
    assert lines[gains + 3] == r"| FedVTC | +13.0 \[+10.5, +15.5\] |"
    assert r"| 1 | MNIST | FedVTC | before | +0 | +3.0 \[+0.5, +5.5\] | shown |" in lines
    raw = with_entry("claims/0/than", ["before", "few"])
    with_missing = results_text(
        PAPER, "cpu", tables, evaluate_claims(parse_paper(raw, "toy"), "cpu", ["table1"], found), markdown=True
    )
    assert "Comparisons without runs are left out: 1." in with_missing and "| FedVTC | few |" not in with_missing
    plain = results_text(PAPER, "cpu", tables, claims, markdown=False)
    assert "FedVTC          63.0 ± 1.0, 3 of 4 seeds (88.7)\n" in plain
    content = results_json(PAPER, "cpu", tables, claims)
    (cell,) = [one for one in content["tables"]["table1"] if one["row"] == "fedvtc"]
    assert (cell["published"], cell["missing_seeds"], sorted(cell["values"])) == (88.7, [3], ["0", "1", "2"])
    assert content["claims"][0]["verdict"] == "shown"


def test_long_cells_of_plain_tables_take_several_lines() -> None:
    lines = [["", "a heading with more than 24 letters"], ["row", "word " * 12], ["other", ""]]
    assert plain_table(lines).splitlines() == [
        "       a heading with more than",
        "       24 letters",
        "-----  -------------------------------------------------",
        f"row    {('word ' * 10).strip()}",
        "       word word",
        "other",
    ]


@pytest.mark.parametrize(("value", "text"), [(41.0, "41.0"), (88.7, "88.7"), (33.65, "33.65"), (807.46, "807.46")])
def test_published_numbers_keep_their_decimals(value: float, text: str) -> None:
    assert published_text(value) == text


def test_the_page_has_notes_first_and_says_what_is_missing() -> None:
    found = runs({0: 2, 1: 3})
    tables = [table_result(PAPER, "cpu", "table1", found, [0, 1])]
    claims = evaluate_claims(PAPER, "cpu", ["table1"], found)
    page = page_text("toy", PAPER, "cpu", tables, claims, found, [0, 1], notes="It helps.\n")
    order = ["# Toy: results", "It helps.", "## Claims", "## Table 1", "## Reproduce these tables", "## Runs"]
    assert [page.index(part) for part in order] == sorted(page.index(part) for part in order)
    assert "**Rows that have not been run:** few." in page and "| few |" not in page
    assert "Tables that have not been run" not in page and "fewer seeds" not in page
    assert "polyfed reproduce toy table1 --scale cpu --seeds 0,1\n" in page
    assert (
        "polyfed sweep fedvtc-digits 'method={name: local}' data.partition.alpha=1.0 rounds=25 --seeds 0,1\n" in page
    )
    assert page.count(f"| {'0' * 16} |") == 2  # two rows with seed 0 have run
    assert "Versions: polyfed 1.0, torch 2." in page
    assert "second" not in page.lower()


def test_a_page_leaves_out_tables_with_one_finished_row_and_names_rows_with_fewer_seeds() -> None:
    second = {**SMALL["tables"]["table1"], "title": "Table 2", "rows": ["fedvtc", "few"], "baseline": "fedvtc"}
    paper = parse_paper(with_entry("tables/table2", second), "toy")
    found = runs({0: 2, 1: 3})
    tables = [table_result(paper, "cpu", name, found, [0, 1, 2]) for name in paper.tables]
    page = page_text("toy", paper, "cpu", tables, [], found, [0, 1, 2])
    assert "## Table 1" in page and "## Table 2" not in page
    assert "**Tables that have not been run:** Table 2." in page
    assert "**Rows with fewer seeds:** local training; before; FedVTC." in page

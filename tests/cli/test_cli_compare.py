"""Comparisons by hand-made results: the numbers, the marks, and names that try to break out of every format."""

from __future__ import annotations

import csv
import html.parser
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.cli.app import main
from polyfed.comparison import compare
from polyfed.comparison.table import Spread
from polyfed.comparison.text_table import text_table
from polyfed.config import parse
from polyfed.config.sections import AggregationConfig
from polyfed.errors import InputError
from polyfed.runs.added_keys import ADDED_KEYS, AGGREGATION

MIB = 1 << 20
NASTY = 'a|b_&<script>alert("x")</script>[red]%$#{}~^\\'


def result(method: str, seed: int, personal: float, common: float | None = 0.25, **more: Any) -> dict[str, Any]:
    kinds = {"personal": personal, "global": common}
    return {
        "name": f"{method}-{seed}",
        "method": method,
        "seed": seed,
        "accuracy": {k: None if v is None else {"final": v, "best": v + 0.125} for k, v in kinds.items()},
        "bytes": {"up": 2 * MIB, "down": 4 * MIB},
        "seconds": {"total": 1.5 + seed},
        **more,
    }


def write(folder: Path, outcome: dict[str, Any] | None, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if outcome is not None:
        (folder / "result.json").write_text(json.dumps(outcome))
    return folder


def test_means_deviations_and_marks_by_hand() -> None:
    made = compare(
        [
            result("b", 0, 0.5),
            result("b", 1, 0.625),
            result("b", 2, 0.75),
            result("a", 0, 0.5, None),
            result("a", 1, 0.5),
        ]
    )
    a, b = made.rows
    assert (a.group, b.group) == ({"method": "a"}, {"method": "b"})
    assert b.values["personal_final"] is not None and a.values["global_final"] is not None
    assert b.values["personal_final"].mean == 62.5
    assert b.values["personal_final"].std == 12.5  # of 50, 62.5, 75
    assert b.values["personal_best"] is not None and b.values["personal_best"].mean == 75.0
    assert a.values["global_final"].n == 1 and a.values["global_final"].std is None  # one of two measured it
    assert a.values["mib_up"] is not None and a.values["mib_up"].mean == 2.0
    assert b.values["seconds"] is not None and b.values["seconds"].mean == 2.5
    assert b.best == {"personal_final", "personal_best", "global_final", "global_best"}
    assert a.best == {"global_final", "global_best"}  # a tie marks both
    assert (a.runs, a.seeds, b.runs, b.seeds) == (2, (0, 1), 3, (0, 1, 2))


def test_differences_are_paired_over_common_seeds() -> None:
    base = [result("local", seed, 0.5) for seed in (0, 1, 2, 7)]
    better = [result("new", 0, 0.51), result("new", 1, 0.52), result("new", 2, 0.53), result("new", 9, 0.99)]
    local, new = compare([*base, *better], baseline="local").rows
    gap = new.differences["personal_final"]
    assert gap is not None and gap.low is not None and gap.high is not None and gap.n == 3
    # differences 1, 2, 3: mean 2, deviation 1; t with 2 degrees of freedom is 4.302653
    assert gap.mean == pytest.approx(2.0)
    assert gap.high - gap.mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert gap.mean - gap.low == pytest.approx(gap.high - gap.mean)
    assert local.differences == {}


def test_one_common_seed_has_no_interval() -> None:
    made = compare([result("local", 0, 0.5), result("new", 0, 0.6)], baseline="local")
    gap = made.rows[1].differences["personal_final"]
    assert gap is not None and (gap.low, gap.high, gap.n) == (None, None, 1)
    assert made.to("md").splitlines()[2].startswith("| local | 1 | baseline | baseline |")
    assert made.to("md").splitlines()[3].startswith("| new | 1 | +0.00 (1 seed) | +10.00 (1 seed) |")
    (row,) = [row for row in csv.DictReader(io.StringIO(made.to("csv"))) if row["method"] == "new"]
    assert (row["personal_final_difference_low"], row["personal_final_difference_n"]) == ("", "1")
    said = "baseline 'local': 'new' has one seed in common with it, so there is no interval; run at least 3 seeds"
    assert made.notes == (said,)


def with_clients(run: dict[str, Any], *personal: float | None) -> dict[str, Any]:
    run["accuracy"]["personal"]["by_client"] = list(personal)
    return run


def test_the_interval_of_one_common_seed_is_over_clients() -> None:
    runs = [with_clients(result("local", 0, 0.5), 0.5, 0.5, 0.5, None)]
    runs += [with_clients(result("new", 0, 0.6), 0.5, 0.6, 0.7, 0.9)]
    made = compare(runs)  # local is the baseline if nothing is said
    assert made.baseline == "local"
    gap = made.rows[1].differences["personal_final"]
    assert gap is not None and gap.high is not None and (gap.n, gap.over) == (1, "clients")
    # differences 0, 10, 20 of the clients in both runs: deviation 10; t with 2 degrees of freedom is 4.302653
    assert gap.mean == pytest.approx(10.0)
    assert gap.high - gap.mean == pytest.approx(4.302653 * 10 / 3**0.5, rel=1e-6)
    assert "if there is one common seed, over clients" in made.caption
    assert made.notes == (
        "baseline 'local': 'new' has one seed in common with it, so the interval is over clients; "
        "run at least 3 seeds",
    )
    assert compare(runs, baseline="none").baseline is None


def with_metrics(run: dict[str, Any], **values: float) -> dict[str, Any]:
    of_kind = {name: {"final": value, "by_client": [value], "by_round": [value]} for name, value in values.items()}
    return {**run, "metrics": {"personal": {"worst_decile": {"final": 0.25}}, "global": of_kind}}


def test_metrics_have_columns_and_the_lowest_loss_is_the_best() -> None:
    runs = [with_metrics(result("a", 0, 0.5), auroc=0.75, log_loss=0.5)]
    runs += [with_metrics(result("b", 0, 0.5), auroc=0.875, log_loss=1.5)]
    made = compare(runs)
    a, b = made.rows
    assert a.values["global_auroc"] is not None and a.values["global_auroc"].mean == 75.0
    assert b.values["global_log_loss"] is not None and b.values["global_log_loss"].mean == 1.5
    assert a.values["personal_auroc"] is None
    assert "global_auroc" in b.best and "global_log_loss" in a.best and "global_log_loss" not in b.best
    head = made.to("md").splitlines()[0]
    assert "| global AUROC |" in head and "| global log loss |" in head and "worst" not in head
    one = compare(runs, metric="auroc", baseline="a")
    assert one.to("md").splitlines()[0].startswith("| method | n | gain, global AUROC | gain, personal AUROC |")
    gap = one.rows[1].differences["global_auroc"]
    assert gap is not None and gap.mean == 12.5
    assert compare(runs, metric="worst_decile").rows[0].values["personal_worst_decile"] is not None


def test_an_unknown_or_unrecorded_metric_is_named() -> None:
    with pytest.raises(InputError, match="there is no metric 'auc'; did you mean 'auroc'"):
        compare([result("a", 0, 0.5)], metric="auc")
    with pytest.raises(InputError, match=r"no run recorded 'auroc'; run with evaluate\.metrics=\[auroc\]"):
        compare([result("a", 0, 0.5)], metric="auroc")


def test_no_common_seed_and_two_are_said() -> None:
    runs = [result("local", seed, 0.5) for seed in (0, 1)]
    runs += [result("other", 7, 0.6), *(result("pair", seed, 0.6 + seed / 10, None) for seed in (0, 1))]
    made = compare(runs, baseline="local")
    assert [note.partition(",")[0] for note in made.notes] == [
        "baseline 'local': 'other' has no seed in common with it",
        "baseline 'local': 'pair' has two seeds in common with it",
    ]
    assert made.rows[1].differences == {"personal_final": None, "global_final": None}
    assert made.rows[2].differences["global_final"] is None  # not measured, which the note is not about


def test_nested_folders_of_a_run_are_not_runs(tmp_path: Path) -> None:
    write(tmp_path / "run", result("local", 0, 0.5), {"method": {"name": "local"}})
    write(tmp_path / "run" / "checkpoint", result("local", 1, 0.9), {"method": {"name": "local"}})
    (row,) = compare([tmp_path]).rows
    assert row.runs == 1


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(InputError, match="'locl' is not among the runs; did you mean 'local'"):
        compare([result("local", 0, 0.5)], baseline="locl")


def test_every_format_of_a_small_case() -> None:
    made = compare([result("x_1", 0, 0.5), result("x_1", 1, 0.75), result("y", 0, 0.25)])
    lines = made.to("table").splitlines()
    assert lines[0].split()[:3] == ["method", "n", "global"]
    assert lines[2].split()[:2] == ["x_1", "2"] and "62.50 ± 17.68*" in lines[2]
    caption = str(made).replace("\n", " ")
    assert "final = last round, best = best round, chosen on test data" in caption
    markdown = made.to("md").splitlines()
    assert markdown[1].count("---") == 9
    assert markdown[2].startswith(r"| x\_1 | 2 | **62.50 ± 17.68** |")
    assert markdown[3].startswith("| y | 1 | 25.00 |")
    tex = made.to("latex")
    assert r"x\_1 & 2 & \textbf{62.50 $\pm$ 17.68} &" in tex
    assert r"\begin{tabular}{lrrrrrrrr}" in tex and r"\toprule" in tex and r"\bottomrule" in tex
    assert '<td class="name">x_1</td><td>2</td><td><strong>62.50 ± 17.68</strong></td>' in made.to("html")
    rows = list(csv.DictReader(io.StringIO(made.to("csv"))))
    assert float(rows[0]["personal_final_std"]) == pytest.approx(17.6776695)
    assert rows[0]["best"] == "personal_final personal_best global_final global_best"
    assert rows[1]["best"] == "global_final global_best" and rows[1]["personal_final_std"] == ""


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_names_stay_names_in_every_format() -> None:
    made = compare([result(NASTY, 0, 0.5), result("=1+1", 0, 0.25), result("tab\tnew\nline\x1b[31m", 0, 0.5)])
    page = _Tags()
    page.feed(made.to("html"))
    assert "script" not in page.tags and NASTY in page.text
    assert r"a\textbar{}b\_\&\textless{}script\textgreater{}" in made.to("latex")
    assert r"\%\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} & 1" in made.to("latex")
    assert r"a\|b\_\&\<script\>" in made.to("md")
    names = [row["method"] for row in csv.DictReader(io.StringIO(made.to("csv")))]
    assert sorted(names) == sorted(["'=1+1", NASTY, "tab new line [31m"])
    for format in ("table", "csv", "md", "latex", "html"):
        assert "\x1b" not in made.to(format)
    assert len(made.to("md").splitlines()) == 2 + 3 + 2  # a line per row, whatever is in a name


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_order_does_not_matter_and_the_best_is_the_highest_mean(first: list[float], second: list[float]) -> None:
    runs = [result("a", k, v) for k, v in enumerate(first)] + [result("b", k, v) for k, v in enumerate(second)]
    made = compare(runs)
    assert compare(reversed(runs)).to("md") == made.to("md")
    a, b = (row.values["personal_final"] for row in made.rows)
    assert a is not None and b is not None
    assert ("personal_final" in made.rows[0].best) == (a.mean >= b.mean)
    assert ("personal_final" in made.rows[1].best) == (b.mean >= a.mean)


def test_folders_are_searched_and_what_is_broken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"method": {"name": "local"}, "data": {"partition": {"scheme": "dirichlet", "alpha": 0.1}}, "seed": 0}
    write(tmp_path / "deep" / "one", result("local", 0, 0.5), config)
    write(tmp_path / "deep" / "er" / "two", result("local", 1, 0.75), {**config, "seed": 1, "name": "two"})
    write(tmp_path / "open", None, config)
    write(tmp_path / "cut", {"seed": 1}, config)
    write(tmp_path / "bad", None, config).joinpath("result.json").write_text('{"seed": ')
    assert main(["compare", str(tmp_path), "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["method"], row["n"], float(row["personal_final_mean"])) == ("local", "2", 62.5)
    assert f"{tmp_path / 'open'} is not finished" in err
    assert f"{tmp_path / 'cut'} holds no result" in err
    assert f"{tmp_path / 'bad' / 'result.json'} cannot be read" in err
    assert len(err.splitlines()) == 3


def test_by_a_config_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (method, alpha) in enumerate([("local", 10), ("local", 0.5), ("fedproto", 10), ("fedproto", 0.5)]):
        config = {"method": {"name": method}, "data": {"partition": {"scheme": "dirichlet", "alpha": alpha}}}
        write(tmp_path / str(number), result(method, 0, 0.1 * number), config)
    assert main(["compare", str(tmp_path), "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert "runs differ in data.partition.alpha, so they are in rows of their own" in err
    assert [row["data.partition.alpha"] for row in csv.DictReader(io.StringIO(out))] == ["0.5", "0.5", "10", "10"]
    arguments = ["compare", str(tmp_path), "--by", "data.partition.alpha", "--format", "csv", "--baseline", "local"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    groups = [(row["method"], row["data.partition.alpha"]) for row in csv.DictReader(io.StringIO(out))]
    assert groups == [("local", "0.5"), ("fedproto", "0.5"), ("local", "10"), ("fedproto", "10")]
    assert err.startswith("baseline 'local': 'fedproto, 0.5', 'fedproto, 10' have one seed in common with it")
    assert len(err.splitlines()) == 1


def test_runs_with_different_settings_are_never_averaged(tmp_path: Path) -> None:
    def config(method: str, rounds: int, **options: Any) -> dict[str, Any]:
        return {"method": {"name": method, **options}, "rounds": rounds}

    for number, (method, rounds, options) in enumerate(
        [("local", 5, {}), ("local", 9, {}), ("new", 5, {"mu": 1}), ("new", 5, {"mu": 2}), ("new", 9, {"mu": 1})]
    ):
        for seed in (0, 1, 2):
            accuracy = 0.5 + 0.01 * number
            write(tmp_path / f"{number}-{seed}", result(method, seed, accuracy), config(method, rounds, **options))
    made = compare([tmp_path])
    assert made.keys == ("method", "method.mu", "rounds")
    assert [tuple(row.group.values()) for row in made.rows] == [
        ("local", "-", "5"),
        ("new", "1", "5"),
        ("new", "2", "5"),
        ("local", "-", "9"),
        ("new", "1", "9"),
    ]
    assert all(row.runs == 3 and row.values["personal_final"].std == 0 for row in made.rows)  # type: ignore[union-attr]
    # the baseline has the same rounds, whatever the options of the method are
    gains = {tuple(row.group.values()): row.differences.get("personal_final") for row in made.rows}
    assert {group: round(gain.mean) for group, gain in gains.items() if gain is not None} == {
        ("new", "1", "5"): 2,
        ("new", "1", "9"): 3,
        ("new", "2", "5"): 3,
    }


def test_many_different_settings_are_numbered(tmp_path: Path) -> None:
    for number in (1, 2):
        settings = dict.fromkeys(("clients", "rounds", "participation", "precision"), number)
        write(tmp_path / str(number), result("local", 0, 0.5), {"method": {"name": "local"}, **settings})
    made = compare([tmp_path])
    assert made.keys == ("method", "setting") and [row.runs for row in made.rows] == [1, 1]
    assert made.notes == (
        "runs differ in 4 settings (clients, participation, precision, ...), so they are in rows of their own; "
        "choose with --by",
    )


def test_paths_without_runs_are_ignored_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "one", result("local", 0, 0.5), {"method": {"name": "local"}})
    (tmp_path / "report.html").write_text("")
    (tmp_path / "empty").mkdir()
    assert main(["compare", *map(str, sorted(tmp_path.iterdir()))]) == 0
    assert capsys.readouterr().err == "ignored 2 paths without runs\n"


def test_many_unfinished_runs_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "done", result("local", 0, 0.5), {"method": {"name": "local"}})
    for number in range(5):
        write(tmp_path / f"open-{number}", None, {"method": {"name": "local"}})
    assert main(["compare", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith("5 runs are not finished, such as ")


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_table_fits_the_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for number, method in enumerate(("local", "fedproto", "fedlatent")):
        for seed in (0, 1, 2):
            outcome = result(method, seed, 0.5 + 0.1 * number + 0.013 * seed**2, 0.3 + 0.11 * number + 0.01 * seed)
            write(tmp_path / f"{method}-{seed}", outcome, {"method": {"name": method}})
    assert main(["compare", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    heading = " ".join(lines[:2])
    assert "gain, global final" in heading.replace("  ", " ") or "gain, global" in lines[0]
    assert ("Left out to fit" in " ".join(lines)) == (columns < 150)
    rows = {line.split()[0]: line for line in lines if line.startswith(("local", "fed"))}
    assert set(rows) == {"local", "fedproto", "fedlatent"} and "baseline" in rows["local"]


def test_a_narrow_table_leaves_out_empty_columns_and_keeps_the_only_gain() -> None:
    runs = [result("local", seed, 0.5, None) for seed in (0, 1)] + [
        result("new", seed, 0.75, None) for seed in (0, 1)
    ]
    text = text_table(compare(runs, baseline="local"), width=40)
    assert "global" not in text.partition("Accuracy in %")[0] and "+25.0" in text
    assert "gain" not in text.partition("Left out to fit")[2]


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, personal in (("local", 0.5), ("new", 0.75)):
        write(tmp_path / method, result(method, 3, personal), {"method": {"name": method}})
    assert main(["compare", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["keys"], content["baseline"]) == (["method"], "local")
    new = content["rows"][1]
    assert (new["settings"], new["seeds"], new["runs"]) == ({"method": "new"}, [3], 1)
    assert new["values"]["personal_final"] == {"mean": 75.0, "std": None, "n": 1}
    assert new["gains"]["personal_final"]["mean"] == 25.0 and "one seed in common" in content["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["."], "there is no finished run in ."),
        (["one", "--format", "mdd"], "--format is 'mdd'; did you mean 'md'?"),
        (["one", "--by", "data.partition.alfa"], "did you mean 'data.partition.alpha'?"),
    ],
)
def test_wrong_input(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "one":
        write(tmp_path / "one", result("local", 0, 0.5), {"data": {"partition": {"alpha": 1}}})
    assert main(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and out == ""


def test_filters_are_named_after_their_method_and_a_splitting_shares_the_baseline(tmp_path: Path) -> None:
    inco = {"name": "inco", "max_theta": 5.0}
    settings: list[tuple[str, Any, str, Any]] = [
        ("local", "tiny4", "none", "none"),
        ("fedavg", ["tiny-cnn"], "none", "none"),
        ("local", "tiny-resnets", "none", "none"),
        ("fedavg", "tiny-resnets", "stage", "none"),
        ("fedavg", "tiny-resnets", "stage", inco),
    ]
    for number, (method, group, splitting, server_filter) in enumerate(settings):
        config = {
            "method": {"name": method},
            "models": {"group": group},
            "splitting": splitting,
            "server_filter": server_filter,
        }
        write(tmp_path / str(number), result(method, 0, 0.1 * number), config)
    made = compare([tmp_path])
    assert made.keys == ("method", "models.group")
    assert [tuple(row.group.values()) for row in made.rows] == [
        ("fedavg", "tiny-cnn"),
        ("local", "tiny-resnets"),
        ("fedavg", "tiny-resnets"),
        ("fedavg + inco", "tiny-resnets"),
        ("local", "tiny4"),
    ]
    gains = [row.differences.get("personal_final") for row in made.rows]
    assert [None if gain is None else round(gain.mean) for gain in gains] == [None, None, 10, 20, None]


def test_runs_that_differ_in_the_splitting_alone_are_not_averaged(tmp_path: Path) -> None:
    for number, splitting in enumerate(("none", "stage")):
        config = {"method": {"name": "fedavg"}, "models": {"group": "tiny-resnets"}, "splitting": splitting}
        write(tmp_path / str(number), result("fedavg", 0, 0.5), config)
    assert [tuple(row.group.values()) for row in compare([tmp_path]).rows] == [
        ("fedavg", "none"),
        ("fedavg", "stage"),
    ]


def test_a_key_that_an_earlier_release_did_not_have_counts_as_off(tmp_path: Path) -> None:
    configs: list[dict[str, Any]] = [{}, {"evaluate": {"new": False}}, {"evaluate": {"new": True}}]
    for number, config in enumerate(configs):
        write(tmp_path / str(number), result("local", number, 0.5), {"method": {"name": "local"}, **config})
    rows = compare([tmp_path]).rows
    assert [row.runs for row in rows] == [1, 1, 1]  # one of them differs, so all have the column
    assert compare([tmp_path / "0", tmp_path / "1"]).rows[0].runs == 2


def test_keys_of_later_releases_count_with_their_defaults(tmp_path: Path) -> None:
    full = parse({"method": "fedavg"}).to_dict()
    for section, added in ADDED_KEYS.items():
        assert {key: full[section][key] for key in added} == added
    assert dict(AggregationConfig()) == AGGREGATION
    old = {key: value for key, value in full.items() if key != "aggregation"}
    old["data"] = {key: value for key, value in old["data"].items() if key != "validation"}
    listed = {**full, "aggregation": {"name": "mean", "share": 0.2, "norm": None, "keep": 1}}
    for number, config in enumerate((old, full, listed)):
        write(tmp_path / str(number), result("fedavg", number, 0.5), config)
    assert [row.runs for row in compare([tmp_path]).rows] == [3]
    assert [row.runs for row in compare([tmp_path], by=["data.validation", "aggregation"]).rows] == [3]


def test_runs_differ_in_their_aggregation_rule(tmp_path: Path) -> None:
    configs: list[dict[str, Any]] = [{}, {"aggregation": {"name": "mean"}}, {"aggregation": {"name": "median"}}]
    for number, config in enumerate(configs):
        write(tmp_path / str(number), result("fedavg", number, 0.5), {"method": {"name": "fedavg"}, **config})
    rows = compare([tmp_path]).rows
    assert [(tuple(row.group.values()), row.runs) for row in rows] == [
        (("fedavg", "mean"), 2),
        (("fedavg", "median"), 1),
    ]


def test_a_method_that_predicts_by_prototype_has_a_second_row_for_its_heads() -> None:
    by_head = {"final": 0.75, "by_round": [0.5, None, 0.75]}
    run = result("fedproto", 0, 0.5)
    run["accuracy"]["personal"]["also"] = {"head": by_head}
    made = compare([run, result("local", 0, 0.25)])
    assert [row.group["method"] for row in made.rows] == ["local", "fedproto", "fedproto by head"]
    assert made.rows[2].values["personal_final"] == Spread(75.0, None, 1)
    gain = made.rows[2].differences["personal_final"]
    assert gain is not None and gain.mean == 50
    run["metrics"] = {"personal by head": {"auroc": {"final": 0.75, "by_client": [], "by_round": [0.75]}}}
    measured = compare([run, result("local", 0, 0.25)]).rows[2].values["personal_auroc"]
    assert measured is not None and measured.mean == 75

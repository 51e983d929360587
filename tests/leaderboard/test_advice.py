"""Advice by a leaderboard made by hand: order, reasons against methods, and configs that pass the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.leaderboard.hand_made import BOARD, write_board

import polyfed
from polyfed import catalogue
from polyfed.advice.ranking import Ranking, rank
from polyfed.advice.situation import Situation
from polyfed.cli.app import main
from polyfed.config.loading import read_source
from polyfed.errors import InputError
from polyfed.leaderboard.records import DATA_FILE, Leaderboard, read_leaderboard
from polyfed.leaderboard.scenarios import SCENARIOS


def ranked(**wishes: Any) -> Ranking:
    return rank(Situation(**wishes), BOARD)


def names(ranking: Ranking) -> list[str]:
    return [one.method for one in ranking.proposals]


# Gains (common, personal): fedlatent 30, -2; dffke 20, -1; fedgh 4, 0; fml 2, 3; fedproto 1, 0.5. Means of both:
# 14; 9.5; 2; 2.5; 0.75.
@pytest.mark.parametrize(
    ("care", "order"),
    [
        ("common", ["fedlatent", "dffke", "fedgh", "fml", "fedproto"]),
        ("personal", ["fml", "fedproto", "fedgh", "dffke", "fedlatent"]),
        ("both", ["fedlatent", "dffke", "fml", "fedgh", "fedproto"]),
    ],
)
def test_methods_are_ranked_by_the_gain_that_counts(care: str, order: list[str]) -> None:
    assert names(ranked(care=care)) == order


def test_every_method_is_proposed_or_has_a_reason() -> None:
    for wishes in ({}, {"models": "same"}, {"models": "sizes"}, {"data": "tables"}, {"compute": "low"}):
        ranking = ranked(**wishes)
        assert {*names(ranking), *ranking.excluded, "local"} == set(catalogue.methods())
        assert all(reason and len(reason) < 90 for reason in ranking.excluded.values())


@pytest.mark.parametrize(
    ("wishes", "method", "reason"),
    [
        ({}, "fedavg", "needs one architecture"),
        ({}, "heterofl", "needs models that are slices of the largest"),
        ({}, "fedktl", "needs a pretrained image generator"),
        ({}, "fedtgp", "not measured in few-skewed"),
        ({"data": "series"}, "dffke", "needs samples that are pictures"),
        ({"data": "tokens"}, "fedlatent", "needs samples that are numbers"),
        ({"never": ("weights",)}, "dffke", "uploads weights"),
        ({"never": ("weights",)}, "lg-fedavg", "uploads head"),  # the head is a part of the weights
        ({"may_send": ("class-means",)}, "fedproto", "uploads counts"),
        ({"mib_per_round": 0.15}, "fedlatent", "sends 0.200 MiB per client and round"),
        ({"compute": "low"}, "fml", "trains a second model (shared-model)"),
        ({"differential_privacy": True}, "fml", "uploads shared-model, which need far more noise than class means"),
    ],
)
def test_a_method_that_does_not_fit_has_its_reason(wishes: dict[str, Any], method: str, reason: str) -> None:
    ranking = ranked(**wishes)
    assert ranking.excluded[method] == reason and method not in names(ranking)


def test_wishes_that_a_method_meets_do_not_exclude_it() -> None:
    assert names(ranked(may_send=("class-means", "counts"))) == ["fedgh", "fedproto"]
    assert "fedlatent" in names(ranked(never=("weights", "embeddings"), mib_per_round=0.21))
    assert "heterofl" in names(ranked(models="sizes", may_send=("weights", "counts")))


def test_work_excludes_methods_for_weak_clients() -> None:
    heavy = BOARD.scenarios["few-skewed"].rows[1]
    assert heavy.work == 3.0
    assert "fedlatent" not in names(ranked(compute="low"))
    assert "fedgh" in names(ranked(compute="low"))


def test_the_most_similar_scenario_is_used() -> None:
    assert ranked(models="different").scenario == "few-skewed"
    assert ranked(models="different", skew="mild").scenario == "few-skewed"  # no other scenario has such models
    assert ranked(models="sizes").scenario == "model-sizes"
    assert ranked(data="series").scenario == "har-persons"
    assert ranked(data="tokens").scenario == "few-skewed"  # no scenario has tokens: models and skew decide
    assert ranked(data="tables", skew="mild").scenario == "har-persons"
    assert names(ranked(models="same"))[:2] == ["fedavg", "fedlatent"]  # means of both gains: 14.5 and 14


def test_a_method_with_one_server_model_is_proposed_for_sizes_if_it_ran_on_them() -> None:
    assert names(ranked(models="sizes", care="common")) == ["fedavg", "heterofl"]


@pytest.mark.parametrize(
    "wishes",
    [
        ["--models", "different", "--never", "weights", "--care", "common"],
        ["--models", "sizes", "--clients", "4"],
        ["--models", "same", "--care", "common"],
        ["--differential-privacy"],
        ["--data", "tables", "--clients", "3"],
        ["quickstart", "clients=6", "--care", "personal"],
    ],
)
def test_the_written_config_passes_the_check(
    wishes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board, config = write_board(tmp_path), tmp_path / "start.yaml"
    assert main(["advise", *wishes, "--leaderboard", str(board), "--write", str(config), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert main(["check", str(config)]) == 0
    assert advice["config"]["method"]["name"] == advice["methods"][0]["method"]
    assert ("privacy" in advice["config"]) == ("--differential-privacy" in wishes)


def test_the_table_shows_gains_costs_uploads_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--leaderboard", str(write_board(tmp_path)), "--care", "common"]) == 0
    shown = capsys.readouterr().out
    assert "+30.0 [+29.0, +31.0]" in shown and "0.100" in shown and "class-means" in shown
    assert "needs one architecture" in shown and "method: {name: fedlatent}" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "equal"], "models is 'equal'; expected same, sizes, different"),
        (["--never", "weight"], "never has 'weight', which is no kind of upload; did you mean 'weights'?"),
        (["--mib-per-round", "-1"], "mib_per_round is -1.0"),
        (["--clients", "0"], "clients is 0; expected 1 or more"),
        (["no-such-preset"], "no preset called 'no-such-preset'"),
        (["--leaderboard", "absent.json"], "cannot be read"),
        (["--may-send", "labels"], "is not written: no method fits"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "start.yaml"
    board = [] if "--leaderboard" in arguments else ["--leaderboard", str(write_board(tmp_path))]
    assert main(["advise", *arguments, *board, "--write", str(config)]) == 2
    assert message in capsys.readouterr().err
    assert not config.exists()


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("rounds: 3\n")
    assert main(["advise", "--leaderboard", str(write_board(tmp_path)), "--write", str(config)]) == 2
    assert config.read_text() == "rounds: 3\n"


def test_python_gives_the_same_advice_and_nothing_fits_is_no_error(tmp_path: Path) -> None:
    board = write_board(tmp_path)
    advice = polyfed.advise("quickstart", leaderboard=board, care="common")
    assert advice.situation.models == "different" and advice.situation.clients == 20
    assert advice.methods[0].method == "fedlatent" and advice.config is not None
    assert advice.config["train"]["lr"] == read_source("quickstart")["train"]["lr"]  # a user's config keeps its rate
    start = polyfed.advise(leaderboard=board, care="common").config
    assert start is not None and start["train"]["lr"] == 0.02  # that of the leaderboard
    nothing = polyfed.advise(leaderboard=board, may_send=("labels",))
    assert nothing.methods == () and nothing.config is None and nothing.config_text == ""


def test_a_damaged_leaderboard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.json"
    path.write_text('{"scenarios": {"few-skewed": {}}}')
    with pytest.raises(InputError, match="no data file of a leaderboard"):
        read_leaderboard(path)


def test_without_measurements_the_methods_that_fit_are_listed_by_name() -> None:
    ranking = rank(Situation(never=("weights",)), Leaderboard({}))
    assert ranking.scenario is None and names(ranking) == sorted(names(ranking))
    assert "fedlatent" in names(ranking) and ranking.excluded["dffke"] == "uploads weights"
    assert all(one.score("common") is None for one in ranking.proposals)


def test_the_leaderboard_of_the_package_advises() -> None:
    advice = polyfed.advise(models="different", never=("weights",))
    assert read_leaderboard(DATA_FILE).scenarios.keys() <= SCENARIOS.keys()
    assert advice.methods and not any("weights" in one.uploads for one in advice.methods)
    assert (advice.config is None) == (advice.scenario is None)

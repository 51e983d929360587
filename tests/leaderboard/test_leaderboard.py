"""Scenarios of the leaderboard: presets, plans, runs of two rounds, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.leaderboard.hand_made import BOARD

from polyfed import api
from polyfed.cli.app import main
from polyfed.errors import InputError
from polyfed.leaderboard.measure import collect
from polyfed.leaderboard.page import page
from polyfed.leaderboard.persons import split_persons
from polyfed.leaderboard.plan import Plan, method_names, plan_scenario, short_reason
from polyfed.leaderboard.rates import choose_rates, read_rates, tuning_runs, with_rates
from polyfed.leaderboard.records import Leaderboard, read_leaderboard
from polyfed.leaderboard.scenarios import SCENARIOS

SMALL = ("rounds=2", "data.limit=80", "data.test_limit=40")
HANDFUL = ("fedproto", "fedavg", "scaffold", "heterofl", "fedktl")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_scenario(SCENARIOS["few-skewed"], method_names(HANDFUL), settings=SMALL)


@pytest.fixture(scope="module")
def folder(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("leaderboard")
    for run in plan.runs([0, 1], out):
        api.run_config(run.config, out=run.folder)
    return out


@pytest.fixture(scope="module")
def board(plan: Plan, folder: Path) -> Leaderboard:
    return collect([plan], [0, 1], folder, "polyfed leaderboard --seeds 0,1")


@pytest.fixture(scope="module")
def sensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random series in the shape of UCI HAR, 12 windows of each of 8 persons."""
    folder = tmp_path_factory.mktemp("sensors")
    windows = np.random.default_rng(0).normal(size=(96, 9, 128)).astype(np.float32)
    labels, persons = np.arange(96) % 6, np.repeat(np.arange(8), 12)
    for split in ("train", "test"):
        np.savez(folder / f"{split}.npz", x=windows, y=labels, subject=persons)
    return folder


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_preset_of_every_scenario_passes_the_check(
    name: str, sensors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = [f"data.root={sensors}"] if SCENARIOS[name].needs_root else []
    assert main(["check", SCENARIOS[name].preset, *root]) == 0
    assert "Local training" in capsys.readouterr().out


def test_methods_run_on_models_that_they_can_use(plan: Plan) -> None:
    models = [(entry.method, entry.variant.models) for entry in plan.entries]
    common, sgd = "all tiny-cnn", "all tiny-cnn, SGD"
    assert models == [
        ("local", common),
        ("local", sgd),
        ("local", ""),
        ("fedavg", common),
        ("fedproto", ""),
        ("scaffold", sgd),
    ]
    assert plan.excluded == {
        "fedktl": "needs a pretrained image generator",
        "heterofl": "needs models that are slices of the largest",
    }


def test_sizes_of_one_family_are_parts_of_one_model() -> None:
    chosen = method_names(["heterofl", "fedavg", "fedavg + inco", "scalefl", "fedproto"])
    plan = plan_scenario(SCENARIOS["model-sizes"], chosen, settings=SMALL)
    overrides = {entry.method: entry.overrides for entry in plan.entries if entry.method != "local"}
    assert plan.excluded == {}
    assert "splitting=width" in overrides["fedavg"] and "models.group=tiny-exits" in overrides["scalefl"]
    assert "server_filter=inco" in overrides["fedavg + inco"]
    assert not any(text.startswith("models.") for text in overrides["heterofl"])


def test_reasons_are_the_requirements_of_the_check(sensors: Path) -> None:
    plan = plan_scenario(SCENARIOS["har-persons"], method_names(["dffke", "fedgh"]), sensors, ("rounds=2",))
    assert plan.excluded == {"dffke": "needs samples that are pictures"}
    assert short_reason("A is B; use C.") == "A is B"


def test_settings_that_local_training_refuses_are_refused() -> None:
    with pytest.raises(InputError, match="samples_per_class"):
        plan_scenario(SCENARIOS["few-skewed"], ["local"], settings=("method.samples_per_class=6",))


def test_gains_are_paired_with_local_training_on_the_same_models(board: Leaderboard) -> None:
    rows = {(row.method, row.models): row for row in board.scenarios["few-skewed"].rows}
    for method, models in (("fedproto", ""), ("fedavg", "all tiny-cnn"), ("scaffold", "all tiny-cnn, SGD")):
        own, local = rows[method, models], rows["local", models]
        for kind, name in (("global", "global_"), ("personal", "personal")):
            gaps = [getattr(a, name) - getattr(b, name) for a, b in zip(own.runs, local.runs, strict=True)]
            gain = own.gains[kind]
            assert gain.mean == pytest.approx(sum(gaps) / 2)
            # t interval of two values: 12.706 (97.5 %, one degree of freedom) times half their distance
            assert gain.low is not None
            assert gain.mean - gain.low == pytest.approx(12.7062 * abs(gaps[0] - gaps[1]) / 2, rel=1e-4)
        assert own.work == pytest.approx(1.0)
    assert rows["local", ""].gains == {}
    assert rows["fedavg", "all tiny-cnn"].runs[0].up > 0 and len(rows["local", ""].runs[0].state_hash) == 64


def test_the_data_file_is_read_as_written(board: Leaderboard, tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    path.write_text(board.to_json())
    assert read_leaderboard(path) == board
    assert str(tmp_path) not in path.read_text()


def test_the_page_has_numbers_reasons_missing_runs_and_hashes(plan: Plan, folder: Path) -> None:
    board = collect([plan], [0, 1, 2], folder, "polyfed leaderboard")
    text = page(board)
    record = board.scenarios["few-skewed"]
    row = next(row for row in record.rows if row.method == "fedproto")
    assert f"| `fedproto` | 0.01 | {row.mean('global_'):.1f} | {row.gains['global'].mean:+.1f} [" in text
    assert "| class-means, counts |" in text
    assert "`heterofl`: needs models that are slices of the largest" in text
    assert "`fedproto` (1)" in text and "Not measured yet: `enough-mild`" in text
    assert row.runs[1].state_hash[:12] in text


def test_the_page_names_the_methods_that_are_ahead_of_fedlatent() -> None:
    # gains by hand (common, personal): fedavg 35, -6; fedlatent 30, -2; dffke 20, -1; fedgh 4, 0; fml 2, 3;
    # fedproto 1, 0.5
    assert (
        "`fedlatent`, the method of this project: +30.0 points of common accuracy, behind `fedavg`; -2.0 points of "
        "personal accuracy, behind `fml`, `fedproto`, `fedgh`, `dffke`."
    ) in page(BOARD)


def test_the_command_reads_finished_runs_and_refuses_unknown_names(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["leaderboard", "--out", str(folder), "--scenario", "few-skewed", "--methods", "fedproto"]
    data, text, rates = (tmp_path / name for name in ("board.json", "board.md", "rates.json"))
    rates.write_text("{}")  # the runs have the rate of the preset
    changes = [part for setting in SMALL for part in ("--set", setting)]
    written = ["--data", str(data), "--page", str(text), "--rates", str(rates), "--seeds", "0-1", *changes]
    assert main([*options, "--finished", *written]) == 0
    assert set(read_leaderboard(data).scenarios) == {"few-skewed"} and "| `fedproto` |" in text.read_text()
    assert main([*options, "--methods", "fedprotto"]) == 2
    assert "did you mean 'fedproto'?" in capsys.readouterr().err
    assert main(["leaderboard", "--scenario", "har-persons", "--out", str(tmp_path / "runs")]) == 2
    assert "give its folder with --har" in capsys.readouterr().err
    assert (
        main(["leaderboard", "--finished", "--scenario", "few-skewed", "--methods", "local", "--out", "absent"]) == 2
    )
    assert not (tmp_path / "runs").exists()


def test_the_rate_with_the_best_common_accuracy_on_validation_data_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates, out, small = tmp_path / "rates.json", tmp_path / "runs", ("rounds=1", "data.limit=80")
    rates.write_text('{"few-skewed": {"fedgh": 0.5}, "enough-mild": {"local": 0.2}}')
    plan = plan_scenario(SCENARIOS["few-skewed"], ["local", "fedproto"], settings=small)
    runs = tuning_runs(plan, out)
    # the preset's 0.01, a third and three times of it, for each of two methods
    assert [run.config.train.lr for run in runs] == [0.01, 0.003, 0.03] * 2
    assert {(run.config.data.validation, run.config.seed) for run in runs} == {(0.2, 10)}
    assert len({run.folder for run in runs}) == 6 and choose_rates(plan, out) == {}
    results = [api.run_config(run.config, out=run.folder) for run in runs]
    chosen = choose_rates(plan, out)
    for name, scores in (("local", results[:3]), ("fedproto", results[3:])):
        accuracies = [result["accuracy"]["global"]["final"] for result in scores]
        assert chosen[name] == (0.01, 0.003, 0.03)[accuracies.index(max(accuracies))]
    tuned = with_rates(plan, {"few-skewed": chosen})
    for run in tuned.runs([0], out):
        assert run.config.train.lr == chosen[run.config.method["name"]]
        api.run_config(run.config, out=run.folder)
    # the command finds all runs finished
    options = ["leaderboard", "--scenario", "few-skewed", "--methods", "fedproto", "--seeds", "0", "--out", str(out)]
    options += [part for setting in small for part in ("--set", setting)]
    assert main([*options, "--tune", "--rates", str(rates)]) == 0
    assert read_rates(rates) == {"few-skewed": {"fedgh": 0.5, **chosen}, "enough-mild": {"local": 0.2}}
    assert f"| `fedproto` | {chosen['fedproto']:g} |" in capsys.readouterr().out
    assert main([*options, "--tune", "--finished"]) == 2
    rates.write_text('{"few-skewed": 0.5}')
    assert main([*options, "--finished", "--rates", str(rates)]) == 2
    assert "is no file of learning rates" in capsys.readouterr().err


def test_persons_with_most_windows_are_clients_and_the_others_are_the_common_test_set(tmp_path: Path) -> None:
    published = tmp_path / "UCI HAR Dataset"
    published.mkdir()
    persons = np.repeat(np.arange(1, 12), np.arange(2, 13))  # person k has k + 1 windows: 4 to 11 have the most
    windows = np.random.default_rng(0).normal(size=(len(persons), 9, 128)).astype(np.float32)
    np.savez(published / "train.npz", x=windows, y=np.arange(len(persons)) % 6, subject=persons)
    folder = split_persons(published, tmp_path / "runs")
    train, test = (np.load(folder / f"{split}.npz") for split in ("train", "test"))
    assert set(train["subject"]) == {str(person) for person in range(4, 12)} and set(test["subject"]) == {
        "1",
        "2",
        "3",
    }
    assert np.array_equal(test["x"], windows[persons < 4].astype(np.float16))
    np.savez(published / "train.npz", x=windows, y=np.arange(len(persons)) % 6, subject=persons % 8)
    with pytest.raises(InputError, match="has 8 persons in its training split; expected more than 8"):
        split_persons(published, tmp_path / "others")

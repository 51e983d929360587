"""Wrong input ends a command with exit code 2 and one sentence, without a traceback and without writing anything."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from polyfed.cli.app import main

SERIAL = "engine.name=serial"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a refusal; fails when anything was written or said besides."""
    before = sorted(Path().rglob("*"))
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1 and err.startswith("polyfed")
    assert "Traceback" not in err
    assert sorted(Path().rglob("*")) == before
    return err


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rond=3"], "unknown key 'rond'; did you mean 'rounds'?"),
        (["train.learning_rate=0.1"], "unknown key 'learning_rate' in 'train'"),
        (["train.ls=0.1"], "unknown key 'ls' in 'train'; did you mean 'train.lr'?"),
        (["rounds=ten"], "rounds is 'ten': expected a valid integer"),
        (["train.lr=.inf"], "train.lr is inf: expected a finite number"),
        (["rounds=2.5"], "rounds is 2.5"),
        (["rounds"], "'rounds' is not of the form key=value"),
        (["rounds.more=3"], "goes into 'rounds', which is 10 and has no keys"),
        (["name={"], "the value of the override 'name={' is not YAML"),
        (["name=2024-01-01"], "name is datetime.date(2024, 1, 1): expected a valid string"),
        (["engine.name=dask"], "engine.name is 'dask': expected 'serial', 'pool', 'ray' or 'flower'"),
        (["engine.workers=0"], "engine.workers is 0: at least 1 worker is needed"),
        (["method=fedprto"], "no method called 'fedprto'; did you mean 'fedproto'?"),
        (["method.guidnce=2"], "method fedproto has no option 'guidnce'; did you mean 'guidance'?"),
        (["method.guidance=high"], "method.guidance is 'high'"),
        (["models.group=tiny5"], "unknown model group 'tiny5'; did you mean 'tiny4'?"),
        (["models.group=[tiny-cn]"], "unknown model 'tiny-cn'; did you mean 'tiny-cnn'?"),
        (["data.dataset=digit"], "unknown dataset 'digit'; did you mean 'digits'?"),
        (["data.partition.scheme=dirichle"], "did you mean 'dirichlet'?"),
        (["data.partition.scheme=pathological", "data.partition.classes_per_client=11"], "11"),
        (["data.partition.alpha=0.01", "clients=300"], "client"),
        (["participation=0.01"], "participation 0.01 of 20 clients selects no client; use at least 0.05"),
        (["participation=0"], "participation is 0: expected greater than 0"),
        (["imports=[nosuch.py]"], "imports: there is no file"),
        (["data.dataset=mnist", "data.root=nowhere"], "there is no such folder"),
    ],
)
def test_a_config_that_cannot_be(
    command: str, overrides: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in error_of([command, "quickstart", SERIAL, *overrides], capsys)


def test_four_architectures_under_fedavg(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = error_of(["run", "quickstart", SERIAL, "method=fedavg"], capsys)
    assert "clients 0, 4, 8, 12, 16 have tiny-cnn" in sentence
    assert "clients 3, 7, 11, 15, 19 have tiny-mlp" in sentence
    works = sentence.partition("Methods that would work: ")[2].strip(".\n").split(", ")
    assert {"feddistill", "fedproto", "lg-fedavg", "local"} <= set(works) and "fedavg" not in works


@pytest.mark.processes
def test_a_refusal_from_the_shell_leaves_no_process_behind() -> None:
    code = "import sys; from polyfed.cli.app import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", "quickstart", "method=fedavg"]
    # the pool's starting process has the same stderr: this returns when both have ended
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("polyfed: FedAvg needs one architecture")
    assert list(Path().iterdir()) == []


def test_a_missing_and_a_damaged_config_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'quickstart'?" in error_of(["run", "quickstrt"], capsys)
    assert "missing.yaml cannot be read: No such file" in error_of(["run", "missing.yaml"], capsys)
    Path("bad.yaml").write_text("rounds: [1, 2")
    assert "the config bad.yaml is not YAML" in error_of(["run", "bad.yaml"], capsys)
    Path("list.yaml").write_text("- 1")
    assert "holds a list, expected a mapping" in error_of(["check", "list.yaml"], capsys)
    Path("odd.yaml").write_text("1: 2\n")
    assert "odd.yaml: 1 is 1: keys should be strings" in error_of(["check", "odd.yaml"], capsys)


def test_data_files_that_are_missing_or_corrupt(capsys: pytest.CaptureFixture[str]) -> None:
    mnist = ["run", "quickstart", SERIAL, "data.dataset=mnist", "data.root=files"]
    Path("files").mkdir()
    assert "cannot find dataset 'mnist' in data.root" in error_of(mnist, capsys)
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    for name in names:
        Path("files", f"{name}.gz").write_bytes(gzip.compress(b"not what it says"))
    assert "train-images-idx3-ubyte.gz" in error_of(mnist, capsys)
    Path("files", f"{names[0]}.gz").write_bytes(b"not even compressed")
    assert "train-images-idx3-ubyte.gz" in error_of(mnist, capsys)


def test_corrupt_parquet(capsys: pytest.CaptureFixture[str]) -> None:
    Path("files").mkdir()
    for part in ("train", "test"):
        Path("files", f"{part}.parquet").write_bytes(b"PAR1 but no more")
    arguments = ["run", "quickstart", SERIAL, "data.dataset=cifar10", "data.root=files"]
    assert ".parquet" in error_of(arguments, capsys)


def test_a_partition_file_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("p.npz", train_0=np.array([0]), test_0=np.array([1]))
    scheme = ["data.partition={scheme: file, path: p.npz}"]
    assert "p.npz" in error_of(["run", "quickstart", SERIAL, *scheme], capsys)
    assert "q.npz" in error_of(["run", "quickstart", SERIAL, "data.partition={scheme: file, path: q.npz}"], capsys)


def test_a_run_folder_with_another_config(capsys: pytest.CaptureFixture[str]) -> None:
    from polyfed.config import parse
    from polyfed.config.loading import read_source

    Path("there").mkdir()
    Path("there", "config.yaml").write_text(yaml.safe_dump(parse(read_source("quickstart")).to_dict()))
    sentence = error_of(["run", "quickstart", SERIAL, "rounds=3", "--out", "there", "--quiet"], capsys)
    assert "the run folder there exists with another config" in sentence
    Path("other").mkdir()
    Path("other", "letter.txt").write_text("dear diary")
    assert "other exists and is not a run folder" in error_of(["run", "quickstart", SERIAL, "--out", "other"], capsys)


def test_resume_needs_a_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere is not a run folder: it has no config.yaml" in error_of(["resume", "nowhere"], capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runn"], "there is no command 'runn'; did you mean 'run'?"),
        (["run"], "Missing argument 'CONFIG'"),
        (["run", "quickstart", "--jsn"], "there is no option --jsn; did you mean --json?"),
        (["list", "method"], "there is no list of 'method'; did you mean 'methods'?"),
        (["sweep", "quickstart", "--jobs", "two"], "'two' is not a valid"),
        (["sweep", "quickstart", "--jobs", "0"], "--jobs is 0; expected 1 or more"),
        (
            ["sweep", "quickstart", "--seeds", "0,-1"],
            "--seeds is '0,-1'; expected integers of at least 0, such as 0,1,2 or 0-4",
        ),
        (["sweep", "quickstart", "seed=0,1"], "'seed' cannot be an axis of a sweep; give seeds with --seeds"),
        (["sweep", "quickstart", "method=local,"], "'method=local,' has an empty value"),
        (["sweep", "quickstart", "rounds=1", "rounds=2"], "'rounds' is given 2 times"),
        (["sweep", "quickstart", "rounds=1,none"], "rounds=none: rounds is 'none'"),
        (["bench", "overhed"], "did you mean 'overhead'?"),
    ],
)
def test_wrong_command_lines(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in error_of(arguments, capsys)


def test_messages_contain_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = error_of(["run", "quick\x1b[2Jstart\nsecond line [red]"], capsys)
    assert "\x1b" not in sentence and "[red]" in sentence

"""The core install runs the quickstart, and features of extras name the command that installs them."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# what extras install, by the name of the module
OPTIONAL = (
    *("datasets", "flwr_datasets", "opacus", "pyarrow", "pandas", "starlette", "uvicorn", "tensorboard"),
    *("mlflow", "wandb", "ray", "onnx", "onnxscript", "flwr", "httpx", "cryptography", "huggingface_hub"),
)
# The commands run in one process in which these modules cannot be imported.
PROGRAM = """
import contextlib, io, json, sys

sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
from polyfed.cli.app import main

outcomes = []
for command in json.loads(sys.argv[2]):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(command)
    outcomes.append([code, printed.getvalue()])
print(json.dumps(outcomes))
"""


def without_extras(folder: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """Run commands in a process without the packages of extras. Return their exit codes and what they printed."""
    arguments = [json.dumps(OPTIONAL), json.dumps(commands)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [(code, " ".join(text.split())) for code, text in json.loads(done.stdout)]


def test_the_quickstart_and_its_report_need_no_extra(tmp_path: Path) -> None:
    small = ["clients=2", "rounds=1", "engine.name=serial", "data.limit=200", "--quiet", "--out"]
    ended = without_extras(
        tmp_path,
        ["check", "quickstart"],
        ["run", "quickstart", *small, "runs/a"],
        ["run", "quickstart", "method=local", *small, "runs/b"],
        ["compare", "runs"],
        ["report", "runs", "-o", "report.html"],
        ["inspect", "runs/a"],
    )
    assert [code for code, _ in ended] == [0] * 6, ended
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_a_feature_of_an_extra_names_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "table.csv").write_text("a,label\n1,x\n2,y\n", encoding="utf-8")
    features = {
        "privacy": ["privacy={prototypes: {clip: 1.0, epsilon: 8.0}}"],
        "partitioners": ["data.partition={scheme: flower, partitioner: IidPartitioner}"],
        "tables": ["data.dataset=ward", "data.root=files", "models.group=tabular4"],
        "hub": ["data.dataset=cifar10", "models.group=[cnn4]"],
        "ray": ["engine.name=ray"],
        "tensorboard": ["track=[tensorboard]"],
    }
    ended = without_extras(
        tmp_path, *(["run", "quickstart", "clients=2", *keys, "--out", "run"] for keys in features.values())
    )
    for extra, (code, text) in zip(features, ended, strict=True):
        assert (code, text.count(f"pip install 'polyfed[{extra}]'")) == (2, 1), (extra, text)
    assert not (tmp_path / "run").exists()


def test_the_core_has_no_package_of_an_extra_and_all_has_every_extra() -> None:
    core = {Requirement(line).name for line in PYPROJECT["dependencies"]}
    extras = PYPROJECT["optional-dependencies"]
    optional = {Requirement(line).name for name, lines in extras.items() if name != "all" for line in lines}
    assert core.isdisjoint(optional)
    everything = set().union(*(Requirement(line).extras for line in extras["all"]))
    assert everything == extras.keys() - {"all", "dev", "docs"}

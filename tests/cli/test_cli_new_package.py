"""`polyfed new package`: the package installs, and its method, model and dataset are found by their names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm_processes

from polyfed.cli.app import main

SETTINGS = ["clients=3", "rounds=1", "data.partition.alpha=1", "--json", "-q"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed package, as pip fills it. Nothing is downloaded."""
    folder = tmp_path_factory.mktemp("package")
    assert main(["new", "package", "my-pack", "--out", str(folder)]) == 0
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q"]
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(folder / "my-pack")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def polyfed(site: Path, *arguments: str, forked: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that is forked from a warm one, or else in a new interpreter."""
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    if forked:
        return warm_processes.run("-m", "polyfed", *arguments, cwd=site.parent, env=environment)
    command = [sys.executable, "-m", "polyfed", *arguments]
    return subprocess.run(command, cwd=site.parent, env=environment, capture_output=True, text=True)


def test_the_package_runs_on_both_engines(site: Path) -> None:
    names = ["method=my-pack", "data.dataset=my-pack-data", "models.group=[my-pack-net]"]
    results: list[dict[str, Any]] = []
    for engine in ("serial", "pool"):
        done = polyfed(
            site,
            "run",
            "quickstart",
            *names,
            f"engine.name={engine}",
            "--out",
            engine,
            *SETTINGS,
            forked=engine == "serial",
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    assert results[0]["state_hash"] == results[1]["state_hash"]
    assert results[0]["accuracy"]["global"] is not None and results[0]["failures"] == []


def test_lists_show_what_packages_bring(site: Path) -> None:
    for kind, name in (("methods", "my-pack"), ("models", "my-pack-net"), ("datasets", "my-pack-data")):
        done = polyfed(site, "list", kind, "--json")
        assert done.returncode == 0, done.stderr
        assert name in [row["name"] for row in json.loads(done.stdout)]


def test_its_test_runs(site: Path) -> None:
    tests = site.parent / "my-pack" / "tests"
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    chosen = ["-k", "one_client or by_their_names", "-p", "no:cacheprovider", "-q", "-n", "0"]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = warm_processes.run("-m", "pytest", str(tests), *chosen, cwd=site.parent, env=environment)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


def broken(site: Path, kind: str, value: str) -> Path:
    """Return a folder with an installed package whose entry point cannot be imported."""
    folder = site.parent / f"broken-{kind}"
    info = folder / "broken-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (folder / "broken_module.py").write_text("raise RuntimeError('no licence')\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[polyfed.{kind}]\nbroken = {value}\n")
    return folder


@pytest.mark.parametrize(
    ("kind", "value", "override"),
    [
        ("models", "broken_module:Net", "models.group=[broken]"),
        ("datasets", "broken_module:load", "data.dataset=broken"),
    ],
)
def test_a_broken_package_is_an_error_only_if_it_is_used(site: Path, kind: str, value: str, override: str) -> None:
    folder = broken(site, kind, value)
    other = polyfed(folder, "run", "quickstart", "engine.name=serial", "--out", f"other-{kind}", *SETTINGS)
    assert other.returncode == 0, other.stderr
    done = polyfed(folder, "run", "quickstart", override, "--out", f"run-{kind}", *SETTINGS)
    assert done.returncode == 2
    expected = f"the {kind[:-1]} 'broken' of the package broken cannot be imported: RuntimeError: no licence"
    assert expected in done.stderr.splitlines()[-1]


def test_a_missing_method_module_is_one_warning(site: Path) -> None:
    done = polyfed(broken(site, "methods", "missing_module"), "list", "methods")
    assert done.returncode == 0 and "fedproto" in done.stdout
    assert done.stderr.count("the method 'broken' of the package broken is not listed") == 1


def test_an_existing_folder_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "package", "mine", "--out", str(tmp_path)]) == 0
    assert main(["new", "package", "mine", "--out", str(tmp_path)]) == 2
    assert "exists; choose another name" in capsys.readouterr().err

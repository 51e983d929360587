"""What a refusal offers must work: every offered name passes `polyfed check` in the same setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyfed.cli.app import main

QUICKSTART = ["check", "quickstart", "engine.name=serial", "clients=8"]
METHODS = r"Methods that would work: (.*)\.$"
SPLITTINGS = r"splitting: ((?:\w+, )*\w+(?: or \w+)?)(?:, or |$)"
GROUPS = r"such as ((?:[\w-]+, )*[\w-]+(?: or [\w-]+)?)\.$"
GROUP = r"use a model of group (\w+)\.$"
WINE = ["data.dataset=wine", "data.partition.scheme=iid"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "pattern", "key"),
    [
        (["method=fedavg"], METHODS, "method"),
        (["method=fedproto", "models.group=tiny-widths"], METHODS, "method"),
        (["method=fedavg", "train.momentum=0.9"], METHODS, "method"),
        (["method=fedvtc", *WINE, "models.group=tabular4"], METHODS, "method"),
        (["method=fedavg", "privacy={prototypes: {clip: 1.0, epsilon: 8.0}}"], METHODS, "method"),
        (["method=fedproto", "splitting=stage", "models.group=tiny-resnets"], r"use one of (.*)$", "method"),
        (
            ["method=local", "server_filter=inco", "models.group=[tiny-resnet14]"],
            r"use it with (.*), or set",
            "method",
        ),
        (["method=inclusivefl", "models.group=tiny-widths"], r"or the method (\w+)$", "method"),
        (["method=fedktl"], r"; (fedktl-lite) runs", "method"),
        (["method=fedproto", "splitting=stage"], SPLITTINGS, "splitting"),
        (["method=fedavg", "splitting=width", "models.group=tiny-resnets"], SPLITTINGS, "splitting"),
        (["method=fedavg", "splitting=layer", "models.group=tiny-resnets"], SPLITTINGS, "splitting"),
        (["method=fedavg", "splitting=stage", "models.group=tiny-widths"], SPLITTINGS, "splitting"),
        (["method=fedavg", "models.server=tiny-resnet26", "models.group=[tiny-resnet10]"], SPLITTINGS, "splitting"),
        (["method=heterofl"], GROUPS, "models.group"),
        (["method=scalefl"], GROUPS, "models.group"),
        (["method=inclusivefl"], GROUPS, "models.group"),
        (["method=fedavg", "splitting=stage"], GROUPS, "models.group"),
        (["method=fedavg", "splitting=layer"], GROUPS, "models.group"),
        (["method=fedavg", "splitting=width"], GROUPS, "models.group"),
        (["method=scalefl", "models.group=tiny-resnets"], r"or use the group ([\w-]+)$", "models.group"),
        (["method=inclusivefl", "models.group=tiny-widths"], r"a group such as ([\w-]+),", "models.group"),
        ([*WINE, "models.group=tiny4"], GROUP, "models.group"),
        ([*WINE, "models.group=series4"], GROUP, "models.group"),
        ([*WINE, "models.group=text4"], GROUP, "models.group"),
        (["models.group=tabular4"], GROUP, "models.group"),
        (["method=ccvr", "method.mode=original"], r"; use '(\w+)'$", "method.mode"),
        (
            ["method=fedl2g", "models.group=tiny-widths"],
            r"method.space: (\w+)",
            "method.space",
        ),
    ],
)
def test_every_offered_name_passes_the_check(
    overrides: list[str], pattern: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICKSTART, *overrides]) == 2
    message = capsys.readouterr().err.strip()
    offered = re.search(pattern, message)
    assert offered is not None, message
    others = [text for text in overrides if not text.startswith(f"{key}=")]
    for name in re.split(r", | or ", offered[1]):
        code = main([*QUICKSTART, *others, f"{key}={name}"])
        assert code == 0, f"{message}\n{key}={name}: {capsys.readouterr().err}"


def test_methods_that_fail_in_their_own_checks_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICKSTART, "method=fedavg"]) == 2
    works = capsys.readouterr().err.partition("Methods that would work: ")[2].strip(".\n").split(", ")
    assert {"fedproto", "fedlatent", "local"} <= set(works)
    assert not {"heterofl", "fed-dropout", "fedrolex", "inclusivefl", "scalefl", "fedktl", "fedavg"} & set(works)


def test_nothing_is_offered_if_nothing_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICKSTART, "method=local", "server_filter=inco"]) == 2
    message = capsys.readouterr().err
    assert "which Local does not have; set server_filter: none" in message

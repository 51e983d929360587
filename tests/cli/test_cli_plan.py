"""Overrides, and the grid of a sweep: values, names, shares of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.cli.sweep import share_out
from polyfed.config.sources import find, override
from polyfed.config.sweep import folder_name, plan, seeds_of, split_values
from polyfed.errors import InputError


@pytest.mark.parametrize(
    ("overrides", "key", "expected"),
    [
        (["train.lr=0.5"], "train", {"epochs": 1, "batch_size": 10, "optimizer": "sgd", "lr": 0.5}),
        (["method=local"], "method", {"name": "local"}),
        (["method.name=local"], "method", {"name": "local"}),
        (["method=fedproto"], "method", {"name": "fedproto", "guidance": 3}),
        (["method={name: local}"], "method", {"name": "local"}),
        (["method={guidance: 2}"], "method", {"name": "fedproto", "guidance": 2}),
        (
            ["method.weights=counts", "method=fedproto"],
            "method",
            {"name": "fedproto", "guidance": 3, "weights": "counts"},
        ),
        (["data.partition.scheme=iid"], "data", {"dataset": "digits", "partition": {"scheme": "iid"}}),
    ],
)
def test_choosing_another_method_or_scheme_lets_go_of_the_old_options(
    overrides: list[str], key: str, expected: Any
) -> None:
    raw = override(find("quickstart"), ["method.guidance=3"])
    assert override(raw, overrides)[key] == expected
    assert raw["method"] == {"name": "fedproto", "guidance": 3}  # what was given is not changed


def test_options_may_come_before_what_chooses_them() -> None:
    texts = ["data.partition.classes_per_client=3", "data.partition.scheme=pathological"]
    wanted = {"scheme": "pathological", "classes_per_client": 3}
    assert override(find("quickstart"), texts)["data"]["partition"] == wanted


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("local,fedproto", ["local", "fedproto"]),
        ("[a, b],[c]", ["[a, b]", "[c]"]),
        ("{x: 1, y: [2, 3]},4", ["{x: 1, y: [2, 3]}", "4"]),
        ("'a,b',\"c,'d\"", ["'a,b'", '"c,\'d"']),
        ("one", ["one"]),
    ],
)
def test_values_are_split_at_outer_commas(text: str, parts: list[str]) -> None:
    assert split_values(text) == parts


def test_the_grid_times_the_seeds(tmp_path: Path) -> None:
    cells = plan(find("quickstart"), ["method=local,fedproto", "train.lr=0.1,0.2", "rounds=2"], [0, 7], tmp_path)
    assert len(cells) == 8 and len({cell.name for cell in cells}) == 8
    assert cells[0].name == "method=local,train.lr=0.1,rounds=2-seed0"
    assert cells[0].folder == tmp_path / cells[0].name
    assert {(c.config.method["name"], c.config.train.lr, c.config.seed) for c in cells} == {
        (method, lr, seed) for method in ("local", "fedproto") for lr in (0.1, 0.2) for seed in (0, 7)
    }
    assert all(cell.config.rounds == 2 and cell.config.run_name == cell.name for cell in cells)


def test_seeds() -> None:
    assert seeds_of("0, 2,2,1") == [0, 2, 1]
    with pytest.raises(InputError, match=r"--seeds is '1\.\.3'"):
        seeds_of("1..3")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=200), max_size=3), st.lists(st.text(max_size=200), max_size=3))
def test_folder_names_are_safe_and_distinct(first: list[str], second: list[str]) -> None:
    names = [folder_name([f"k={value}" for value in values], 0) for values in (first, second)]
    for name in names:
        assert "/" not in name and name.isascii() and name.isprintable() and not name.startswith((".", "-"))
        assert 0 < len(name) < 200
    if ",".join(first) != ",".join(second) or len(first) != len(second):
        assert names[0] != names[1]


@pytest.mark.parametrize(
    ("engine", "cells", "jobs", "cores", "engines"),
    [
        ({}, 8, None, 4, (4, "serial", "auto")),
        ({}, 2, None, 8, (2, "pool", 4)),
        ({}, 8, 2, 8, (2, "pool", 4)),
        ({}, 8, 1, 4, (1, "pool", 4)),
        ({}, 1, None, 1, (1, "serial", "auto")),
        ({"workers": 2}, 8, None, 4, (2, "pool", 2)),
        ({"workers": 16}, 8, None, 4, (1, "pool", 16)),
        ({"name": "serial"}, 3, None, 4, (3, "serial", "auto")),
    ],
)
def test_the_machine_is_shared_out(
    engine: dict[str, Any],
    cells: int,
    jobs: int | None,
    cores: int,
    engines: tuple[int, str, int | str],
    tmp_path: Path,
) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("with GPUs a pool has a worker for each")
    planned = plan({"engine": engine}, [], list(range(cells)), tmp_path)
    shared, count = share_out(planned, jobs, cores)
    assert {(count, cell.config.engine.name, cell.config.engine.workers) for cell in shared} == {engines}
    assert [cell.config.hash() for cell in shared] == [cell.config.hash() for cell in planned]

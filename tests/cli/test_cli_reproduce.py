"""`polyfed reproduce`: wrong input, estimates, runs, tables and pages of a small paper."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from polyfed.cli.app import main
from polyfed.papers import loading

SMALL = {"rounds": 1, "clients": 2, "data.limit": 100, "evaluate.every": 1}
TOY = {
    "title": "Toy",
    "reference": "A. Author: A paper",
    "method": "fedproto",
    "measured_by": "Personal accuracy.",
    "settings": {
        "digits": {
            "title": "MNIST",
            "cpu": {"title": "digits", "preset": "quickstart", "set": SMALL},
            "paper": {"preset": "fedfree/table1-cifar10-10-homogeneous"},
        }
    },
    "rows": {
        "local": {"title": "local training", "set": {"method": "local"}},
        "fedproto": {"title": "FedProto", "set": {"method": "fedproto"}},
        "head": {"title": "FedProto by head", "variant_of": "fedproto", "moment": "head"},
    },
    "tables": {
        "table1": {
            "title": "Table 1",
            "measure": {"of": "personal"},
            "settings": ["digits"],
            "rows": ["local", "fedproto", "head"],
            "published": {"digits": {"fedproto": 90.5}},
        },
        "extra": {"title": "Extra", "measure": {"of": "traffic"}, "settings": ["digits"], "rows": ["local"]},
    },
    "claims": [{"says": "It wins.", "where": "Table 1", "table": "table1", "better": "fedproto", "than": ["local"]}],
}


@pytest.fixture(autouse=True)
def _papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the command one paper, and a working directory of its own."""
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "toy.yaml").write_text(yaml.safe_dump(TOY))
    monkeypatch.setattr(loading, "FOLDER", folder)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tay"], "there is no paper 'tay'; did you mean 'toy'? Known: toy"),
        (["toy", "table2"], "Toy has no table 'table2'; did you mean 'table1'? Known: extra, table1"),
        (["toy", "--scale", "large"], "--scale is 'large'; known: cpu, paper"),
        (["toy", "--seeds", "x"], "--seeds is 'x'; expected integers of at least 0, such as 0,1,2 or 0-4"),
        (["toy", "--format", "pdf"], "--format is 'pdf'; known: json, md, table"),
        (
            ["toy", "--rows", "local,proto"],
            "--rows names 'proto', which is not a row of this paper; did you mean 'fedproto'? Known: fedproto, head, "
            "local",
        ),
        (["toy", "--jobs", "0"], "--jobs is 0; expected 1 or more"),
        (["toy", "--tflops", "0"], "--tflops is 0.0; expected a number above 0"),
        (["toy", "--set", "rounds"], "the override 'rounds' is not of the form key=value, such as train.lr=0.05"),
        (["toy", "--page", "none/toy.md"], "none/toy.md cannot be written: there is no folder none"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments]) == 2
    assert capsys.readouterr() == ("", f"polyfed: {message}\n")
    assert list(Path().iterdir()) == []


def test_published_settings_are_checked_and_estimated_without_data(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "toy", "extra", "--scale", "paper", "--check", "--seeds", "0-2", "--tflops", "30"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    # docs/published.md has 20.6 minutes for one run of this preset, to start its operations
    assert out.startswith("3 runs of 1 setting pass the check; about 1.03 hours in all for a device with 30 TFLOPS")
    assert list(Path().iterdir()) == []


def test_a_paper_is_run_and_written_to_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "toy", "--seeds", "0,1", "--out", "runs", "--jobs", "1", "--quiet"]
    assert main([*command, "--finished"]) == 0
    shown = capsys.readouterr()
    assert "FedProto          not run (90.5)" in shown.out
    assert "4 of 4 runs have not finished" in shown.err
    assert main([*command, "--rows", "local"]) == 0
    assert sorted(path.name for path in Path("runs/toy/cpu").iterdir()) == ["digits-local-s0", "digits-local-s1"]
    assert "FedProto          not run (90.5)" in capsys.readouterr().out
    assert main([*command, "table1", "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    cells = {cell["row"]: cell for cell in content["tables"]["table1"]}
    assert set(cells["head"]["values"]) == {"0", "1"}  # read from the runs of FedProto
    assert content["claims"][0]["verdict"] in {"shown", "not shown", "opposite"}
    folder = Path("runs/toy/cpu")
    assert sorted(path.name for path in folder.iterdir()) == [
        f"digits-{row}-s{seed}" for row in ("fedproto", "local") for seed in (0, 1)
    ]
    shutil.rmtree(folder / "digits-local-s1")
    Path("toy.notes.md").write_text("What the method is good for.\n")
    assert main([*command, "--finished", "--page", "toy.md"]) == 0
    page = Path("toy.md").read_text()
    assert page.startswith("# Toy: results\n\nWhat the method is good for.\n\nA. Author: A paper. Personal accuracy.")
    assert "**Rows with fewer seeds:** local training." in page
    assert "| local training | " in page and ", 1 of 2 seeds |" in page

"""`polyfed predict` reads samples like a dataset, with or without labels, and writes a csv table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.trained.trained_runs import SERIAL, run

import polyfed
from polyfed.cli.app import main
from polyfed.trained.run_models import RunModels

COLUMNS = ("age", "pressure", "dose")


def predict(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[list[dict[str, str]], str]:
    """Return the rows of the table on stdout, and stderr."""
    assert main(["predict", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    return list(csv.DictReader(io.StringIO(captured.out))), captured.err


def write_rows(file: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run on a csv table with labels as text, and its rows."""
    folder = tmp_path_factory.mktemp("ward")
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(120):
        values = dict(zip(COLUMNS, generator.normal(size=3).round(4).tolist(), strict=True))
        rows.append({**values, "ward": "west", "outcome": "ill" if values["age"] > values["dose"] else "well"})
    (folder / "files").mkdir()
    write_rows(folder / "files" / "all.csv", (*COLUMNS, "ward", "outcome"), rows)
    polyfed.run(
        {"method": "local", "clients": 2, "rounds": 3, "engine": SERIAL, "models": {"group": "tabular4"}},
        data={"dataset": "ward", "root": str(folder / "files"), "label": "outcome"},
        out=folder / "run",
    )
    return folder / "run", rows


def test_a_table_with_labels(ward: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, rows = ward
    table, message = predict(capsys, folder, "--client", 1, "--data", folder.parent / "files")
    trained = polyfed.load_client(folder, 1)
    x = np.array([[row[name] for name in COLUMNS] for row in rows], dtype=np.float32)
    assert [row["predicted"] for row in table] == [trained.classes[label] for label in trained.predict(x)]
    assert [row["label"] for row in table] == [row["outcome"] for row in rows]
    assert [row["sample"] for row in table] == [str(number) for number in range(1, 121)]
    highest = trained.predict_proba(x).max(1)
    np.testing.assert_allclose([float(row["probability"]) for row in table], highest, atol=1e-6)
    correct = sum(row["predicted"] == row["label"] for row in table)
    assert f"accuracy: {100 * correct / 120:.2f} % ({correct} of 120)" in message


def test_columns_are_found_by_name_and_labels_may_be_missing(
    ward: tuple[Path, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, rows = ward
    with_labels, _ = predict(capsys, folder, "--client", 0, "--data", folder.parent / "files")
    write_rows(tmp_path / "new.csv", ("number", "dose", "age", "pressure"), [{**r, "number": 7} for r in rows])
    assert main(["export", str(folder), "-o", str(tmp_path / "models")]) == 0
    capsys.readouterr()
    table, message = predict(capsys, tmp_path / "models", "--client", 0, "--data", tmp_path / "new.csv")
    assert message == "" and "label" not in table[0]
    assert [row["predicted"] for row in table] == [row["predicted"] for row in with_labels]
    write_rows(tmp_path / "new.csv", ("age", "dose"), rows)
    assert main(["predict", str(folder), "--client", "0", "--data", str(tmp_path / "new.csv")]) == 2
    assert "new.csv has no column of numbers 'pressure'" in capsys.readouterr().err


def test_pictures_and_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", "fedproto")
    models = RunModels(tmp_path / "run")
    samples = models.federation.global_test
    assert samples is not None
    samples = samples.subset(torch.arange(30))
    trained = models.load(2)
    names = {}
    for number, (pixels, label) in enumerate(zip(samples.inputs, samples.labels.tolist(), strict=True)):
        file = tmp_path / "scans" / str(label) / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(file)
        names[str(file.relative_to(tmp_path / "scans"))] = number
    predicted = trained.predict(samples.inputs).tolist()
    table, message = predict(capsys, tmp_path / "run", "--client", 2, "--data", tmp_path / "scans")
    assert sorted(row["sample"] for row in table) == sorted(names)
    assert all(int(row["predicted"]) == predicted[names[row["sample"]]] for row in table)
    assert all(int(row["label"]) == samples.labels[names[row["sample"]]] for row in table)
    assert "of 30)" in message
    one = tmp_path / "scans" / next(iter(names))
    table, message = predict(capsys, tmp_path / "run", "--client", 2, "--data", one)
    assert [row["sample"] for row in table] == [one.name] and message == ""
    np.savez(tmp_path / "new.npz", x=samples.inputs.numpy())
    out = tmp_path / "predictions.csv"
    _, message = predict(capsys, tmp_path / "run", "--client", 2, "--data", tmp_path / "new.npz", "-o", out)
    assert [int(row["predicted"]) for row in csv.DictReader(out.open())] == predicted
    assert "30 predictions" in message


def test_text_is_hashed_as_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"good": "fine great sun joy", "bad": "rain grey cold mud"}
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(80):
        label = str(generator.choice(list(words)))
        rows.append({"text": " ".join(generator.choice(words[label].split(), 5)), "label": label})
    (tmp_path / "files").mkdir()
    write_rows(tmp_path / "files" / "all.csv", ("text", "label"), rows)
    polyfed.run(
        {"method": "local", "clients": 2, "rounds": 3, "engine": SERIAL, "models": {"group": "text4"}},
        data={"dataset": "moods", "root": str(tmp_path / "files"), "text_length": 6, "vocabulary": 100},
        out=tmp_path / "run",
    )
    table, message = predict(capsys, tmp_path / "run", "--client", 0, "--data", tmp_path / "files")
    models = RunModels(tmp_path / "run")
    data = models.federation.dataset.train
    trained = models.load(0)
    expected = [trained.classes[label] for label in trained.predict(data.inputs).tolist()]
    assert [row["predicted"] for row in table] == expected and "of 80)" in message


def test_wrong_data_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", "local")
    (tmp_path / "empty").mkdir()
    Image.fromarray(np.zeros((9, 8), np.uint8)).save(tmp_path / "large.png")
    for data, sentence in (
        ("nowhere", "there is no file or folder"),
        ("empty", "no samples were found"),
        ("large.png", "have shape 1x9x8; the model was trained on 1x8x8"),
    ):
        assert main(["predict", str(tmp_path / "run"), "--client", "0", "--data", str(tmp_path / data)]) == 2
        assert sentence in capsys.readouterr().err

"""`data.tokenizer`: texts become tokens of a Hugging Face tokenizer from a local file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import polyfed
from polyfed.cli.app import main
from polyfed.data import text_tokens
from polyfed.data.dataset import Format
from polyfed.errors import InputError

WORDS = {"[UNK]": 0, "good": 1, "bad": 2, "film": 3}


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts and a tokenizer that knows three words and pads to nine tokens by itself."""
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "cache"))  # a dataset in the cache needs no tokenizer
    rows = [f"{'good' if k % 2 else 'bad'} film number {k},{'yes' if k % 2 else 'no'}" for k in range(40)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def settings(folder: Path, **data: Any) -> dict[str, Any]:
    section = {
        "dataset": "reviews",
        "root": str(folder / "data"),
        "text_length": 6,
        "tokenizer": str(folder / "tokenizer.json"),
        "partition": {"scheme": "iid"},
        **data,
    }
    return {
        "data": section,
        "models": {"group": "text4"},
        "clients": 2,
        "rounds": 1,
        "method": "local",
        "engine": {"name": "serial"},
    }


def test_tokens_are_those_of_the_tokenizer(reviews: Path) -> None:
    how = Format(text_length=6, tokenizer=str(reviews / "tokenizer.json"))
    data = polyfed.data.load("reviews", root=reviews / "data", how=how)
    # ids of the file plus one, because 0 is padding: bad film [UNK] [UNK] -> 3 4 1 1
    assert data.train.inputs[0].tolist() == [3, 4, 1, 1, 0, 0]
    assert data.train.inputs[1].tolist() == [2, 4, 1, 1, 0, 0]
    assert (data.vocabulary, data.kind) == (5, "tokens")


def test_an_exported_model_brings_its_tokenizer(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    polyfed.run(settings(reviews), out=reviews / "run")
    assert main(["export", str(reviews / "run"), "--client", "0", "-o", str(reviews / "models")]) == 0
    expected = polyfed.load_client(reviews / "run", 0).predict(np.array([[3, 4, 1, 1, 0, 0], [2, 4, 1, 1, 0, 0]]))
    shutil.rmtree(reviews / "run")
    (reviews / "tokenizer.json").unlink()
    (reviews / "new.csv").write_text("text\nbad film number 0\ngood film number 1\n")
    capsys.readouterr()
    assert main(["predict", str(reviews / "models"), "--data", str(reviews / "new.csv")]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split(",")[1] for row in rows] == [("no", "yes")[k] for k in expected]


def test_the_content_of_the_file_identifies_the_run(reviews: Path) -> None:
    first = polyfed.run(settings(reviews), out=reviews / "run")
    file = reviews / "tokenizer.json"
    file.write_text(file.read_text().replace('"film": 3', '"film": 3, "number": 4'))
    with pytest.raises(InputError, match=r"tokenizer\.json has changed"):
        polyfed.run(settings(reviews), out=reviews / "run")
    second = polyfed.run(settings(reviews), out=reviews / "second")
    assert second["config_hash"] != first["config_hash"] and second["state_hash"] != first["state_hash"]


def test_wrong_files_and_a_missing_package_are_one_sentence(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"missing\.json.*cannot be read: No such file"):
        polyfed.run(settings(reviews, tokenizer=str(reviews / "missing.json")), out=reviews / "run")
    (reviews / "other.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"other\.json is not a tokenizer\.json file"):
        polyfed.run(settings(reviews, tokenizer=str(reviews / "other.json")), out=reviews / "run")
    text_tokens._load.cache_clear()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        InputError, match=r"data.tokenizer needs tokenizers; install it with: pip install 'polyfed\[t"
    ):
        polyfed.run(settings(reviews), out=reviews / "run")
    assert not (reviews / "run").exists()

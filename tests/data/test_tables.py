"""Tables, texts, sensor windows and plays: read from small files of each layout."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyfed.data.dataset import Dataset, Format, load
from polyfed.data.partition import make
from polyfed.data.sensor_files import CHANNELS
from polyfed.data.text_tokens import hashed_tokens
from polyfed.errors import InputError

WARD = """age,dose,hospital,outcome
61,0.5,north,ill
47,1.25,south,well
33,0.75,south,ill
58,2,east,well
"""


def opened(folder: Path, name: str, how: Format | None = None, **files: str) -> Dataset:
    (folder / "root").mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / "root" / f"{file}.csv").write_text(text, encoding="utf-8")
    return load(name, root=folder / "root", cache=folder / "cache", how=how)


def test_a_csv_file_with_text_labels_and_a_site_column(tmp_path: Path) -> None:
    ward = opened(tmp_path, "ward", Format(label="outcome"), patients=WARD)
    assert (ward.kind, ward.shape, ward.class_names, ward.test) == ("numbers", (2,), ("ill", "well"), None)
    assert ward.train.inputs.tolist() == [[61, 0.5], [47, 1.25], [33, 0.75], [58, 2]]
    assert ward.train.labels.tolist() == [0, 1, 0, 1]
    assert ward.train.columns["hospital"] == ("north", "south", "south", "east")


def test_columns_of_the_test_split_are_found_by_name(tmp_path: Path) -> None:
    test = "dose,outcome,age\n2.5,well,40\n"
    ward = opened(tmp_path, "ward", Format(label="outcome"), train=WARD, test=test)
    assert ward.features == ("age", "dose")
    assert ward.test is not None and ward.test.inputs.tolist() == [[40, 2.5]]
    with pytest.raises(InputError, match=r"test.csv has the column 'weight', which .*train.csv does not have"):
        opened(tmp_path, "ward", Format(label="outcome"), test="age,dose,weight,outcome\n40,2.5,70,well\n")


def test_a_class_that_only_the_test_split_has_keeps_its_number(tmp_path: Path) -> None:
    test = WARD.replace("ill", "unsure")
    ward = opened(tmp_path, "ward", Format(label="outcome"), train=WARD, test=test)
    assert ward.class_names == ("ill", "unsure", "well")
    assert ward.train.labels.tolist() == [0, 2, 0, 2]
    assert ward.test is not None and ward.test.labels.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("text", "how", "sentence"),
    [
        (WARD, Format(), "no column named label; set data.label to one of age, dose, hospital, outcome"),
        (WARD, Format(label="outcom"), "data.label is 'outcom'.*did you mean 'outcome'"),
        (WARD.replace("1.25", ""), Format(label="outcome"), "column 'dose' has 1 missing values, the first in row 2"),
        (WARD.replace("south,well", "south,"), Format(label="outcome"), "labels are missing, the first in row 1"),
        ("name,label\nann,0\nbob,1\n", Format(), "no column of numbers besides 'label'; its columns are name"),
        (WARD, Format(label="outcome", text="dose"), "data.text is 'dose'.*no text column of that name"),
        ("a,label\n1,0\n2\n", Format(), "not a readable csv file"),
        (
            WARD.replace("1.25", "unknown"),
            Format(label="outcome"),
            "column 'dose' has numbers, but row 2 has 'unknown'",
        ),
    ],
)
def test_wrong_tables_say_what_is_wrong(tmp_path: Path, text: str, how: Format, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        opened(tmp_path, "ward", how, patients=text)


def test_text_becomes_tokens(tmp_path: Path) -> None:
    table = pa.table({"text": ["Good news, good!", "bad"], "label": [1, 0]})
    (tmp_path / "root").mkdir()
    pq.write_table(table, tmp_path / "root" / "train.parquet")
    news = opened(tmp_path, "reviews", Format(vocabulary=50, text_length=6))
    assert (news.kind, news.vocabulary, news.shape) == ("tokens", 50, (6,))
    good, news_token, comma, again, mark, padding = news.train.inputs[0].tolist()
    assert good == again and len({good, news_token, comma, mark}) == 4 and padding == 0
    assert news.train.inputs[1].tolist()[1:] == [0] * 5
    assert news.train.inputs.max() < 50


def test_words_have_the_same_tokens_everywhere() -> None:
    # CRC-32 of b"hello" is 0x3610a686 = 907060870, and 907060870 = 99 * 9162231 + 1
    assert hashed_tokens(["Hello HELLO"], 100, 3).tolist() == [[2, 2, 0]]


def test_uci_har_as_published(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        folder = tmp_path / "root" / split / "Inertial Signals"
        folder.mkdir(parents=True)
        for number, channel in enumerate(CHANNELS):
            np.savetxt(folder / f"{channel}_{split}.txt", np.full((count, 128), number + 0.25))
        np.savetxt(tmp_path / "root" / split / f"y_{split}.txt", np.arange(1, count + 1), fmt="%d")
        np.savetxt(tmp_path / "root" / split / f"subject_{split}.txt", np.array([7, 7, 9][:count]), fmt="%d")
    har = opened(tmp_path, "uci_har")
    assert har.shape == (9, 128) and har.test is not None and len(har.test.labels) == 2
    assert har.train.inputs[0, :, 0].tolist() == [number + 0.25 for number in range(9)]
    assert har.train.labels.tolist() == [0, 1, 2] and har.train.columns["subject"] == ("7", "7", "9")


def test_speeches_predict_the_next_character(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    speech = "ab" * 50 + "\n"
    (tmp_path / "root" / "play.txt").write_text(f"KING:\n{speech}\nFOOL:\n{speech}", encoding="utf-8")
    play = opened(tmp_path, "shakespeare")
    assert play.shape == (80,) and play.kind == "tokens"
    assert set(play.train.columns["speaker"]) == {"KING", "FOOL"}
    names = [play.class_names[label] for label in play.train.labels.tolist()]
    assert names[0] == "a"  # characters 0 to 79 end with b, so that a follows
    assert play.train.inputs.min() >= 1


@pytest.mark.parametrize(("name", "shape", "classes"), [("breast_cancer", (30,), 2), ("wine", (13,), 3)])
def test_tables_of_scikit_learn(tmp_path: Path, name: str, shape: tuple[int, ...], classes: int) -> None:
    from sklearn import datasets

    theirs = getattr(datasets, f"load_{name}")()
    ours = load(name, cache=tmp_path)
    assert (ours.shape, ours.classes, ours.class_names) == (shape, classes, tuple(map(str, theirs.target_names)))
    assert ours.test is not None
    rows = np.concatenate([ours.train.inputs.numpy(), ours.test.inputs.numpy()])
    assert sorted(rows.sum(1).tolist()) == pytest.approx(sorted(theirs.data.sum(1).tolist()), rel=1e-6)


def test_each_value_of_a_column_is_a_client() -> None:
    labels = np.array([0, 1, 0, 1, 0, 1])
    columns = {"hospital": np.array(["b", "a", "b", "c", "b", "a"])}
    scheme = {"scheme": "column", "column": "hospital"}
    rng = np.random.Generator(np.random.PCG64(0))
    made = make(labels, 2, 3, scheme, test_fraction=0.0, rng=rng, columns=columns)
    assert [part.tolist() for part in made.train] == [[0, 2, 4], [1, 5], [3]]  # most samples first
    assert made.notes == ("clients by hospital: 0 = b, 1 = a, 2 = c",)
    two = make(labels, 2, 2, scheme, test_fraction=0.0, rng=rng, columns=columns)
    assert len(two.train) == 2 and "1 of 3 values of hospital are unused" in two.notes[1]
    with pytest.raises(InputError, match="column 'hospital' has 3 different values; set clients: 3 or fewer"):
        make(labels, 2, 4, scheme, test_fraction=0.0, rng=rng, columns=columns)
    # names decide which site a client is
    for names in (["a", "c"], ["c", "a"]):
        named = make(labels, 2, 2, scheme, test_fraction=0.0, rng=rng, columns=columns, names=names)
        assert [{columns["hospital"][k] for k in part} for part in named.train] == [{name} for name in names]
    with pytest.raises(InputError, match="names has 'd', but no sample has this value in column 'hospital'"):
        make(labels, 2, 2, scheme, test_fraction=0.0, rng=rng, columns=columns, names=["a", "d"])
    with pytest.raises(InputError, match=r"data\.partition\.column is 'ward'.*hospital"):
        make(labels, 2, 2, {"scheme": "column", "column": "ward"}, test_fraction=0.0, rng=rng, columns=columns)


def test_pictures_of_different_sizes_need_resize(tmp_path: Path) -> None:
    from PIL import Image

    for number, size in enumerate(((8, 8), (12, 10))):
        folder = tmp_path / "root" / "train" / str(number)
        folder.mkdir(parents=True)
        picture = io.BytesIO()
        Image.fromarray(np.full(size, 100 * number, np.uint8)).save(picture, "PNG")
        (folder / "scan.png").write_bytes(picture.getvalue())
    with pytest.raises(InputError, match=r"all pictures need one size; set data\.resize"):
        opened(tmp_path, "scans")
    assert opened(tmp_path, "scans", Format(resize=6)).shape == (1, 6, 6)

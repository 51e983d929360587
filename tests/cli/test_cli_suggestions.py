"""What a refusal suggests: the right spelling of options and config keys, once, and nothing out of nowhere."""

from __future__ import annotations

import re

import pytest

from polyfed.cli.app import main
from polyfed.config import parse
from polyfed.config.config import Config
from polyfed.config.key_names import SYNONYMS, all_keys
from polyfed.config.loading import read_source
from polyfed.errors import InputError, closest, nearest


@pytest.mark.parametrize(
    ("arguments", "ending"),
    [
        (["run", "quickstart", "--rounds", "5"], "no option --rounds; to set the config key, write rounds=5"),
        (["run", "quickstart", "--rounds=5"], "write rounds=5"),
        (["check", "quickstart", "--learning-rate", "0.1"], "write train.lr=0.1"),
        (["run", "quickstart", "--local_epochs", "3"], "write train.epochs=3"),
        (["run", "quickstart", "--train.lr", "3"], "write train.lr=3"),
        (["sweep", "quickstart", "--method", "local,fedproto"], "write method=local,fedproto"),
        (["run", "quickstart", "--seed", "1", "--quiet"], "write seed=1"),
        (["run", "quickstart", "--seed"], "write seed=VALUE"),
        (["sweep", "quickstart", "--seed", "1"], "there is no option --seed; did you mean --seeds?"),
        (["run", "quickstart", "--jsn"], "there is no option --jsn; did you mean --json?"),
        (["run", "quickstart", "--xyz"], "there is no option --xyz; see polyfed run --help"),
        (["compare", ".", "--rounds", "3"], "there is no option --rounds; see polyfed compare --help"),
        (["runn"], "polyfed: there is no command 'runn'; did you mean 'run'?"),
        (["keys", "nw"], "polyfed keys: there is no command 'nw'; did you mean 'new'?"),
        (["check", "quickstart", "learning_rate=1"], "unknown key 'learning_rate'; did you mean 'train.lr'?"),
        (["check", "quickstart", "lr=1"], "unknown key 'lr'; did you mean 'train.lr'?"),
        (["check", "quickstart", "engine.lr=1"], "unknown key 'lr' in 'engine'; did you mean 'train.lr'?"),
        (["check", "quickstart", "train.learning_rate=1"], "in 'train'; did you mean 'train.lr'?"),
        (["check", "quickstart", "learnin_rate=1"], "did you mean 'train.lr'?"),
        (["check", "quickstart", "num_clients=3"], "did you mean 'clients'?"),
        (["check", "quickstart", "join_ratio=0.5"], "did you mean 'participation'?"),
        (["check", "quickstart", "dataset=mnist"], "did you mean 'data.dataset'?"),
        (["check", "quickstart", "feature_dim=3"], "did you mean 'models.feature_dim'?"),
        (["check", "quickstart", "models.feature_dims=3"], "did you mean 'models.feature_dim'?"),
        (["check", "quickstart", "method=fedprotto"], "no method called 'fedprotto'; did you mean 'fedproto'?"),
    ],
)
def test_the_right_spelling_ends_the_message(
    arguments: list[str], ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    message = capsys.readouterr().err.strip()
    assert message.endswith(ending)
    assert len(re.findall(r"[Dd]id you mean", message)) <= 1


@pytest.mark.parametrize(("key", "synonym"), [(key, synonym) for key in SYNONYMS for synonym in SYNONYMS[key]])
def test_names_of_other_libraries_lead_to_keys(key: str, synonym: str) -> None:
    with pytest.raises(InputError, match=rf"unknown key '{synonym}'; did you mean '{re.escape(key)}'\?$"):
        parse({synonym: 1})


def test_every_suggested_key_exists() -> None:
    keys = {*all_keys(Config), "data.partition.scheme", "data.partition.alpha"}
    assert set(SYNONYMS) <= keys
    assert not {synonym for synonyms in SYNONYMS.values() for synonym in synonyms} & {
        key for key in keys if "." not in key
    }


@pytest.mark.parametrize(
    ("word", "names", "match"),
    [
        ("rond", ["rounds", "seed"], "rounds"),
        ("ls", ["lr", "steps"], "lr"),
        ("FedProto", ["fedproto"], "fedproto"),
        ("dirichle", ["dirichlet", "iid"], "dirichlet"),
        ("rounds", ["out", "json", "quiet"], None),
        ("xyz", ["seed", "name", "names"], None),
        ("learning_rate", ["weight_decay", "lr"], None),
        ("dgo", ["dog", "cat"], "dog"),
        ("Dirichlet", ["DirichletPartitioner", "IidPartitioner"], "DirichletPartitioner"),
        ("data", ["dataset", "data_root"], None),
        ("x", ["y"], None),
        ("money", ["bytes", "seconds"], None),
    ],
)
def test_only_similar_names_are_suggested(word: str, names: list[str], match: str | None) -> None:
    assert closest(word, names) == match


def test_few_names_are_listed_and_many_only_without_a_suggestion() -> None:
    many = [f"name{k}" for k in range(30)]
    assert nearest("bytse", ["bytes", "seconds"]) == "did you mean 'bytes'? Known: bytes, seconds"
    assert nearest("nam7", many) == "did you mean 'name7'?"
    assert nearest("other", many).startswith("known: name0, name1")
    assert nearest("other", []) == "there is none"


def test_an_unknown_preset_names_the_closest_one_or_the_command_that_lists_them() -> None:
    with pytest.raises(InputError, match=r"no preset called 'quikstart'; did you mean 'quickstart'\?$"):
        read_source("quikstart")
    with pytest.raises(InputError, match=r"no preset called 'nope'; run `polyfed list presets` to see all presets$"):
        read_source("nope")


def test_a_dotted_key_outside_of_a_command_line_is_written_as_a_mapping() -> None:
    with pytest.raises(InputError, match=r"unknown key 'engine.name'; write a mapping: engine: \{name: ...\}"):
        parse({"engine.name": "serial"})

"""The presets of published tables: each passes `check` in its full size, and runs two rounds in a small size."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.tiers import always_if

from polyfed import api
from polyfed.cli.app import main
from polyfed.config import Config, load_config
from polyfed.config.early_checks import check_names
from polyfed.config.loading import preset_names, short_name
from polyfed.core import rng
from polyfed.data.catalogue import KNOWN
from polyfed.federation.data_stand_in import federation_without_data
from polyfed.models.groups import group
from polyfed.models.spec import ModelSpec
from polyfed.models.zoo import built_in_models

PUBLISHED = [name for name in preset_names() if "/" in name and not name.startswith("leaderboard/")]
SAMPLES, TESTS, CLASSES = 24, 4, 8
preset_config = cache(load_config)

# What the short runs cut: clients, rounds, samples, steps, and the steps of a server. They have the two cheapest
# architectures of the preset, an eighth as wide, and do not enlarge images. Everything else is the preset's: method,
# options, splitting, filter, shape and classes of the data, partition scheme, optimiser and rates.
CUT = [
    "rounds=2",
    "clients=2",
    "participation=1.0",
    "train.epochs=1",
    "train.steps=1",
    "train.batch_size=4",
    "evaluate.every=2",
    f"data.test_limit={TESTS}",
    "models.upscale_input=null",
    "engine.name=serial",
    "checkpoint.seconds=1000",
]
CUT_METHODS = {
    "dffke": [
        "method.tau=0.01",  # reached at once
        *(f"method.{key}=1" for key in ("max_local_epochs", "docking_steps", "decoder_epochs", "exchange_epochs")),
        *(f"method.{key}=4" for key in ("width", "decoder_channels")),
        "method.least_steps=0",
        "method.batch=24",
    ],
    "fedvtc": ["method.samples_per_class=1", "method.finetune_epochs=1"],
    "fedl2g": ["method.quiz=2", "method.warmup=1"],
}
CUT_PARTITIONS = {
    "dirichlet": ["data.partition.alpha=10.0", "data.partition.min_size=4"],
    "pathological": [f"data.partition.classes_per_client={CLASSES // 2}"],
}


def narrow_models(config: Config) -> list[str]:
    """Return overrides that give two clients the cheapest architectures of the preset, an eighth as wide."""
    chosen = config.models.group
    members = list(group(chosen)) if isinstance(chosen, str) else [ModelSpec.of(entry) for entry in chosen]
    cheapest = sorted(members, key=lambda spec: built_in_models()[spec.name]["flops"] * spec.width**2)
    narrow = [replace(spec, width=spec.width / 8) for spec in [*cheapest, *cheapest][:2]]
    overrides = [f"models.clients={json.dumps([spec.to_json() for spec in narrow])}"]
    if config.models.feature_map is not None:
        channels, *sides = config.models.feature_map
        overrides.append(f"models.feature_map={[channels // 8, *sides]}")
    return overrides


@cache
def cut(preset: str) -> Config:
    """The config of a preset, cut to a run of a second."""
    config = preset_config(preset)
    return load_config(
        preset,
        [
            *CUT,
            *CUT_METHODS.get(str(config.method["name"]), []),
            *CUT_PARTITIONS.get(str(config.data.partition["scheme"]), []),
            *narrow_models(config),
        ],
    )


def kind(config: Config, *, also: Iterable[str] = ()) -> str:
    """A text that is equal for configs that differ only in datasets of one shape, or in the sections `also`."""
    known, entries = KNOWN[config.data.dataset], config.to_dict()
    entries["data"] = {**entries["data"], "dataset": ""}
    entries["samples"] = f"{known.shape} {known.classes}"
    return json.dumps({key: value for key, value in entries.items() if key not in {"engine", *also}}, sort_keys=True)


# Presets that differ only in what is cut, such as the number of clients, or in datasets of one shape, are one run.
SHORT_RUNS = {kind(cut(preset)): preset for preset in reversed(PUBLISHED)}
# By default one of each method, splitting, filter and partition scheme runs, on the smallest images; the others run
# with --all-methods. The checks at full size run for every preset, and find what is wrong in a single one.
REPRESENTATIVES: dict[str, str] = {}
for preset in sorted(SHORT_RUNS.values(), key=lambda name: KNOWN[preset_config(name).data.dataset].shape or ()):
    parts = cut(preset).to_dict()
    sort = [parts["method"]["name"], parts["splitting"], parts["server_filter"], parts["data"]["partition"]["scheme"]]
    REPRESENTATIVES.setdefault(json.dumps(sort), preset)
# Whether methods, filters and models fit together depends on neither rounds nor clients nor samples.
FULL_CHECKS = {
    kind(preset_config(preset), also=("data", "clients", "participation", "rounds", "train")): preset
    for preset in reversed(PUBLISHED)
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few random images of every dataset, in files as users bring them."""
    root = tmp_path_factory.mktemp("data")
    stream = rng.numpy_generator(0, "small published data")
    for name in sorted({preset_config(preset).data.dataset for preset in PUBLISHED}):
        (root / name).mkdir()
        for split, count in (("train", SAMPLES), ("test", TESTS)):
            images = stream.integers(0, 256, (count, *(KNOWN[name].shape or ())), dtype=np.uint8)
            np.savez(root / name / f"{split}.npz", x=images, y=np.arange(count) % CLASSES)
    return root


@pytest.mark.parametrize(
    "preset",
    [pytest.param(name, marks=always_if(name in REPRESENTATIVES.values())) for name in SHORT_RUNS.values()],
)
def test_two_rounds_of_a_cut_preset(preset: str, files: Path, tmp_path: Path) -> None:
    config = cut(preset)
    with_files = config.model_copy(update={"data": config.data.model_copy(update={"root": str(files)})})
    result = api.run_config(with_files, out=tmp_path / "run")
    assert (result["rounds"], result["clients"], result["failures"]) == (2, 2, [])
    measured = {kind for kind, values in result["accuracy"].items() if values is not None}
    expected = {"personal": config.evaluate.personal, "global": config.evaluate.global_}
    assert measured == {kind for kind, wanted in expected.items() if wanted}


def test_every_main_table_has_presets() -> None:
    tables = {name.partition("-")[0] for name in PUBLISHED}
    assert tables == {
        "dffke/table2",
        "dffke/table3",
        "fedfree/table1",
        "fedfree/tableA4",
        "fedl2g/table1",
        "fedl2g/table2",
        "fedl2g/table3",
        "fedvtc/table1",
        "inco/table1",
        "inco/table2",
        "inco/table3",
    }


def test_names_and_partitions_of_all_presets() -> None:
    for preset in PUBLISHED:
        config = preset_config(preset)
        check_names(config)
        federation = federation_without_data(config)
        assert all(len(part) for part in federation.partition.train), preset


@pytest.mark.parametrize("preset", FULL_CHECKS.values())
def test_check_of_the_full_size(preset: str) -> None:
    federation = federation_without_data(preset_config(preset))
    federation.check(federation.profiles())


def test_check_prints_the_work_without_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "fedfree/table1-cifar10-10-homogeneous", "--tflops", "30"]) == 0
    out = capsys.readouterr().out
    assert "The data is not on this machine" in out and "50,000 training" in out
    # 10 clients x 3,750 samples x 5 epochs x 200 rounds; a step has 10 samples
    assert "training steps   3.75 million" in out
    assert "at 30 TFLOPS" in out and "per worker in a step of cnn-fedfree with batch 10" in out


def test_wrong_tflops_and_wrong_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "quickstart", "--tflops", "0"]) == 2
    assert capsys.readouterr().err.endswith("--tflops is 0.0; expected a number above 0\n")
    assert main(["check", "fedl2g/table1-cifer100"]) == 2
    assert "did you mean 'fedl2g/table1-cifar100'?" in capsys.readouterr().err


def test_folders_are_named_after_presets_in_subfolders() -> None:
    assert short_name("fedl2g/table1-cifar100") == "fedl2g-table1-cifar100"
    assert short_name("some/folder/mine.yaml") == "mine"
    assert "/" not in load_config("fedl2g/table1-cifar100").run_name


def test_a_folder_does_not_hide_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fedl2g" / "table1-cifar100").mkdir(parents=True)
    assert load_config("fedl2g/table1-cifar100").method["name"] == "fedl2g"

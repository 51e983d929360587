"""The trained models of a run predict exactly as the run's last evaluation, also after an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trained.trained_runs import RESNETS, accuracies, run

import polyfed
from polyfed.data.dataset import from_arrays
from polyfed.errors import InputError
from polyfed.trained.model_folder import PREDICTOR, read_model, write_model
from polyfed.trained.run_models import RunModels

# one or more methods for each way to predict
METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "lg-fedavg": {},
    "fedproto": {},  # distances to prototypes
    "fedtgp": {},  # evaluated while the server trains
    "fedktl-lite": {},  # cosines
    "pfedafm": {},  # features mixed with those of a second extractor
    "ccvr": {},  # calibrated after the last round
    "fedvtc": {"models": {"group": "tiny4", "feature_dim": 32}},  # fine-tuned after the last round
    "fedlatent": {"models": {"group": "tiny4", "feature_dim": 32}},
    "fedavg": {"models": {"group": ["tiny-resnet"]}},  # the server's model
    "per-fedavg": {"models": {"group": ["tiny-resnet"]}},  # the server's model, adapted to the client
    "scaffold": {"models": RESNETS, "splitting": "width"},  # sub-models
    "heterofl": {"models": RESNETS},
    "fedrolex": {"models": RESNETS},
    "inclusivefl": {"models": {"group": ["tiny-resnet10", "tiny-resnet18"]}},
    "scalefl": {"models": {"group": ["tiny-resnet-wide@0.5:2", "tiny-resnet-wide:2-4-6"]}},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "ccvr": {"tukey": 0.5, "virtual": 20},
    "fedvtc": {"samples_per_class": 10, "finetune_epochs": 1},
    "fedlatent": {"samples_per_class": 20},
}


@pytest.mark.parametrize("method", METHODS)
def test_models_of_a_run_have_the_accuracies_of_its_result(method: str, tmp_path: Path) -> None:
    result = run(tmp_path / "run", {"name": method, **OPTIONS.get(method, {})}, **METHODS[method])
    models = RunModels(tmp_path / "run")
    loaded = {name: models.load(name) for name in models.numbers}
    expected = {kind: result["accuracy"][kind]["by_client"] for kind in ("personal", "global")}
    assert accuracies(models, loaded) == expected
    for name, trained in loaded.items():
        write_model(trained, tmp_path / "exported" / name)
    exported = {name: read_model(tmp_path / "exported" / name) for name in loaded}
    assert accuracies(models, exported) == expected
    samples = models.federation.global_test
    assert samples is not None
    for name, trained in loaded.items():
        assert torch.equal(trained.scores(samples.inputs), exported[name].scores(samples.inputs))


def test_a_loaded_client(tmp_path: Path) -> None:
    run(tmp_path / "run", "fedproto", names=["a", "b", "c", "d"])
    trained = polyfed.load_client(tmp_path / "run", 1)
    assert (trained.name, trained.architecture) == ("b", "tiny-resnet")
    assert trained.classes == tuple(str(label) for label in range(10))
    assert isinstance(trained.model, torch.nn.Module) and not trained.model.training
    x = np.random.default_rng(0).integers(0, 256, (7, 8, 8), dtype=np.uint8)
    labels, probabilities = trained.predict(x), trained.predict_proba(torch.from_numpy(x))
    assert isinstance(labels, np.ndarray) and labels.shape == (7,)
    assert isinstance(probabilities, torch.Tensor)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(7))
    assert np.array_equal(probabilities.argmax(1), labels)
    # the rule that the documentation states: nearest prototype, in the features of `model`
    table = trained.client.memory.table("prototypes")
    with torch.no_grad():
        features = trained.model.features(torch.from_numpy(x).unsqueeze(1) / 255)
    nearest = table.classes[torch.cdist(features, table.values).argmin(1)]
    assert np.array_equal(nearest, labels)
    assert np.array_equal(polyfed.load_client(tmp_path / "run", "b").predict(x), labels)


def test_prototypes_are_exported_and_the_rest_of_the_state_is_not(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run(tmp_path / "run", "fedproto", participation=1.0)
    trained = polyfed.load_client(tmp_path / "run", 0)
    trained.client.state["private"] = torch.ones(3)
    write_model(trained, tmp_path / "exported")
    content = load_file(tmp_path / "exported" / PREDICTOR)
    assert sorted(content) == ["prototypes", "prototypes#classes"]
    assert torch.equal(content["prototypes"], trained.client.memory.table("prototypes").values)
    weights = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in trained.model.state_dict().items())


@pytest.mark.parametrize("kind", ["numbers", "tokens"])
def test_numbers_and_tokens(kind: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.choice(["high", "low", "mid"], 200)
    x: np.ndarray[Any, Any]
    if kind == "numbers":
        x = generator.normal(size=(200, 6)).astype(np.float32)
        data = from_arrays("sensor", x, labels)
        group = "tabular4"
    else:
        x = generator.integers(0, 50, (200, 12))
        data = from_arrays("words", x, labels, vocabulary=50)
        group = "text4"
    result = run(tmp_path / "run", "local", data=data, models={"group": group})
    models = RunModels(tmp_path / "run")
    loaded = {name: models.load(name) for name in models.numbers}
    for name, trained in loaded.items():
        assert trained.classes == ("high", "low", "mid")
        test = models.federation.make_client(name).test
        predicted = trained.predict(test.inputs.numpy())
        accuracy = int((predicted == test.labels.numpy()).sum()) / len(test)
        assert accuracy == result["accuracy"]["personal"]["by_client"][int(name)]
    if kind == "numbers":  # pixels from 0 to 255 are not the numbers that the model was trained on
        with pytest.raises(InputError, match="are pictures of type uint8; the model was trained on numbers"):
            loaded["0"].predict(np.zeros((2, 2, 3), np.uint8))


def test_wrong_samples_and_wrong_clients_are_one_sentence(tmp_path: Path) -> None:
    run(tmp_path / "run", "local")
    trained = polyfed.load_client(tmp_path / "run", 0)
    with pytest.raises(InputError, match=r"type float64; the model was trained on pictures of type uint8"):
        trained.predict(np.zeros((2, 8, 8)))
    with pytest.raises(InputError, match=r"have shape 1x9x8; the model was trained on 1x8x8"):
        trained.predict(np.zeros((2, 9, 8), np.uint8))
    with pytest.raises(InputError, match=r"no client '4' in .*known: 0, 1, 2, 3"):
        polyfed.load_client(tmp_path / "run", 4)
    with pytest.raises(InputError, match=r"holds the models of 4 clients \(0, 1, 2, 3\); say which one"):
        polyfed.load_client(tmp_path / "run")
    with pytest.raises(InputError, match="neither a run folder nor a folder that polyfed export wrote"):
        polyfed.load_client(tmp_path, 0)


def test_an_unfinished_run_has_no_trained_models(tmp_path: Path) -> None:
    run(tmp_path / "run", "local")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(InputError, match="has not finished; resume it first: polyfed resume"):
        polyfed.load_client(tmp_path / "run", 0)

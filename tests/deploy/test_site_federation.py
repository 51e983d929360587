"""Sites with their own data and models, and a coordinator that knows only their offers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyfed.config import Config, parse
from polyfed.core.client_host import Host
from polyfed.core.engine import Answer, Call, Task
from polyfed.data.site_data import load_own
from polyfed.deploy.agreement import agreed_data
from polyfed.deploy.offers import Offer
from polyfed.deploy.remote_federation import RemoteFederation
from polyfed.deploy.site_federation import SiteFederation, load_site
from polyfed.errors import InputError
from polyfed.experiment import Experiment, versions
from polyfed.runs.folder import RunFolder
from polyfed.runs.state_store import FolderStore

CLASSES = ["ant", "bee", "cat"]
OWN_MODEL = """
from torch import nn

def build(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))
"""


def config(**keys: Any) -> Config:
    return parse(
        {
            "method": {"name": "fedproto"},
            "data": {"dataset": "sites", "shape": [1, 8, 8], "class_names": CLASSES},
            "clients": 2,
            "names": ["east", "west"],
            "rounds": 2,
            **keys,
        }
    )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "cache"))


def image_folder(folder: Path, classes: Sequence[str]) -> Path:
    """Write an image folder. The class of an image is the position of a bright row."""
    for name in classes:
        (folder / "train" / name).mkdir(parents=True)
        for k in range(8):
            pixels = np.full((8, 8), 10 * k, np.uint8)
            pixels[CLASSES.index(name)] = 255
            Image.fromarray(pixels).save(folder / "train" / name / f"{k}.png")
    return folder


def array_folder(folder: Path, labels: Sequence[int]) -> Path:
    folder.mkdir(parents=True)
    x = np.zeros((len(labels), 8, 8), np.uint8)
    for k, label in enumerate(labels):
        x[k, label] = 255 - k
    np.savez(folder / "train.npz", x=x, y=np.array(labels))
    return folder


@dataclass
class SeparateHosts:
    """An engine with one host for each site."""

    hosts: dict[str, Host]
    concurrent = False
    evaluates_after_steps = False
    trusted = False

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        for task in tasks:
            yield self.hosts[task.client].handle(call, task, shared)

    def peak_memory(self) -> int:
        return 0

    def close(self) -> None: ...


def test_classes_of_folders_are_matched_by_name(tmp_path: Path) -> None:
    data = load_own(image_folder(tmp_path / "p", ["cat", "bee"]), shape=(1, 8, 8), class_names=tuple(CLASSES))
    assert data.classes == 3 and data.class_names == tuple(CLASSES)
    assert sorted(set(data.train.labels.tolist())) == [1, 2]  # bee and cat, as all sites count them
    bright = data.train.inputs[:, 0, :, 0].argmax(dim=1)  # the bright row is the class's place in the list
    assert torch.equal(bright[data.train.inputs[:, 0, :, 0].amax(dim=1) == 255], data.train.labels)


def test_labels_without_names_are_indices_of_the_class_names(tmp_path: Path) -> None:
    data = load_own(array_folder(tmp_path / "a", [0, 2, 2]), shape=(1, 8, 8), class_names=tuple(CLASSES))
    assert data.train.labels.tolist() == [0, 2, 2] and data.classes == 3


def test_other_class_names_give_other_labels(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "p", ["cat"])
    assert set(load_own(folder, shape=(1, 8, 8), class_names=("ant", "cat")).train.labels.tolist()) == {1}
    assert set(load_own(folder, shape=(1, 8, 8), class_names=("cat", "ant")).train.labels.tolist()) == {0}


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda folder: folder / "nothing", (1, 8, 8), "data folder .* does not exist"),
        (lambda folder: image_folder(folder / "p", CLASSES[:1]).parent, (1, 8, 8), "no data was found in"),
        (
            lambda folder: array_folder(folder / "a", [0, 1]),
            (1, 9, 9),
            "have shape 1x8x8, but this federation uses 1x9x9",
        ),
        (lambda folder: array_folder(folder / "a", [0, 7]), (1, 8, 8), "found label 7; with 3 classes"),
    ],
)
def test_data_that_do_not_match_are_refused(tmp_path: Path, make: Any, shape: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_own(make(tmp_path), shape=shape, class_names=tuple(CLASSES))


def test_an_unknown_class_is_refused_by_name(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "p", ["ant"])
    (folder / "train" / "ant").rename(folder / "train" / "amt")
    with pytest.raises(InputError, match=r"has the class 'amt', which this federation does not have.*ant"):
        load_own(folder, shape=(1, 8, 8), class_names=tuple(CLASSES))


def two_sites(tmp_path: Path, chosen: Config) -> dict[str, SiteFederation]:
    (tmp_path / "net.py").write_text(OWN_MODEL)
    return {
        "east": load_site(chosen, "east", image_folder(tmp_path / "p", ["ant", "cat"]), "tiny-cnn"),
        "west": load_site(
            chosen, "west", array_folder(tmp_path / "a", [0, 1, 1, 2, 2, 0, 1, 2]), str(tmp_path / "net.py")
        ),
    }


def test_an_offer_is_unchanged_after_transport(tmp_path: Path) -> None:
    for site in two_sites(tmp_path, config()).values():
        offer = site.offer()
        assert Offer.from_json(json.loads(json.dumps(offer.to_json()))) == offer


@pytest.mark.parametrize("damage", [{"profile": {}}, {"train": 3}, {"profile": None}])
def test_an_unreadable_offer_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    offer = two_sites(tmp_path, config())["east"].offer().to_json()
    with pytest.raises(InputError, match="the offer of a site is not readable"):
        Offer.from_json({**offer, **damage})


def test_a_run_over_sites_that_keep_their_data(tmp_path: Path) -> None:
    chosen = config()
    sites = two_sites(tmp_path, chosen)
    plan = RemoteFederation(chosen, {name: site.offer() for name, site in sites.items()})
    hosts = {n: Host(site, FolderStore(tmp_path / n), 1 << 30, 1 << 30) for n, site in sites.items()}
    folder = RunFolder(tmp_path / "run")
    folder.create({**chosen.to_dict(), "name": "run", "versions": versions()})
    result = Experiment(plan, folder, engine=SeparateHosts(hosts)).run()
    assert result["failures"] == []
    assert result["bytes"]["up"] > 0 and result["accuracy"]["personal"] is not None
    assert result["accuracy"]["global"] is None  # there is no common test set
    assert not (tmp_path / "run" / "checkpoint" / "clients").exists()  # states stay at the sites
    assert list((tmp_path / "east").iterdir())
    metadata = json.loads(folder.clients_file.read_text())
    assert [c["model"] for c in metadata["clients"]] == ["tiny-cnn", "Sequential"]


def test_a_server_model_needs_models_that_the_server_can_build(tmp_path: Path) -> None:
    chosen = config(method={"name": "fedavg"}, splitting="architecture")
    offers = {name: site.offer() for name, site in two_sites(tmp_path, chosen).items()}
    plan = RemoteFederation(chosen, offers)
    with pytest.raises(InputError, match="site west has a model that only it can build"):
        plan.check(plan.profiles())


def test_names_determine_the_clients_and_their_order() -> None:
    named = config()
    assert named.client_names == ("east", "west")
    with pytest.raises(InputError, match="names has 1 entries for 2 clients"):
        config(names=["east"])
    with pytest.raises(InputError, match="two clients have the same name"):
        config(names=["east", "east"])
    with pytest.raises(InputError, match="does not consist of"):
        config(names=["east", "../west"])


@pytest.mark.parametrize("shape", [[1, 8, 9], [1, 8, 0], [0]])
def test_invalid_shapes_are_refused(shape: list[int]) -> None:
    data = {"dataset": "sites", "shape": shape, "class_names": CLASSES}
    with pytest.raises(InputError, match="images need channels, height and width of a square"):
        agreed_data(config(data=data))


def test_samples_need_not_be_images() -> None:
    data = {"dataset": "sites", "shape": [64], "class_names": CLASSES}
    assert agreed_data(config(data=data)) == ((64,), tuple(CLASSES))

"""Runs with protected fields: contents of messages on every engine, and after a resume."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.cli.app import main
from polyfed.config import Config
from polyfed.core import (
    Client,
    Cohort,
    Method,
    Payload,
    Reply,
    ScalarField,
    Sends,
    Server,
    TableField,
    TensorField,
    WeightsField,
    register,
    rng,
    step,
)
from polyfed.core.client import weights_of
from polyfed.core.codec import decode
from polyfed.errors import InputError, PolyfedError
from polyfed.federation.simulation import SimulatedFederation
from polyfed.guards import accountant
from polyfed.guards.clipping import clip_rows
from polyfed.guards.sensitivity import measured_sensitivity
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import RoundRecord
from polyfed.testing.toy_federation import ToyFederation
from polyfed.training.samples import model_inputs


@register("toy-telling")
@dataclass(frozen=True)
class Telling(Method):
    """Sends a client's data every round without training, so that the clean values are known."""

    sends = Sends(up="everything", down="nothing")
    needs = replace(Method.needs, same_architecture=True)
    twice: bool = False

    def round(self, server: Server, cohort: Cohort) -> None:
        for _ in range(1 + self.twice):
            cohort.call(self.tell, shared={"model": weights_of(server.build(server.roster[0].spec))})

    @step(
        down={"model": WeightsField()},
        up={
            "embeddings": TensorField(("samples", "features"), by_sample=True),
            "means": TableField("features", counts=True, by_sample=True),
            "model": WeightsField(),
            "samples": ScalarField(),
        },
    )
    def tell(self, client: Client, msg: Payload) -> Reply:
        with torch.no_grad():
            embeddings = torch.cat([client.model.features(x) for x, _ in client.clean_pass()])
        means = client.class_means(client.model.features, client.profile.features)
        told = weights_of(client.model)
        return {"embeddings": embeddings, "means": means, "model": told, "samples": len(client.train)}


FIELDS = ("embeddings", "means", "model")
NOISE = {"clip": 0.5, "noise": 1.5}
ASKED: dict[str, dict[str, Any]] = dict.fromkeys(FIELDS, NOISE)


@pytest.fixture(scope="module")
def toy() -> Iterator[ToyFederation]:
    with ToyFederation(Telling, {}) as made:
        yield made


def run(toy: ToyFederation, privacy: dict[str, Any] | None, **changed: Any) -> tuple[RunFolder, dict[str, Any]]:
    folder = toy.new_folder()
    settings = toy.settings(privacy=privacy, evaluate={"record_uploads": [0, "3"], "every": 2}, **changed)
    return RunFolder(folder), toy.experiment(settings, folder)


def frames(folder: RunFolder, client: str) -> list[bytes]:
    return [path.read_bytes() for path in folder.uploads(client)]


@cache
def victim(toy: ToyFederation, name: str) -> Client:
    """Return a client with its initial model, which never changes."""
    config: Config = toy.config()
    federation: SimulatedFederation = toy.federation(config)
    return federation.make_client(name)


def clean(toy: ToyFederation, name: str) -> Tensor:
    client = victim(toy, name)
    with torch.no_grad():
        return torch.cat([client.model.features(x) for x, _ in client.clean_pass()])


def held(toy: ToyFederation, name: str) -> list[bytes]:
    """Return the byte patterns that must not be sent: every row, mean and weight."""
    client = victim(toy, name)
    means = client.class_means(client.model.features, client.profile.features)
    pieces = [*clean(toy, name), *means.values, *(w for w in weights_of(client.model).values() if w.numel() > 4)]
    return [piece.contiguous().numpy().tobytes() for piece in pieces]


@pytest.fixture(scope="module")
def guarded(toy: ToyFederation) -> tuple[RunFolder, dict[str, Any]]:
    return run(toy, ASKED)


def test_without_privacy_messages_contain_the_data(toy: ToyFederation) -> None:
    """The patterns that the next test searches for are found without privacy."""
    folder, result = run(toy, None)
    assert "privacy" not in result
    for name in ("0", "3"):
        assert len(frames(folder, name)) == 2
        assert all(piece in frame for frame in frames(folder, name) for piece in held(toy, name))
    assert frames(folder, "1") == []


def test_a_protected_field_is_never_sent_without_noise(
    toy: ToyFederation, guarded: tuple[RunFolder, dict[str, Any]]
) -> None:
    folder, result = guarded
    assert result["failures"] == []
    for name in ("0", "3"):
        assert len(frames(folder, name)) == 2
        assert not any(piece in frame for frame in frames(folder, name) for piece in held(toy, name))
    first, second = (decode(frame) for frame in frames(folder, "0"))
    assert not bool((first.tensor("embeddings") == second.tensor("embeddings")).any())  # a round, a noise


def test_the_bytes_are_the_same_on_the_pool(toy: ToyFederation, guarded: tuple[RunFolder, dict[str, Any]]) -> None:
    folder, result = run(toy, ASKED, engine={"name": "pool", "workers": 2})
    assert result["state_hash"] == guarded[1]["state_hash"] and result["privacy"] == guarded[1]["privacy"]
    for name in ("0", "3"):
        assert frames(folder, name) == frames(guarded[0], name)


def test_the_noise_has_the_right_standard_deviation(
    toy: ToyFederation, guarded: tuple[RunFolder, dict[str, Any]]
) -> None:
    """Rows are clipped to 0.5: the sensitivity is 1 and the standard deviation 1.5. The model is one row."""
    rows, weights = [], []
    for name in ("0", "3"):
        for frame in frames(guarded[0], name):
            left = decode(frame)
            rows.append(left.tensor("embeddings").double() - clip_rows(clean(toy, name).double(), 0.5))
            own = weights_of(victim(toy, name).model)
            sent, tensors = left.weights("model"), [n for n, w in own.items() if w.is_floating_point()]
            kept = [n for n in tensors if not n.endswith("running_var")]  # those are cut at 0 after the noise
            norm = torch.cat([own[n].double().flatten() for n in tensors]).norm()
            assert norm > 0.5
            weights += [(sent[n].double() - own[n].double() * 0.5 / norm).flatten() for n in kept]
            assert all(bool((sent[n] >= 0).all()) for n in tensors if n.endswith("running_var"))
    for noise in (torch.cat(rows).flatten(), torch.cat(weights)):
        spread = 1.5 / (2 * len(noise)) ** 0.5  # the deviation of a deviation
        assert abs(float(noise.std()) - 1.5) < 4 * spread
        assert abs(float(noise.mean())) < 4 * 1.5 / len(noise) ** 0.5


def test_the_result_contains_the_privacy_cost(guarded: tuple[RunFolder, dict[str, Any]]) -> None:
    privacy = guarded[1]["privacy"]
    together = accountant.epsilon([(1.5, 2)] * 3, 1e-5)
    assert set(privacy["clients"]) == {"0", "1", "2", "3", "4"}
    for spent in privacy["clients"].values():
        assert spent["epsilon"] == pytest.approx(together) and spent["delta"] == 1e-5
        assert spent["releases"] == dict.fromkeys(FIELDS, 2)
    alone = accountant.epsilon([(1.5, 2)], 1e-5)
    assert all(privacy["fields"][name]["epsilon"] == pytest.approx(alone) for name in FIELDS)
    assert privacy["unprotected"] == ["samples"] and privacy["no_guarantee"] == []


def test_inspect_shows_what_is_protected(
    guarded: tuple[RunFolder, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(guarded[0].path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "clipped to norm 0.5 and noise of 1.5 times the sensitivity" in shown
    assert "Not protected: samples." in shown and "all protected fields together: epsilon" in shown
    assert (
        "'model' alone: epsilon" in shown
        and "any change of the client's data that does not alter what is sent without noise: how many b" in shown
    )
    assert "which classes have a row, and how many samples are behind it" in shown


class KilledError(Exception):
    """Ends a run in the middle."""


@dataclass
class Killing:
    """An observer that ends the run after a round."""

    after: int

    def started(self, config: Config, folder: Path, done: int) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        if record.round == self.after:
            raise KilledError

    def note(self, sentence: str) -> None: ...


def test_a_resumed_run_adds_no_noise_or_cost_twice(
    toy: ToyFederation, guarded: tuple[RunFolder, dict[str, Any]]
) -> None:
    folder = RunFolder(toy.new_folder())
    settings = toy.settings(privacy=ASKED, evaluate={"record_uploads": [0, "3"], "every": 2})
    with pytest.raises(KilledError):
        toy.experiment(settings, folder.path, observers=[Killing(1)])
    before = frames(folder, "0")
    assert before == frames(guarded[0], "0")[:1]
    result = toy.experiment(settings, folder.path)  # round 1 is done again: there was no checkpoint
    assert frames(folder, "0") == frames(guarded[0], "0")
    assert result["privacy"] == guarded[1]["privacy"] and result["state_hash"] == guarded[1]["state_hash"]


def test_epsilon_with_partial_participation(toy: ToyFederation) -> None:
    asked = {"embeddings": {"clip": 1.0, "epsilon": 2.0, "delta": 1e-4}}
    _, result = run(toy, asked, rounds=4, participation=0.6)
    privacy = result["privacy"]
    releases = [spent["releases"]["embeddings"] for spent in privacy["clients"].values()]
    assert sum(releases) == 12 and privacy["fields"]["embeddings"]["planned_releases"] == max(releases)
    assert privacy["fields"]["embeddings"]["epsilon"] == pytest.approx(2.0, abs=1e-6)
    assert privacy["no_epsilon"] == "'means' depends on single samples and was uploaded without protection"
    assert all(spent["epsilon"] is None for spent in privacy["clients"].values())


def test_no_release_beyond_the_limit(toy: ToyFederation) -> None:
    """A step that runs twice a round is refused, unless `releases` is set."""
    asked = {"embeddings": {"clip": 1.0, "epsilon": 2.0}}
    with ToyFederation(Telling, {"twice": True}) as other:
        with pytest.raises(PolyfedError, match=r"set privacy\.embeddings\.releases to how often"):
            run(other, asked)
        _, result = run(other, {"embeddings": {**asked["embeddings"], "releases": 4}})
        assert result["privacy"]["fields"]["embeddings"]["epsilon"] == pytest.approx(2.0, abs=1e-6)
        with pytest.raises(PolyfedError, match=r"\(3 times\)"):
            run(other, {"embeddings": {**asked["embeddings"], "releases": 3}})


def test_means_of_clipped_samples(toy: ToyFederation) -> None:
    folder, result = run(toy, {"means": {"clip": 0.5, "noise": 0.01, "min_count": 5}})
    assert result["privacy"]["fields"]["means"]["sensitivity"] == pytest.approx(0.2)
    left = decode(frames(folder, "0")[0]).table("means")
    assert left.classes.tolist() == [0] and left.counted().tolist() == [6]  # class 1 has 4 samples
    own = victim(toy, "0")
    clipped = clip_rows(clean(toy, "0")[own.train.labels == 0].double(), 0.5).mean(0)
    noise = left.values[0].double() - clipped
    assert 0 < float(noise.abs().max()) < 6 * 0.002  # 0.01 x 2 x 0.5 / 5


def test_min_count_is_refused_without_clipped_samples() -> None:
    from polyfed.methods.fedproto import FedProto

    with (
        ToyFederation(FedProto, {"collect": "online"}) as other,
        pytest.raises(PolyfedError, match="min_count needs class means"),
    ):
        other.experiment(other.settings(privacy={"prototypes": {"clip": 1.0, "noise": 1.0, "min_count": 2}}))


def test_an_update_is_clipped_relative_to_the_received_model(toy: ToyFederation) -> None:
    """The client's model differs from the one that was sent. The difference is clipped."""
    folder, _ = run(toy, {"model": {"clip": 0.5, "noise": 1e-9, "relative_to": "model"}})
    left = decode(frames(folder, "3")[0]).weights("model")
    federation = toy.federation(toy.config())
    sent = weights_of(federation.common_model(federation.specs[0].text))
    moved = torch.cat([(left[n] - sent[n]).double().flatten() for n in sent if sent[n].is_floating_point()])
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-3)


def test_measured_sensitivity_is_labelled_as_no_guarantee(
    toy: ToyFederation, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, result = run(toy, {"embeddings": {"epsilon": 1.0, "sensitivity": "measured"}})
    privacy = result["privacy"]
    assert privacy["no_guarantee"] == ["embeddings"] and privacy["fields"]["embeddings"]["epsilon"] is None
    assert all(spent["epsilon"] is None for spent in privacy["clients"].values())
    noise = decode(frames(folder, "0")[0]).tensor("embeddings") - clean(toy, "0")
    own = victim(toy, "0")
    own.round = 1
    deviation = 4.8448 * measured_sensitivity(own, "embeddings", noise.shape[1], "tell")  # sqrt(2 ln(1.25e5))
    assert abs(float(noise.std()) / deviation - 1) < 4 / (2 * noise.numel()) ** 0.5
    assert main(["inspect", str(folder.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no guarantee" in shown and "(a heuristic), not bounded" in shown and "Privacy spent" not in shown


def test_the_measured_sensitivity_of_a_sum_of_pixels(toy: ToyFederation) -> None:
    """A feature of 3 times the sum of all pixels changes by 3 |new - old| if one pixel changes."""
    own = toy.federation(toy.config()).make_client("0")

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            total = 3 * x.sum((1, 2, 3))[:, None]
            return total.expand(-1, own.profile.features) / math.sqrt(own.profile.features)

    own.model.backbone = Sum()
    own.train = replace(own.train, inputs=torch.zeros_like(own.train.inputs))
    black = model_inputs(own.train.inputs[:1]).min()
    drawn = rng.generator(own.seed, "sensitivity", "embeddings", own.name, own.round, "tell")
    (x, _), *rest = own.clean_pass()
    assert not rest
    for extent in x.shape[2:]:
        torch.randint(extent, (len(x),), generator=drawn)  # where the pixel is
    farthest = 3 * float((torch.rand(len(x), 1, generator=drawn) - black).abs().max())
    found = measured_sensitivity(own, "embeddings", own.profile.features, "tell")
    assert found == pytest.approx(farthest, rel=1e-4)


def test_probes_are_refused_with_privacy(toy: ToyFederation) -> None:
    for look in ("cka", "features"):
        with pytest.raises(InputError, match=f"evaluate.{look} is true and privacy is set"):
            toy.experiment(toy.settings(privacy=ASKED, evaluate={look: True}))


def test_unknown_fields_are_refused_before_anything_is_written(toy: ToyFederation) -> None:
    folder = toy.new_folder()
    with pytest.raises(InputError, match="sends no field 'embedings'; did you mean 'embeddings'"):
        toy.experiment(toy.settings(privacy={"embedings": NOISE}), folder)
    with pytest.raises(InputError, match="names client '7', which does not exist"):
        toy.experiment(toy.settings(evaluate={"record_uploads": [7]}), folder)
    assert not folder.exists()


def test_secret_and_value_change_the_noise(toy: ToyFederation) -> None:
    from polyfed.core.engine import Call
    from polyfed.guards.privacy import PrivacyGuard

    guard = toy.federation(toy.config(privacy={"embeddings": NOISE})).guard
    assert guard is not None
    client, call, nothing = victim(toy, "0"), Call(1, 1, ("tell",), ("tell",)), Payload()
    value = torch.full((2, 64), 0.01)

    def noise(of: PrivacyGuard, x: Tensor) -> Tensor:
        made, released = of.protect(client, call, {"embeddings": x}, nothing, {})
        assert list(released) == ["embeddings"] and len(released["embeddings"]) == 1
        return Payload(made).tensor("embeddings") - x

    first = noise(guard, value)
    assert torch.equal(first, noise(guard, value))
    more = replace(guard, protections=(replace(guard.protections[0], multiplier=3.0),))
    scaled = noise(more, value) / 2  # of the same deviation as the first
    for other in (noise(replace(guard, secret="mine"), value), noise(guard, value * 1.0001), scaled):
        assert float((first - other).abs().max()) > 0.1

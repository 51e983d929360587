"""Methods with one server model and clients that hold parts of it, and their message sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from polyfed import catalogue
from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.models import ModelSpec, build
from polyfed.models.slicing import cut_specs, extract
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

STAGES: dict[str, Any] = {"splitting": "stage", "models": {"group": "tiny-resnets"}}
WIDTHS: dict[str, Any] = {"splitting": "width", "models": {"group": ["tiny-resnet@0.5", "tiny-resnet"]}}
APART: dict[str, Any] = {"splitting": "architecture", "models": {"group": ["tiny-cnn", "tiny-mlp"]}}
DEPTHS: dict[str, Any] = {"splitting": "layer", "models": {"group": ["tiny-vit-2", "tiny-vit-3"]}}
METHODS = ["fedavg", "fedprox", "fednova", "scaffold", "moon", "per-fedavg"]


def test_methods_with_one_model_support_splitting() -> None:
    classes = {name: catalogue.load(name) for name in catalogue.methods()}
    assert {n for n, c in classes.items() if c.one_model and c.needs.same_architecture} == set(METHODS)


# B5, test 1: all clients at the largest level are the plain method


@pytest.mark.parametrize("method", METHODS)
def test_full_clients_equal_the_plain_method(method: str) -> None:
    with ToyFederation(catalogue.load(method), {}) as toy:
        plain = toy.run(toy.config(models={"group": ["tiny-resnet"]}))
        held = toy.run(toy.config(splitting="width", models={"group": ["tiny-resnet"], "server": "tiny-resnet"}))
    assert plain.checked().hash == held.checked().hash


# every position is averaged over those who hold it (B5 test 2 is in test_scaffold.py, test 3 in test_fednova.py)


@pytest.mark.parametrize("changed", [STAGES, WIDTHS, DEPTHS], ids=["stage", "width", "layer"])
def test_positions_are_averaged_over_their_holders(changed: dict[str, Any]) -> None:
    with ToyFederation(FedAvg, {"weights": "uniform"}) as toy:
        config = toy.config(rounds=1, **changed)
        federation = toy.federation(config)
        outcome = toy.run(config).checked()
        trained = {p.name: outcome.client(p.name).weights("model") for p in federation.profiles()}
    server: Any = outcome.server["model"]
    family = federation.family
    total = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in server.items() if t.is_floating_point()}
    count = {name: torch.zeros_like(t) for name, t in total.items()}
    for profile in federation.profiles():
        for name, index in family.cut(profile.spec).items():
            if name in total:  # laid out by hand: a block of the tensor, its leading positions on every axis
                shape = tuple(slice(0, size) for size in trained[profile.name][name].shape)
                assert all(kept is None or kept.tolist() == list(range(len(kept))) for kept in index)
                total[name][shape] += trained[profile.name][name].double()
                count[name][shape] += 1
    for name, t in total.items():
        assert bool((count[name] > 0).all())
        assert torch.allclose(server[name].double(), t / count[name], rtol=1e-5, atol=1e-7), name


def test_positions_without_a_holder_do_not_change() -> None:
    with ToyFederation(FedAvg, {}) as toy:
        config = toy.config(splitting="stage", models={"group": ["tiny-resnet10"], "server": "tiny-resnet26"})
        after: Any = toy.run(config).checked().server["model"]
        federation = toy.federation(config)
        before = weights_of(federation.common_model("tiny-resnet26"))
        held = federation.family.cut(federation.specs[0].text)
    assert 0 < len(held) < len(before)
    assert all(torch.equal(after[name], t) for name, t in before.items() if name not in held)
    assert not all(torch.equal(after[name], before[name]) for name in held)


def test_equal_architectures_share_and_others_do_not() -> None:
    # clients 0, 2, 4 have one, 1 and 3 the other: what 1 and 3 do leaves the first architecture alone
    with ToyFederation(FedAvg, {}) as toy:
        config = toy.config(rounds=1, **APART)
        both = toy.run(config).checked()
        one = toy.run(config, selected=lambda number: ("0", "2", "4")).checked()
        family = toy.federation(config).family
        specs = [spec.text for spec in toy.federation(config).specs]
    a: Any = both.server["model"]
    b: Any = one.server["model"]
    mine, theirs = (family.name(spec, "") for spec in specs[:2])
    assert all(torch.equal(a[name], b[name]) for name in a if name.startswith(mine))
    assert not all(torch.equal(a[name], b[name]) for name in a if name.startswith(theirs))


# B5, test 4


def test_layer_slices_have_the_servers_features_and_stage_slices_those_of_the_first_stage() -> None:
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    observed: dict[str, list[list[list[torch.Tensor]]]] = {}
    for kind, (whole, part) in {
        "layer": ("tiny-vit-4", "tiny-vit-2"),
        "stage": ("tiny-resnet26", "tiny-resnet18"),
    }.items():
        big, small = (build(ModelSpec(name), shape=(1, 8, 8), classes=4).eval() for name in (whole, part))
        index = cut_specs(whole, part, shape=(1, 8, 8), classes=4)
        small.load_state_dict(extract(weights_of(big), index))
        observed[kind] = [_outputs(model, x) for model in (big, small)]
    deep, shallow = observed["layer"]
    assert [len(stage) for stage in deep] == [4] and [len(stage) for stage in shallow] == [2]
    assert all(torch.equal(a, b) for a, b in zip(deep[0], shallow[0], strict=False))
    deep, shallow = observed["stage"]
    assert {len(stage) for stage in deep} == {3} and {len(stage) for stage in shallow} == {2}
    assert all(torch.equal(a, b) for a, b in zip(deep[0], shallow[0], strict=False))
    assert not torch.allclose(deep[1][0], shallow[1][0])  # its input lacks the last block of stage 1


def _outputs(model: Any, x: torch.Tensor) -> list[list[torch.Tensor]]:
    """Return the output of every block, by stage."""
    from polyfed.models.slicing import block_names

    actual: dict[str, torch.Tensor] = {}
    names = block_names(model)
    for stage in names:
        for name in stage:
            model.get_submodule(name).register_forward_hook(
                lambda module, args, out, name=name: actual.__setitem__(name, out.detach())
            )
    with torch.no_grad():
        model(x)
    return [[actual[name] for name in stage] for stage in names]


# refusals, before anything runs


@pytest.mark.parametrize(
    ("method", "changed", "expected_error"),
    [
        ("fedavg", {"models": {"group": "tiny-resnets"}}, "needs one architecture"),
        ("fedavg", {**STAGES, "splitting": "width"}, "splitting is 'width', but .* is a sub-model by depth"),
        ("fedavg", {**WIDTHS, "splitting": "stage"}, "has fewer channels .* use splitting: width"),
        ("fedavg", {**STAGES, "splitting": "layer"}, "use splitting: stage"),
        ("fedavg", {**DEPTHS, "splitting": "stage"}, "has 1 stage; use splitting: layer"),
        ("fedavg", {"splitting": "stage", "models": {"group": "tiny4"}}, "is no sub-model of"),
        ("fedavg", {"splitting": "depth"}, "splitting is 'depth': expected 'none', 'layer'"),
        ("pfedla", STAGES, "PFedLA does not have one server model; use one of fedavg"),
        ("fedproto", STAGES, "FedProto does not have one server model"),
    ],
)
def test_impossible_splitting_raises_one_sentence(method: str, changed: dict[str, Any], expected_error: str) -> None:
    with ToyFederation(catalogue.load(method), {}) as toy:
        folder = toy.new_folder()
        with pytest.raises(InputError, match=expected_error) as refusal:
            toy.experiment(toy.settings(**changed), folder)
        assert not folder.exists() and "\n" not in str(refusal.value)


# AllSmall, AllLarge


@pytest.mark.parametrize(("assign", "member"), [("smallest", "tiny-resnet10"), ("largest", "tiny-resnet26")])
def test_one_member_for_all_is_fedavg_built_by_hand(assign: str, member: str) -> None:
    with ToyFederation(FedAvg, {}) as toy:
        chosen = toy.config(CLASS_COUNTS[:3], rounds=1, models={"group": "tiny-resnets", "assign": assign})
        built = toy.config(CLASS_COUNTS[:3], rounds=1, models={"group": [member]})
        federation = toy.federation(chosen)
        assert toy.run(chosen).checked().hash == toy.run(built).checked().hash
    sizes = [
        sum(p.numel() for p in build(ModelSpec(f"tiny-resnet{n}"), shape=(1, 8, 8), classes=4).parameters())
        for n in (10, 14, 18, 22, 26)
    ]
    own = sum(p.numel() for p in federation.make_client("0").model.parameters())
    assert own == (min(sizes) if assign == "smallest" else max(sizes))
    assert any("capacities are ignored" in note for note in federation.partition.notes)


# bytes (baselines, section 5)


@pytest.mark.parametrize(
    ("method", "changed"),
    [(name, {}) for name in (*METHODS, "pfedla")] + [(name, STAGES) for name in ("fedavg", "scaffold", "moon")],
    ids=lambda value: value if isinstance(value, str) else value.get("splitting", "one-model"),
)
def test_bytes_are_those_of_the_formulas(method: str, changed: dict[str, Any]) -> None:
    # theta_k both ways; SCAFFOLD's controls once more the parameters; MOON's projection d 256 + 256 + 256^2 + 256
    # numbers. Buffers of BatchNorm come on top: statistics in floats, a counter in eight bytes.
    with ToyFederation(catalogue.load(method), {}) as toy:
        config = toy.config(rounds=1, **changed)
        models = [toy.federation(config).make_client(str(k)).model for k in range(5)]
        stats = toy.run(config).checked().round_stats[0]
    state = sum(t.nbytes for model in models for t in model.state_dict().values())
    parameters = sum(p.nbytes for model in models for p in model.parameters())
    down = {"model": state}
    if method == "scaffold":
        down["control"] = parameters
    if method == "moon":
        down["projection"] = sum(4 * (model.feature_dim * 256 + 256 + 256 * 256 + 256) for model in models)
    numbers = (
        {} if method == "pfedla" else {"samples": 0} | ({"normaliser": 0, "steps": 0} if method == "fednova" else {})
    )
    assert stats.down == down
    assert stats.up == down | numbers  # a number is part of a message's frame, which is counted as overhead


# noise on uploads


@pytest.mark.parametrize("method", METHODS)
def test_noise_is_only_on_the_upload_with_the_given_level(method: str, linears: Any) -> None:
    kind: Any = catalogue.load(method)
    make = linears(pixels=60, features=60, norm=True, settings={"batch_size": 4})
    start = weights_of(make.model())
    names = [name for name, _ in make.model().named_parameters()]
    replies: list[Any] = []
    for level in (0.0, 0.5):
        client = make.client("0", [0, 0, 1, 2, 2, 1, 0, 1])
        msg = {"model": start}
        if method == "scaffold":
            msg["control"] = {name: torch.zeros_like(start[name]) for name in names}
        made: Any = kind(upload_noise=level)
        replies.append((made.train(client, Payload(msg))["model"], weights_of(client.model)))
    (clean, held_clean), (noisy, held_noisy) = replies
    assert all(torch.equal(held_clean[name], held_noisy[name]) for name in start)  # the client keeps what it trained
    assert all(torch.equal(clean[name], held_clean[name]) for name in start)
    for name in start:
        if name not in names:
            assert torch.equal(noisy[name], clean[name])  # statistics are sent as they are
    weight = "backbone.1.weight"  # 3,600 draws: their spread is within 5 % of what was asked for
    spread = (noisy[weight] - clean[weight]).std() / (clean[weight] - start[weight]).std()
    assert spread.item() == pytest.approx(0.5, rel=0.05)


def test_noise_differs_between_clients_and_rounds() -> None:
    with ToyFederation(FedAvg, {"upload_noise": 0.5}) as toy:
        noisy, again = toy.run().checked(), toy.run().checked()
        clean = toy.run(method=FedAvg()).checked()
    assert noisy.hash == again.hash != clean.hash


def test_a_shorter_server_step() -> None:
    # theta + 0.5 mean of the changes, on what is trained; statistics are averaged as ever
    with ToyFederation(FedAvg, {}) as toy:
        config = toy.config(rounds=1)
        whole: Any = toy.run(config).checked().server["model"]
        half: Any = toy.run(config, method=FedAvg(server_lr=0.5)).checked().server["model"]
        start = weights_of(toy.federation(config).common_model("tiny-resnet"))
        trained = {name for name, _ in toy.federation(config).make_client("0").model.named_parameters()}
    for name, old in start.items():
        wanted = (old + whole[name]) / 2 if name in trained else whole[name]
        assert torch.allclose(half[name].double(), wanted.double(), rtol=1e-5, atol=1e-6)


def test_a_server_model_without_holders_raises(tmp_path: Path) -> None:
    with ToyFederation(FedAvg, {}) as toy:
        settings = toy.settings(CLASS_COUNTS[:2], models={"group": ["tiny-resnet10"], "server": "tiny-resnet18"})
        with pytest.raises(InputError, match=r"models\.server is given"):
            toy.experiment(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()

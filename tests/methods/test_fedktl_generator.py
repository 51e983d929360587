"""FedKTL's generator: loaded from a user's files, the stand-ins, and the record of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from polyfed import catalogue, testing
from polyfed.core import rng
from polyfed.errors import InputError
from polyfed.methods.fedktl.method import FedKTL
from polyfed.methods.fedktl_lite import FedKTLLite
from polyfed.models.generators import RandomConvGenerator, TextureGenerator, checksum, load_generator, resized
from polyfed.testing.toy_federation import ToyFederation

SOURCE = """
import torch
from torch import nn

class Small(nn.Module):
    latent_width = 6

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3 * 10 * 10)

    def forward(self, latents):
        return torch.sigmoid(self.layer(latents)).reshape(-1, 3, 10, 10)

    def draw(self, count, stream):
        return 0.5 + 0.1 * torch.randn(count, 6, generator=stream)

def build():
    return Small()
"""
FAST = {"server_epochs": 3}


def stream(name: str = "test") -> torch.Generator:
    return rng.generator(name)


def trained_generator(folder: Path, source: str = SOURCE, outputs: int = 300) -> dict[str, Any]:
    """Write the two files of a generator to a folder, and return the options of a method that uses it."""
    (folder / "small.py").write_text(source)
    weights = {
        "layer.weight": torch.randn(outputs, 6, generator=stream("w")),
        "layer.bias": torch.zeros(outputs),
    }
    safetensors.torch.save_file(weights, folder / "small.safetensors")
    return {
        "source": str(folder / "small.py"),
        "checkpoint": str(folder / "small.safetensors"),
        "sha256": checksum(folder / "small.safetensors"),
        "pretraining": "noise, for a test",
        "latent_width": 6,
    }


# generators


@pytest.mark.parametrize("kind", [RandomConvGenerator, TextureGenerator])
def test_stand_ins_generate_different_images_for_different_latents(kind: Any) -> None:
    with rng.seeded("one"):
        generator = kind(64)
    latents = torch.randn(6, 64, generator=stream())
    with torch.no_grad():
        images = generator(latents)
    assert images.shape == (6, 3, 32, 32)
    assert float(images.min()) >= 0 and float(images.max()) <= 1
    distances = (images[:, None] - images[None]).abs().mean((2, 3, 4))
    assert float(distances[~torch.eye(6, dtype=torch.bool)].min()) > 0.02
    assert float(images.std()) > 0.05


def test_images_are_resized_and_converted_to_grey() -> None:
    images = torch.rand(2, 3, 8, 8, generator=stream())
    assert torch.equal(resized(images, (3, 8, 8)), images)
    assert torch.allclose(resized(images, (1, 8, 8)), images.mean(1, keepdim=True))
    halved = resized(torch.full((1, 1, 8, 8), 0.25), (3, 4, 4))
    assert torch.allclose(halved, torch.full((1, 3, 4, 4), 0.25))


def test_a_loaded_generator_has_the_weights_of_its_file_and_is_frozen(tmp_path: Path) -> None:
    fields = trained_generator(tmp_path)
    generator = load_generator(fields["source"], fields["checkpoint"], latent_width=6, sha256=fields["sha256"])
    stored = safetensors.torch.load_file(fields["checkpoint"])
    assert all(torch.equal(tensor, stored[name]) for name, tensor in generator.state_dict().items())
    assert not generator.training
    assert not any(p.requires_grad for p in generator.parameters())
    latents = torch.ones(2, 6, requires_grad=True)
    assert generator(latents.detach()).grad_fn is None  # no loss has a gradient for it


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("", {"source": "missing.py"}, r"^method.source is '.*missing.py', but there is no such file$"),
    ("", {"checkpoint": "missing.safetensors"}, r"^method.checkpoint is .* but there is no such file$"),
    ("", {"sha256": "ab" * 32}, r"^method.sha256 is 'abab.*', but small.safetensors has [0-9a-f]{64}$"),
    ("", {"latent_width": 7}, r"^method.latent_width is 7, but latent_width of small.py's generator is 6$"),
    ("x = 1", {}, r"^method.source 'small.py' has no function build\(\)"),
    ("def build():\n    return 3", {}, r"returned a int; expected a torch.nn.Module$"),
    ("def build():\n    return 1 / 0", {}, r"^method.source 'small.py' fails with ZeroDivisionError"),
    (
        SOURCE.replace("3 * 10 * 10", "100"),
        {},
        r"^method.checkpoint 'small.safetensors' does not fit small.py: .*size",
    ),
    (SOURCE.replace("torch.sigmoid", "10 * "), {}, r"returned pixels from -?[\d.]+ to [\d.]+; expected 0 to 1$"),
    (SOURCE.replace("-1, 3, 10, 10", "-1, 300"), {}, r"returned \(2, 300\) for two latents"),
]


@pytest.mark.parametrize(("source", "changed", "message"), WRONG)
def test_a_wrong_generator_is_rejected_in_one_sentence(
    tmp_path: Path, source: str, changed: dict[str, Any], message: str
) -> None:
    fields = trained_generator(tmp_path, source or SOURCE) | changed
    if source:
        fields["sha256"] = checksum(tmp_path / "small.safetensors")
    with ToyFederation(FedKTL, fields) as toy, pytest.raises(InputError, match=message):
        toy.run()


def test_a_damaged_checkpoint_is_rejected(tmp_path: Path) -> None:
    fields = trained_generator(tmp_path)
    Path(fields["checkpoint"]).write_bytes(b"\x80\x04not safetensors")
    with pytest.raises(InputError, match=r"^method.checkpoint 'small.safetensors' does not fit small.py"):
        load_generator(fields["source"], fields["checkpoint"], latent_width=6)


@pytest.mark.parametrize("missing", ["source", "checkpoint", "sha256", "pretraining"])
def test_without_a_generator_the_error_names_fedktl_lite(tmp_path: Path, missing: str) -> None:
    fields = {k: v for k, v in trained_generator(tmp_path).items() if k != missing}
    with pytest.raises(InputError, match=rf"^method.{missing} is empty: .*; fedktl-lite runs with a stand-in"):
        catalogue.make({"name": "fedktl", **fields})
    with pytest.raises(InputError, match="fedktl-lite"):
        FedKTL()


def test_fedktl_lite_takes_a_generator_without_a_checksum(tmp_path: Path) -> None:
    fields = trained_generator(tmp_path) | {"sha256": "", "generator": "trained"}
    assert catalogue.make({"name": "fedktl-lite", **fields}) == FedKTLLite(**fields)
    with pytest.raises(InputError, match=r"^method.checkpoint is empty, but method.generator is 'trained'"):
        FedKTLLite(generator="trained", source="x.py", pretraining="y")
    textures = {"generator": "texture", "latent_width": 12}
    with (
        ToyFederation(FedKTLLite, textures) as toy,
        pytest.raises(InputError, match=r"^method.latent_width is 12; .* of 8"),
    ):
        toy.run()


def test_guidance_0_needs_allow_degenerate() -> None:
    with pytest.raises(InputError, match=r"^method.guidance is 0"):
        catalogue.make({"name": "fedktl-lite", "guidance": 0.0})
    catalogue.make({"name": "fedktl-lite", "guidance": 0.0, "allow_degenerate": True})


@pytest.mark.parametrize("name", ["fedktl", "fedktl-lite"])
def test_the_events_name_the_generator(tmp_path: Path, name: str) -> None:
    fields = FAST | (trained_generator(tmp_path) if name == "fedktl" else {"generator": "texture"})
    with ToyFederation(catalogue.load(name), fields) as toy:
        folder = toy.new_folder()
        toy.experiment(toy.settings(), folder)
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    records = [event for event in events if "faithful" in event]
    assert len(records) == 1
    assert records[0]["faithful"] is (name == "fedktl")
    if name == "fedktl":
        assert records[0]["sha256"] == fields["sha256"] and records[0]["pretraining"] == "noise, for a test"
    else:
        assert records[0]["substitution"].startswith("texture: ")
        assert "not comparable with published FedKTL numbers" in records[0]["substitution"]


# the battery

CHECKS = ["frozen_dataclass_of_json_fields", "sends_matches_messages", "invalid_messages_refused"]
CHECKS += ["global_random_state_untouched", "client_with_one_sample", "one_client", "failing_clients_tolerated"]


@pytest.mark.parametrize("check", [*CHECKS, "serial_equals_pool"])
def test_fedktl_passes_the_battery_with_a_generator(tmp_path: Path, check: str) -> None:
    testing.run_check(check, FedKTL, trained_generator(tmp_path) | FAST)


@pytest.mark.parametrize("fields", [{"generator": "texture"}, {"persist_projection": True, "min_class_count": 3}])
@pytest.mark.parametrize("check", ["independent_of_memory_budget", "client_with_one_sample"])
def test_options_of_fedktl_lite_pass_the_battery(fields: dict[str, Any], check: str) -> None:
    testing.run_check(check, FedKTLLite, fields | FAST)

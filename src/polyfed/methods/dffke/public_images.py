"""The variant on a public dataset: clients exchange outputs on its images instead of synthetic ones.

Only these outputs leave a client: no weights, no embeddings and no labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyfed.core import Client, Cohort, Payload, Server
from polyfed.data.dataset import load
from polyfed.methods.dffke.messages import Messages, subtree
from polyfed.methods.dffke.synthetic_images import SyntheticImages, TransferImages
from polyfed.methods.dffke.teachers import TeacherOutputs
from polyfed.models.generators import resized
from polyfed.training.samples import model_inputs

if TYPE_CHECKING:
    from polyfed.methods.dffke.method import DFFKE


class PublicImages:
    """The same images for every round and client."""

    def __init__(self, client: Client) -> None:
        stored = client.state.get("public")  # missing if the client never received them
        self._images = stored if isinstance(stored, Tensor) else torch.zeros(0, *client.profile.input_shape)

    def has_round(self, round_key: str) -> bool:
        return len(self._images) > 0

    def count(self, round_key: str, client: str) -> int:
        return len(self._images)

    def prepare(self, round_key: str, client: str) -> None:
        pass  # they are stored as they are used

    def images(self, round_key: str, client: str, rows: Tensor) -> Tensor:
        batch = self._images[rows].to(torch.float32, memory_format=torch.channels_last)
        return batch.mul_(1 / 255)


def sample(name: str, limit: int, stream: torch.Generator) -> Tensor:
    """Sample at most `limit` training images of a dataset, as uint8 of shape (n, C, H, W)."""
    images = load(name).train.inputs
    return images[torch.randperm(len(images), generator=stream)[:limit]].clone()


def collect_outputs(server: Server, cohort: Cohort, method: DFFKE) -> TeacherOutputs:
    """Collect the outputs of all participants on the public images, which each client is sent once."""
    images, introduced = server.memory.tensor("public"), subtree(server.state["introduced"])
    each: Messages = {name: {"public": images} for name in cohort.ids if name not in introduced}
    rows = dict.fromkeys(cohort.ids, len(images))
    turns = method.exchange_turns(rows.values())
    replies = cohort.call(method.warm_up, method.store_public, method.teach, shared={"turns": turns}, each=each)
    server.state["introduced"] = {**introduced, **dict.fromkeys(replies, True)}
    return TeacherOutputs(replies, rows, {}, turns)


def store(client: Client, msg: Payload) -> None:
    """Store the public images at a client, resized to the size of its own."""
    images = resized(model_inputs(msg.tensor("public")), client.profile.input_shape)
    client.state["public"] = (255 * images).round().to(torch.uint8)


def images_at(client: Client, method: DFFKE) -> TransferImages:
    """Return the images that a client exchanges knowledge on."""
    if method.public is not None:
        return PublicImages(client)
    return SyntheticImages.in_buffer(client, method.width, method.decoder_channels)

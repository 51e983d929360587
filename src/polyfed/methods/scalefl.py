"""ScaleFL: resource-adaptive federated learning with heterogeneous clients.

Ilhan, Su, Liu; CVPR 2023, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from polyfed.core import Client, Payload, Reply, Server, Value, register, step
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, TensorField, TreeField
from polyfed.errors import InputError
from polyfed.methods.heterofl import HeteroFL
from polyfed.models import ModelSpec
from polyfed.models.slicing import EarlyExits
from polyfed.training import Loss
from polyfed.training.losses import kl_divergence


@register("scalefl")
@dataclass(frozen=True)
class ScaleFL(HeteroFL):
    """ScaleFL: slices by width and by depth with early exits, and the last exit teaches the earlier ones.

    The level of a client is its model: `tiny-resnet-wide@0.75:2-4` has three quarters of the channels and exits after
    blocks 2 and 4. Slicing, averaging and BatchNorm follow HeteroFL; a client does not hold layers beyond its last
    exit. The last exit is detached as a teacher, the divergence is summed over classes, and its weight is not 0; the
    released code does none of these. The released code evaluates with the statistics of the test batch (`bn: batch`),
    also divides by the width rate in evaluation (`scaler: always`), and rounds widths down instead of up. A client is
    measured with the last exit of its slice of the new model; "by server model" is the whole model of the server. One
    model serves all clients, so personal accuracy is low where their classes differ.
    """

    mask_absent_classes: bool = False  # mask logits of absent classes, and do not average their classifier rows
    clip_norm: Annotated[float, Gt(0)] | None = None  # maximum gradient norm; null: train.clip_norm
    gamma: Annotated[float, Ge(0), Degenerate(0)] = 0.05  # weight of the divergence from the last exit to the others
    temperature: Annotated[float, Gt(0)] = 3.0  # T of both softmaxes
    distil_from: Annotated[float, Interval(ge=0, le=1)] = 0.25  # distillation starts after this share of the rounds
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # mean: divide by the number of classes too, as released
    allow_degenerate: bool = False  # accept gamma 0, which trains the exits without distillation

    verdict = "Slices by width and depth with early exits; good for one task for all, poor for skewed labels."
    battery_models = ("tiny-resnet-wide@0.5:2", "tiny-resnet-wide:2-4-6")

    def init(self, server: Server) -> None:
        family = server.family
        for spec in family.members if family is not None else ():
            if not isinstance(family and family.skeleton(spec), EarlyExits):
                name = ModelSpec.parse(spec).label
                raise InputError(
                    f"ScaleFL needs models with early exits, but {name} has none; name them after a colon "
                    f"({name.partition(':')[0]}:1-2 has exits after blocks 1 and 2), or use the group tiny-exits"
                )
        super().init(server)

    def announcement(self, server: Server) -> Mapping[str, Value]:
        return {"distils": server.round - 1 > self.distil_from * server.rounds}  # released: rounds count from 0

    @step(
        down={"model": TreeField(), "rate": ScalarField(least=0), "distils": ScalarField("flag")},
        up={
            "model": TreeField(like="model"),
            "samples": ScalarField(least=0, most="samples"),
            "present": TensorField(("classes",), torch.bool, optional=True),
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        return super().train(client, msg)

    def loss(self, client: Client, msg: Payload) -> Loss:
        model = client.model
        assert isinstance(model, EarlyExits)  # checked in init

        def weighted(x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, ...]:
            return self.exit_losses([self.masked(client, o) for o in model.logits(x)], y, bool(msg["distils"]))

        return weighted

    def exit_losses(self, outputs: Sequence[Tensor], y: Tensor, distils: bool) -> Tensor | tuple[Tensor, ...]:
        """Return sum_j j CE(o_j) / (E (E+1) / 2), and gamma T^2 KL(o_E || o_j) with the same weights for all but the
        last.
        """
        total = len(outputs) * (len(outputs) + 1) / 2
        early, last = list(enumerate(outputs[:-1], 1)), outputs[-1]
        task = torch.stack([j * F.cross_entropy(o, y) for j, o in enumerate(outputs, 1)]).sum() / total
        if not (distils and early):
            return task
        divergences = [j * self._divergence(last.detach(), o) for j, o in early]
        return task, self.gamma * torch.stack(divergences).sum() / total

    def _divergence(self, teacher: Tensor, output: Tensor) -> Tensor:
        return kl_divergence(teacher, output, temperature=self.temperature, reduction=self.kl_reduction)

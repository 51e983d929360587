"""FedKD: communication-efficient federated learning via knowledge distillation.

Wu, Wu, Lyu, Huang, Xie; Nature Communications 13, 2022, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Gt, Interval
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, rng, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import weights_of
from polyfed.core.schema import ScalarField, TreeField
from polyfed.methods.fedkd.low_rank import added, compressed
from polyfed.training.losses import kl_divergence
from polyfed.training.multi_module import clip_each

LEAST_SCALE = 1e-8  # of what divides the distillation losses: where nothing is left to learn it would be 0


@register("fedkd")
@dataclass(frozen=True)
class FedKD(Method):
    """FedKD: a private mentor and a small shared mentee teach each other; the mentee's updates travel compressed.

    Released implementations keep rank 0 where all singular values are needed, so that whole layers travel as zeros,
    factorise weights instead of updates and kernels over their last two axes; none of this is done here: the rank is
    the smallest that keeps the energy, a kernel is a matrix of its outputs, and what would grow is sent as it is.
    Where the mentee's features have another width the learned map M is rectangular. Clients that were in the last
    round receive the compressed update, others the whole mentee. All mentees are equal at the start of a round,
    because the server moves its own by the compressed update as well. Both models are run once per batch, in
    training mode; a last batch of one sample, which a mentee with BatchNorm cannot be trained on, trains the mentor
    alone. Attention maps, which the paper compares between transformers, are not used.
    """

    energy_start: Annotated[float, Interval(gt=0, le=1)] = 0.95  # share of squared singular values kept at first
    energy_end: Annotated[float, Interval(gt=0, le=1)] = 0.98  # the same in the last round; linear in between
    clip_norm: Annotated[float, Gt(0)] | None = 10.0  # largest gradient norm per model and M; none: train.clip_norm
    weights: Literal["uniform", "samples"] = "uniform"  # how clients count in the mean
    auxiliary: str | None = None  # architecture of the mentee; none: that of the smallest client model
    gradient_through_scale: bool = False  # as released: distillation is also lowered by raising the losses in s
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # mean: the divided divergence of a popular library

    needs = Needs()
    sends = Sends(
        up="compressed updates of the shared small model, and the number of samples",
        down="compressed updates of the shared small model, or all of it after an absence, and its architecture",
    )

    def init(self, server: Server) -> None:
        server.state["mentee"] = weights_of(server.build(self.auxiliary or server.smallest.spec))
        server.state["update"] = {}
        server.state["called"] = {}  # the last round of every client

    def round(self, server: Server, cohort: Cohort) -> None:
        before, called = server.memory.weights("mentee"), server.memory.weights("called")
        energy = self.energy(server.round / server.rounds)
        shared: Reply = {"auxiliary": self.auxiliary or server.smallest.spec, "energy": energy}
        mean = WeightedMean()
        for k, got in cohort.stream(self.train, shared=shared, each={k: self.news(server, k) for k in cohort.ids}):
            mean.add(added(before, got["update"]), got.number("samples") if self.weights == "samples" else 1.0)
            called[k] = torch.tensor(server.round)
        after = mean.result(before)  # w + mean_k of the updates
        update = compressed({name: after[name] - before[name] for name in before}, energy)
        server.state = {"mentee": added(before, update), "update": update, "called": called}

    def energy(self, progress: float) -> float:
        """T(t) = T_start + (T_end - T_start) t / T_rounds."""
        return self.energy_start + (self.energy_end - self.energy_start) * progress

    def news(self, server: Server, client: str) -> Reply:
        """The last update for those who hold what it is added to; on first contact or after an absence, all."""
        last = server.memory.weights("called").get(client)
        follows = last is not None and int(last) == server.round - 1
        return {
            "mentee": {} if follows else server.state["mentee"],
            "update": server.state["update"] if follows else {},
        }

    @step(
        down={
            "auxiliary": ScalarField("text"),
            "energy": ScalarField(),
            "mentee": TreeField(),
            "update": TreeField(),
        },
        up={"update": TreeField(), "samples": ScalarField(least=0)},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        held = msg.weights("mentee") or added(client.memory.weights("mentee"), msg["update"])
        mentor, mentee = client.model, client.build(msg.text("auxiliary"))
        client.load(held, into=mentee)
        hidden = self.hidden_map(client, mentee.feature_dim)

        def loss(x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, ...]:
            f = mentor.features(x)
            z = mentor.head(f)
            if len(y) == 1 and mentee.has_batchnorm:
                return F.cross_entropy(z, y)
            f_w = mentee.features(x)
            return self.losses(z, mentee.head(f_w), f, hidden(f_w), y)

        client.fit(
            loss,
            parameters=[p for module in (mentor, mentee, hidden) for p in module.parameters()],
            clip_norm=None,
            adjust=clip_each(self.clip_norm or client.settings.clip_norm, mentor, mentee, hidden),
        )
        client.state = {"mentee": held, "map": weights_of(hidden)}
        update = {name: tensor - held[name] for name, tensor in weights_of(mentee).items()}
        return {"update": compressed(update, msg.number("energy")), "samples": len(client.train)}

    def losses(self, z: Tensor, z_w: Tensor, f: Tensor, mapped: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Mentor: CE(z) + L_d + L_h. Mentee: CE(z_w) + L_d^w + L_h. Each model is moved by its own loss only.

        L_h = MSE(f, M f_w) / s is there once: it moves the mentor through f, the mentee and M through M f_w.
        """
        ce, ce_w = F.cross_entropy(z, y), F.cross_entropy(z_w, y)
        s = (ce + ce_w).clamp(min=LEAST_SCALE)
        s = s if self.gradient_through_scale else s.detach()
        l_d = kl_divergence(z_w.detach(), z, reduction=self.kl_reduction) / s
        l_d_w = kl_divergence(z.detach(), z_w, reduction=self.kl_reduction) / s
        return ce, ce_w, l_d, l_d_w, F.mse_loss(f, mapped) / s

    def hidden_map(self, client: Client, width: int) -> nn.Linear:
        """M: features of the mentee to the width of the mentor's. It stays with the client."""
        with rng.seeded(client.seed, "map", client.name):
            hidden = nn.Linear(width, client.model.feature_dim, bias=False)
        if "map" in client.state:
            client.load(client.memory.weights("map"), into=hidden)
        return hidden

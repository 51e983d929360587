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
from polyfed.methods.fedkd.low_rank import apply_update, compress
from polyfed.training.losses import kl_divergence
from polyfed.training.multi_module import clip_each

MIN_SCALE = 1e-8  # lower bound of the divisor of the distillation losses


@register("fedkd")
@dataclass(frozen=True)
class FedKD(Method):
    """FedKD: a private mentor and a small shared mentee teach each other; updates of the mentee are compress.

    Released implementations choose rank 0 where all singular values are needed, so that whole layers are sent as
    zeros, and factorise weights instead of updates and kernels over their last two axes. Here the rank is the
    smallest that preserves the energy, a kernel is a matrix with one row per output channel, and a tensor is sent
    uncompressed if factors would be larger. If mentor and mentee differ in feature width, the learned map M is
    rectangular. Clients that took part in the previous round receive the compressed update, other clients the whole
    mentee. All mentees are equal at the start of a round, because the server applies the compressed update as well.
    Both models run once per batch in training mode. A last batch of one sample, on which a mentee with BatchNorm
    cannot be trained, trains the mentor only. The paper also compares attention maps of transformers, which is not
    implemented. Clients are measured with their mentors. Results: docs/leaderboard.md.
    """

    energy_start: Annotated[float, Interval(gt=0, le=1)] = 0.95  # initial share of squared singular values
    energy_end: Annotated[float, Interval(gt=0, le=1)] = 0.98  # share in the last round; linear in between
    clip_norm: Annotated[float, Gt(0)] | None = 10.0  # maximum gradient norm per model and M; null: train.clip_norm
    weights: Literal["uniform", "samples"] = "uniform"  # weights of clients in the mean: equal, or by samples
    auxiliary: str | None = None  # architecture of the mentee; none: the smallest client model
    gradient_through_scale: bool = False  # as released: gradients also flow through the scale s
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # mean: also divide by the number of classes

    verdict = "Close to local training in personal accuracy; sends a compressed small model."
    needs = Needs()
    sends = Sends(
        up="compressed updates of the shared small model, and the number of samples",
        down="compressed updates of the shared small model, or all of it after an absence, and its architecture",
        kinds=("shared-model", "counts"),
    )
    averaged = ("update",)

    def init(self, server: Server) -> None:
        server.state["mentee"] = weights_of(server.build(self.auxiliary or server.smallest.spec))
        server.state["update"] = {}
        server.state["called"] = {}  # last round of every client

    def round(self, server: Server, cohort: Cohort) -> None:
        before, called = server.memory.weights("mentee"), server.memory.weights("called")
        energy = self.energy(server.round / server.rounds)
        shared: Reply = {"auxiliary": self.auxiliary or server.smallest.spec, "energy": energy}
        mean = WeightedMean(server.aggregation)
        each = {k: self.download(server, k) for k in cohort.ids}
        for k, reply in cohort.stream(self.train, shared=shared, each=each):
            weight = reply.number("samples") if self.weights == "samples" else 1.0
            mean.add(apply_update(before, reply["update"]), weight)
            called[k] = torch.tensor(server.round).to(server.device)
        after = mean.result(before)  # w + mean_k of the updates
        update = compress({name: after[name] - before[name] for name in before}, energy)
        server.state = {"mentee": apply_update(before, update), "update": update, "called": called}

    def energy(self, progress: float) -> float:
        """Return T(t) = T_start + (T_end - T_start) t / T_rounds."""
        return self.energy_start + (self.energy_end - self.energy_start) * progress

    def download(self, server: Server, client: str) -> Reply:
        """Return the last update for a client of the previous round, or the whole mentee for any other client."""
        last = server.memory.weights("called").get(client)
        up_to_date = last is not None and int(last) == server.round - 1
        return {
            "mentee": {} if up_to_date else server.state["mentee"],
            "update": server.state["update"] if up_to_date else {},
        }

    @step(
        down={
            "auxiliary": ScalarField("text"),
            "energy": ScalarField(),
            "mentee": TreeField(),
            "update": TreeField(),
        },
        up={"update": TreeField(), "samples": ScalarField(least=0, most="samples")},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        received = msg.weights("mentee") or apply_update(client.memory.weights("mentee"), msg["update"])
        mentor, mentee = client.model, client.build(msg.text("auxiliary"))
        client.load(received, into=mentee)
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
        client.state = {"mentee": received, "map": weights_of(hidden)}
        update = {name: tensor - received[name] for name, tensor in weights_of(mentee).items()}
        return {"update": compress(update, msg.number("energy")), "samples": len(client.train)}

    def losses(self, z: Tensor, z_w: Tensor, f: Tensor, mapped: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Return CE(z), CE(z_w), L_d, L_d^w and L_h. Every model is trained by its own losses only.

        L_h = MSE(f, M f_w) / s trains the mentor through f, and the mentee and M through M f_w.
        """
        ce, ce_w = F.cross_entropy(z, y), F.cross_entropy(z_w, y)
        s = (ce + ce_w).clamp(min=MIN_SCALE)
        s = s if self.gradient_through_scale else s.detach()
        l_d = kl_divergence(z_w.detach(), z, reduction=self.kl_reduction) / s
        l_d_w = kl_divergence(z.detach(), z_w, reduction=self.kl_reduction) / s
        return ce, ce_w, l_d, l_d_w, F.mse_loss(f, mapped) / s

    def hidden_map(self, client: Client, width: int) -> nn.Linear:
        """Return M, the map from features of the mentee to features of the mentor. It stays at the client."""
        with rng.seeded(client.seed, "map", client.name):
            hidden = nn.Linear(width, client.model.feature_dim, bias=False).to(client.device)
        if "map" in client.state:
            client.load(client.memory.weights("map"), into=hidden)
        return hidden

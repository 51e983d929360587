"""FedFree: breaking knowledge-sharing barriers through layer-wise alignment in heterogeneous federated learning.

Du, Xiang, Cai, Liu, Wu, Huo, Long; NeurIPS 2025, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt

from polyfed.core import (
    Client,
    Cohort,
    Method,
    Needs,
    Payload,
    Reply,
    ScalarField,
    Sends,
    Server,
    TreeField,
    register,
    step,
)
from polyfed.core.options import Degenerate
from polyfed.core.payload import Value
from polyfed.errors import InputError, PayloadError, nearest
from polyfed.methods.fedfree.layer_messages import Layers, packed, unpacked
from polyfed.methods.fedfree.layer_transfer import (
    Gathered,
    averaged,
    probe_shape,
    projected,
    shape_match,
    transferred,
    trimmed,
)
from polyfed.methods.fedfree.layers import KINDS, Layer, layers_of, most_changed, weight_entropy, with_change
from polyfed.training.batchnorm import recalibrate


@dataclass(frozen=True)
class Upload:
    """A layer that a client sent, as the server remembers it for the rest of the round."""

    client: str
    layer: Layer  # shapes only
    partner: int  # j = map(i, l), the global layer that it was absorbed into
    entropy: float


@dataclass(frozen=True)
class Gift:
    """A global layer on its way into a layer of a client."""

    upload: Upload
    source: int
    gain: float


@register("fedfree")
@dataclass(frozen=True)
class FedFree(Method):
    """FedFree: clients share the layers that changed most; each gets the global layer of most entropy gain back.

    No code is public; what the paper leaves open is a field here. The remainder of a larger layer is kept, as the
    sentence after Eq. 7 says, not zeroed as Eq. 7 does (`remainder: zero`); layers of different shapes are compared
    where they overlap; output distances are means over samples and positions, for with sums the published step size
    diverges from 100 positions on; Eq. 7 copies, so there is no adapter layer. `pseudo: expected` is Eq. 4 in closed
    form, g <- (1 - 2 alpha) g + 2 alpha mean theta: with alpha 0.01 a global layer stays near its random start for
    dozens of rounds, and entropy favours that start (random weights fill their range more evenly than trained ones).
    On the quickstart preset it ends 24 points below local training (three seeds): nine in ten layers that come down
    are the server's hardly trained head, over the clients' heads or last hidden layers, right before clients are
    evaluated. Before they come in, the same models are 5 points below local (`eval_point: after_local`, one seed).
    """

    k: Annotated[int, Ge(0), Degenerate(0)] = 2  # layers that a client sends in a round, at most
    selection: Literal["critical", "random"] = "critical"  # which: those that changed most (Eq. 2), or any
    layer_types: str = "conv,linear"  # kinds of layers that are shared: conv, linear, depthwise
    protect_head: bool = False  # classifier layers are neither sent nor replaced, nor is the server's used
    global_model: str | None = None  # the server's network; none: the client model with the fewest layers
    mapping: Literal["relative_depth", "best_shape"] = "relative_depth"  # which global layer absorbs a client's
    pair_shape: Literal["overlap", "equal"] = "overlap"  # equal: layers of another shape are not absorbed
    sharing: Literal["pseudo", "average"] = "pseudo"  # how: Eq. 3 to 5, or the mean of the layers
    pseudo: Literal["sampled", "expected"] = "sampled"  # Eq. 3 on drawn Gaussian inputs, or in closed form
    pseudo_batch: Annotated[int, Ge(1)] = 64  # Gaussian samples for a global layer in a round
    pseudo_size: int = 8  # height and width of the Gaussian maps for convolutions
    server_lr: Annotated[float, Ge(0), Degenerate(0)] = 0.01  # alpha, step size of the global layers
    server_steps: Annotated[int, Ge(0), Degenerate(0)] = 1  # steps on Eq. 3 in a round
    entropy: Literal["shannon", "tsallis", "collision"] = "shannon"  # H of Eq. 6, of the histogram of the weights
    tsallis_q: Annotated[float, Gt(0)] = 2.0  # q of the Tsallis entropy
    bins: Annotated[int, Ge(2)] = 256  # of the histogram, between a layer's least and largest weight
    candidate_scope: Literal["all_same_type", "mapped_only", "updated_only"] = "all_same_type"  # what may come back
    returns: Literal["gain", "random", "reversed"] = "gain"  # controls: any pair, or the largest loss of entropy
    projection: Literal["flat", "block"] = "flat"  # Eq. 7 number by number, or where the two layers overlap
    remainder: Literal["retain", "zero"] = "retain"  # the rest of a layer that is larger than what it receives
    trim_download: bool = False  # leave out numbers that the client would not use
    recalibrate_bn: bool = False  # after a layer came in, BatchNorm statistics are taken anew from local data
    eval_point: Literal["after_insert", "after_local"] = "after_insert"  # when clients are evaluated in a round
    allow_degenerate: bool = False  # accept k, server_lr or server_steps 0

    needs = Needs()
    sends = Sends(
        up="weights, names, kinds and places of the k layers that changed most, and by how much",
        down="weights of at most one layer of the server's network, and the kinds of its layers",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tsallis_q == 1:
            raise InputError("method.tsallis_q is 1; expected a number above 0 other than 1")
        for kind in self.kinds:
            if kind not in KINDS:
                raise InputError(f"method.layer_types has '{kind}'; {nearest(kind, KINDS)}")

    @property
    def kinds(self) -> list[str]:
        return [kind.strip() for kind in self.layer_types.split(",")]

    def init(self, server: Server) -> None:
        model = server.build(self.global_model or fewest_layers(server))
        net = layers_of(model, self.kinds, without=model.head if self.protect_head else None)
        server.state["layers"] = packed([layer.copied() for layer in net])  # G^0
        server.state["updates"] = torch.zeros(len(net), dtype=torch.int64)

    def round(self, server: Server, cohort: Cohort) -> None:
        net = unpacked(server.state["layers"])
        gathered = [Gathered(layer) for layer in net]
        kinds = sorted({g.kind for g in net})
        uploads: list[Upload] = []
        for client, got in cohort.stream(self.train, shared={"kinds": ",".join(kinds)}):
            for layer in unpacked(got["layers"]):
                if layer.kind not in kinds:
                    continue  # nothing to be absorbed into; no client of ours sends it
                j = self.partner(layer, net)
                if self.pair_shape == "overlap" or layer.weight.shape == net[j].weight.shape:
                    gathered[j].add(layer)
                uploads.append(Upload(client, layer.outline(), j, self.h(layer)))
            if got.number("not_finite"):
                server.record("layers_not_finite", client=client, count=got.number("not_finite"))
        net = [self.absorb(server, found) if found.layers else found.target for found in gathered]
        updates = server.memory.tensor("updates") + torch.tensor([found.layers > 0 for found in gathered])
        server.state = {"layers": packed(net), "updates": updates}
        gifts = self.gifts(server, net, updates.tolist(), uploads)
        self.record(server, net, uploads, gifts)
        if self.eval_point == "after_local":
            cohort.measure("personal", "global")
        if gifts:
            cohort.call(
                self.insert, each={gift.upload.client: self.wrapped(gift, net[gift.source]) for gift in gifts}
            )

    @step(down={"kinds": ScalarField("text")}, up={"layers": Layers(), "not_finite": ScalarField(least=0)})
    def train(self, client: Client, msg: Payload) -> Reply:
        head = client.model.head if self.protect_head else None
        layers = layers_of(client.model, msg.text("kinds").split(","), without=head)
        before = [layer.copied() for layer in layers]  # theta_i^(t-1)
        client.fit()
        scored = [with_change(now, old) for now, old in zip(layers, before, strict=True)]  # Eq. 2
        sound = [layer for layer in scored if layer.change >= 0]
        if self.selection == "random":
            order = torch.randperm(len(sound), generator=client.stream("layers"))
            chosen = [sound[i] for i in order[: self.k].tolist()]
        else:
            chosen = most_changed(sound, self.k)
        return {"layers": packed(chosen), "not_finite": len(scored) - len(sound)}

    def partner(self, layer: Layer, net: Sequence[Layer]) -> int:
        """j = map(i, l): of the global layers of its kind the nearest in depth, or in shape; the first of equals."""
        same = [g.place for g in net if g.kind == layer.kind]
        if self.mapping == "relative_depth":
            return min(same, key=lambda j: abs(net[j].depth - layer.depth))
        return max(same, key=lambda j: shape_match(net[j].weight.shape, layer.weight.shape))

    def absorb(self, server: Server, gathered: Gathered) -> Layer:
        """Eq. 3 to 5: w_j <- w_j - alpha dL_D / dw_j, and the same for b_j."""
        target = gathered.target
        if self.sharing == "average":
            weight, bias = averaged(gathered)
        else:
            probes = None
            if self.pseudo == "sampled":  # one draw for the global layer and all that are mapped to it
                shape = probe_shape(target, self.pseudo_batch, self.pseudo_size)
                probes = torch.randn(shape, generator=server.stream(f"pseudo {target.place}"))
            weight, bias = transferred(gathered, self.server_lr, self.server_steps, probes)
        return replace(target, weight=weight, bias=bias)

    def gifts(
        self, server: Server, net: Sequence[Layer], updates: Sequence[int], uploads: Sequence[Upload]
    ) -> list[Gift]:
        """For each client the pair (l, j) of largest positive KGE = H(g_j) - H(theta_il), if there is any (Eq. 6)."""
        h = [self.h(g) for g in net]
        draw = server.stream("returns")
        chosen = []
        for client in dict.fromkeys(upload.client for upload in uploads):
            pairs = [
                Gift(u, g.place, h[g.place] - u.entropy)
                for u in uploads
                if u.client == client
                for g in net
                if g.kind == u.layer.kind
                and (self.candidate_scope != "mapped_only" or g.place == u.partner)
                and (self.candidate_scope != "updated_only" or updates[g.place] > 0)
            ]
            sign = -1 if self.returns == "reversed" else 1
            if self.returns == "random":
                chosen += [pairs[int(torch.randint(len(pairs), (), generator=draw))]] if pairs else []
            elif any(sign * pair.gain > 0 for pair in pairs):
                chosen.append(max(pairs, key=lambda p: (sign * p.gain, -p.source, -p.upload.layer.place)))
        return chosen

    def h(self, layer: Layer) -> float:
        """H of Eq. 6."""
        return weight_entropy(layer.weight, self.entropy, bins=self.bins, q=self.tsallis_q)

    def wrapped(self, gift: Gift, source: Layer) -> Reply:
        """What goes to a client: the whole global layer, or of it what fits (`trim_download`)."""
        sent: dict[str, Value] = dict(zip(("weight", "bias"), source.tensors, strict=False))
        if self.trim_download:
            both = zip(("weight", "bias"), source.tensors, gift.upload.layer.tensors, strict=False)
            sent = {part: trimmed(tensor, own.shape, self.projection) for part, tensor, own in both}
        return {"layer": gift.upload.layer.name, "received": sent}

    @step(down={"layer": ScalarField("text", optional=True), "received": TreeField(optional=True)})
    def insert(self, client: Client, msg: Payload) -> None:
        if "layer" not in msg:
            return
        own = next((layer for layer in layers_of(client.model, KINDS) if layer.name == msg.text("layer")), None)
        if own is None:
            raise PayloadError(f"field 'layer' is '{msg.text('layer')}', which this client's model does not have")
        received = msg.weights("received")
        for mine, part in zip(own.tensors, ("weight", "bias"), strict=False):
            if part in received:  # Eq. 7; a bias on one side only stays
                mine.copy_(projected(mine, received[part], self.projection, self.remainder))
        if self.recalibrate_bn:
            recalibrate(client.model, client.train, client.settings.batch_size)

    def record(self, server: Server, net: Sequence[Layer], uploads: Sequence[Upload], gifts: Sequence[Gift]) -> None:
        server.record(
            "layers_up",
            clients=[upload.client for upload in uploads],
            layers=[upload.layer.name for upload in uploads],
            changes=[upload.layer.change for upload in uploads],
        )
        server.record(
            "layers_down",
            clients=[gift.upload.client for gift in gifts],
            layers=[gift.upload.layer.name for gift in gifts],
            sources=[net[gift.source].name for gift in gifts],
            gains=[gift.gain for gift in gifts],
        )


def fewest_layers(server: Server) -> str:
    """The client architecture with the fewest layers, of those with convolutions if there are any."""
    weights = {p.spec: [shape for name, shape, _ in p.model if name.endswith("weight")] for p in server.roster}
    convolutional = {spec: shapes for spec, shapes in weights.items() if any(len(shape) == 4 for shape in shapes)}
    return min(convolutional or weights, key=lambda spec: len(weights[spec]))

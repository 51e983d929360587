"""FedFree: breaking knowledge-sharing barriers through layer-wise alignment in heterogeneous federated learning.

Du, Xiang, Cai, Liu, Wu, Huo, Long; NeurIPS 2025, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.errors import InputError, nearest
from polyfed.methods.fedfree.entropy import entropy_gain, weight_entropy
from polyfed.methods.fedfree.global_model import fewest_layers, nearest_in_depth
from polyfed.methods.fedfree.layer_messages import DOWNLOAD, REQUEST, UPLOAD, pack_layers, unpack_layers
from polyfed.methods.fedfree.layer_transfer import MappedLayers, average, distil, pseudo_data_shape
from polyfed.methods.fedfree.layers import KINDS, Layer, find_layers, most_changed, random_layers, with_change
from polyfed.methods.fedfree.projection import exchanged_values, insert_layer, sent_tensors
from polyfed.methods.fedfree.replacements import (
    Candidates,
    LayerReplacement,
    UploadedLayer,
    candidates,
    in_scope,
    largest_gains,
    record_exchange,
    with_sources,
)
from polyfed.training.batchnorm import recalibrate


@register("fedfree")
@dataclass(frozen=True)
class FedFree(Method):
    """FedFree: clients upload the layers that changed most and receive the global layer with the most entropy gain.

    No code is public. Where the paper leaves a choice open or contradicts itself, there is an option here: a layer
    that is larger than the received one keeps its remaining values (Eq. 7 sets them to zero), layers of different
    shapes are compared where they overlap, and output distances are averaged over positions. By default global layers
    start from first uploads, entropies of a pair have the same bins, and clients receive only layers of others; the
    preset `fedfree-literal` has none of this. Clients are measured with received layers (docs/results/fedfree.md).
    """

    k: Annotated[int, Ge(1)] = 2  # layers that a client uploads in a round, at most
    selection: Literal["critical", "random"] = "critical"  # upload the most changed layers (Eq. 2), or random ones
    layer_types: str = "conv,linear"  # kinds of layers that are shared: conv, linear, depthwise
    protect_head: bool = False  # do not share or replace classifier layers
    global_model: str | None = None  # the server's network; none: the client model with the fewest layers
    start: Literal["uploads", "random"] = "uploads"  # global layers start as the mean of first uploads, or random
    sharing: Literal["pseudo", "average"] = "pseudo"  # global layers learn by Eq. 3 to 5, or become a mean of layers
    pseudo: Literal["sampled", "expected"] = "sampled"  # Eq. 3 on Gaussian pseudo-data, or its expectation
    pseudo_batch: Annotated[int, Ge(1)] = 64  # samples of pseudo-data for a global layer in a round
    server_lr: Annotated[float, Gt(0)] = 0.01  # alpha, learning rate of the global layers
    server_steps: Annotated[int, Ge(1)] = 1  # gradient steps on Eq. 3 in a round
    entropy: Literal["shannon", "tsallis", "collision"] = "shannon"  # H of Eq. 6, of a histogram of the weights
    tsallis_q: Annotated[float, Gt(0)] = 2.0  # q of the Tsallis entropy
    entropy_range: Literal["pair", "own"] = "pair"  # range of the histograms: common to both layers, or of each layer
    candidate_scope: Literal["partners", "mapped_only", "updated_only", "all_same_type"] = "partners"  # layers sent
    projection: Literal["flat", "block"] = "flat"  # Eq. 7 in row-major order, or where both layers overlap
    remainder: Literal["retain", "zero"] = "retain"  # values of a layer that is larger than the received one
    trim_download: bool = False  # do not send values that the client would not use
    recalibrate_bn: bool = False  # estimate BatchNorm statistics again after a layer was replaced
    verdict = "Close to local training; layers of others help a little if all clients have one architecture."
    needs = Needs()
    sends = Sends(
        up="weights, names, kinds and positions of the k layers that changed most, and by how much",
        down="weights of at most one layer of the server's network, and the kinds of its layers",
        kinds=("weights", "training-statistics"),
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
        """Initialise the global network G^0 (line 1)."""
        model = server.build(self.global_model or fewest_layers(server))
        net = find_layers(model, self.kinds, exclude=model.head if self.protect_head else None)
        server.state["layers"] = pack_layers([layer.clone() for layer in net])
        server.state["updates"] = torch.zeros(len(net), dtype=torch.int64)  # rounds in which a layer was updated
        server.state["sources"] = {}  # by global layer, the client that it was learned from

    def round(self, server: Server, cohort: Cohort) -> None:
        mapped = [MappedLayers(layer) for layer in unpack_layers(server.state["layers"])]
        uploads = self.collect(server, cohort, mapped)  # lines 4 to 8
        self.aggregate(server, mapped, uploads)  # lines 9 to 13
        self.distribute(server, cohort, uploads)  # lines 14 to 20

    def collect(self, server: Server, cohort: Cohort, mapped: Sequence[MappedLayers]) -> list[UploadedLayer]:
        """Train the clients, and map each layer that they upload to a global layer."""
        net, uploads = [layers.target for layers in mapped], []
        kinds = sorted({layer.kind for layer in net})
        for client, reply in cohort.stream(self.train, shared={"kinds": ",".join(kinds)}):
            for layer in unpack_layers(reply["layers"]):
                if layer.kind in kinds:
                    j = nearest_in_depth(layer, net)  # j = map(i, l)
                    mapped[j].add(layer)
                    uploads.append(self.uploaded(client, layer, j))
            if reply.number("not_finite"):
                server.record("layers_not_finite", client=client, count=reply.number("not_finite"))
        return uploads

    def uploaded(self, client: str, layer: Layer, mapped_to: int) -> UploadedLayer:
        """Return what the choice of replacements needs of an upload: its entropy, or its weights for `pair`."""
        if self.entropy_range == "own":
            return UploadedLayer(client, layer.to_meta(), mapped_to, self.entropy_of(layer))
        return UploadedLayer(client, layer, mapped_to)

    @step(down=REQUEST, up=UPLOAD)
    def train(self, client: Client, msg: Payload) -> Reply:
        """Run lines 5 to 7: local training and the choice of the critical layers."""
        head = client.model.head if self.protect_head else None
        layers = find_layers(client.model, msg.text("kinds").split(","), exclude=head)
        before = [layer.clone() for layer in layers]  # theta_i^(t-1)
        client.fit()
        trained = [with_change(now, old) for now, old in zip(layers, before, strict=True)]  # Eq. 2
        finite = [layer for layer in trained if layer.change >= 0]
        critical = most_changed(finite, self.k)
        if self.selection == "random":
            critical = random_layers(finite, self.k, client.stream("layers"))
        return {"layers": pack_layers(critical), "not_finite": len(trained) - len(finite)}

    def aggregate(self, server: Server, mapped: Sequence[MappedLayers], uploads: Sequence[UploadedLayer]) -> None:
        """Update every global layer that client layers are mapped to."""
        net = [self.update_layer(server, layers) if layers.layers else layers.target for layers in mapped]
        learned = torch.tensor([layers.layers > 0 for layers in mapped]).to(server.device)
        updates = server.memory.tensor("updates") + learned
        sources = with_sources(server.state["sources"], uploads)
        server.state = {"layers": pack_layers(net), "updates": updates, "sources": sources}

    def update_layer(self, server: Server, mapped: MappedLayers) -> Layer:
        """Return a global layer after Eq. 3 to 5: w_j <- w_j - alpha dL_D / dw_j, and the same for b_j."""
        target, inputs = mapped.target, None
        first = self.start == "uploads" and not server.memory.tensor("updates")[target.index]
        if self.sharing == "average" or first:
            weight, bias = average(mapped)
        else:
            if self.pseudo == "sampled":  # the same pseudo-data for the global layer and all layers mapped to it
                shape = pseudo_data_shape(target, self.pseudo_batch)
                stream = server.stream(f"pseudo {target.index}")
                inputs = torch.randn(shape, generator=stream).to(server.device)
            weight, bias = distil(mapped, self.server_lr, self.server_steps, inputs)
        return replace(target, weight=weight, bias=bias)

    def distribute(self, server: Server, cohort: Cohort, uploads: Sequence[UploadedLayer]) -> None:
        """Send each client the global layer with the largest positive gain for one of its layers."""
        net = unpack_layers(server.state["layers"])
        replacements = self.choose_replacements(server, self.candidates(server, net, uploads))
        record_exchange(server, net, uploads, replacements)
        each = {chosen.upload.client: self.download(server, chosen, net[chosen.source]) for chosen in replacements}
        if each:
            cohort.call(self.insert, each=each)

    def candidates(self, server: Server, net: Sequence[Layer], uploads: Sequence[UploadedLayer]) -> Candidates:
        """Return, for each client, the global layers that may replace one of its layers, with their gain (Eq. 6)."""
        updates, sources = server.memory.tensor("updates"), server.state["sources"]
        entropies = [self.entropy_of(layer) for layer in net] if self.entropy_range == "own" else []

        def gain(upload: UploadedLayer, layer: Layer) -> float:
            if self.entropy_range == "own":
                return entropies[layer.index] - upload.entropy
            values = exchanged_values(layer.weight, upload.layer.weight, self.projection)
            return entropy_gain(*values, self.entropy, q=self.tsallis_q)

        return candidates(uploads, net, in_scope(self.candidate_scope, updates, sources), gain)

    def choose_replacements(self, server: Server, gains: Candidates) -> list[LayerReplacement]:
        """Return at most one replacement for each client (line 16)."""
        return largest_gains(gains)

    def entropy_of(self, layer: Layer) -> float:
        """Return H of Eq. 6 over the layer's own range."""
        return weight_entropy(layer.weight, self.entropy, q=self.tsallis_q)

    def download(self, server: Server, chosen: LayerReplacement, source: Layer) -> Reply:
        """Return the message to a client: the whole global layer, or the values that fit with `trim_download`."""
        own, how = chosen.upload.layer, self.projection if self.trim_download else None
        return {"layer": own.name, "received": sent_tensors(source, own, how)}

    @step(down=DOWNLOAD)
    def insert(self, client: Client, msg: Payload) -> None:
        """Copy the received layer into the client's layer (line 19, Eq. 7)."""
        if "layer" not in msg:
            return
        insert_layer(client.model, msg.text("layer"), msg.weights("received"), self.projection, self.remainder)
        if self.recalibrate_bn:
            recalibrate(client.model, client.train, client.settings.batch_size)

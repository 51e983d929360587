"""FedVTC: bridging the generalization gap of heterogeneous federated clients using generative models.

Niu, Dong, Qin; 2025, Algorithm 1 (variational transposed convolution).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn
from torch.func import functional_call

from polyfed.core import ClassTable, Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, rng, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.class_tables import mean_over_clients
from polyfed.core.client import copy_into, weights_of
from polyfed.core.options import Degenerate
from polyfed.core.profile import Layout, Profile, layout
from polyfed.core.schema import FromMethod, TableField, TensorField, TreeField
from polyfed.methods.fedvtc.recompute import recomputed
from polyfed.methods.fedvtc.synthetic_samples import Generated, fine_tune, generated
from polyfed.methods.fedvtc.variational import Bound, Deviation, reparameterised
from polyfed.models.decoders import transposed_decoder
from polyfed.training import Samples
from polyfed.training.batchnorm import statistics_kept
from polyfed.training.multi_module import frozen

SHOWN = 8  # images of every class that are kept for a figure


@cache
def _decoder_layout(features: int, image: tuple[int, ...], size: str, norm: str) -> Layout:
    with torch.device("meta"):
        return layout(transposed_decoder(features, image, size, norm))


STATISTICS = {"prototypes": TableField("features", by_sample=True), "deviation": TensorField(("features",))}
DECODER = {"decoder": TreeField(layout=FromMethod("decoder_layout"))}
PERHAPS = {"decoder": TreeField(layout=FromMethod("decoder_layout"), optional=True)}


@register("fedvtc")
@dataclass(frozen=True)
class FedVTC(Method):
    """FedVTC: clients share prototypes, each trains a small decoder, and all learn from what the mean decoder makes.

    L_tc is divided by the number of pixels (`reduction: mean_pixels`), for the sums of the paper dwarf the
    cross-entropy that they are added to. Model and decoder take turns by epochs, as the paper's section 3.4 has it;
    its algorithm moves the extractor twice. Deviations are learned as logarithms, so that none passes 0. Synthetic
    samples are S per class, of classes that have a prototype, and a round of fine-tuning is a pass over them. The
    server learns which classes a client holds from what it sends; until then it sends it all prototypes there are.

    On the quickstart it ends 30 points below local training (57.5 % personal accuracy, 89.9 % before fine-tuning):
    in 70 steps of SGD 0.01 no decoder learns to make digits, and fine-tuning on what it makes does harm.
    """

    matching: Annotated[float, Ge(0)] = 0.1  # lambda, weight of the loss between re-encoded and drawn latents
    vtc: Literal["once", "regular"] = "once"  # decoders are averaged after the last round, or in every round
    samples_per_class: Annotated[int, Ge(0), Degenerate(0)] = 500  # S, synthetic samples of every class
    finetune_epochs: Annotated[int, Ge(0), Degenerate(0)] = 5  # epochs on synthetic samples after the last round
    finetune_lr: float | None = None  # learning rate of fine-tuning; none: that of training
    finetune_full_batch: bool = False  # a pass is one step on all synthetic samples at once
    finetune_norms: Literal["trained", "frozen"] = "trained"  # whether BatchNorm statistics follow synthetic images
    real_share: Annotated[float, Ge(0)] = 0.0  # real samples per synthetic sample during fine-tuning
    same_images: bool = False  # all clients make the same synthetic images; else each its own
    decoder: Literal["auto", "small", "medium", "large"] = "auto"  # its channels; auto: by the size of the images
    decoder_norm: Literal["batch", "group"] = "batch"  # norms of the decoder
    decoder_lr: float | None = None  # learning rate of the decoder and its deviations; none: that of training
    decoder_optimizer: Literal["sgd", "adam"] | None = None  # their optimiser; none: that of training
    alternate: Literal["epoch", "batch"] = "epoch"  # how often model and decoder take turns
    reduction: Literal["mean_pixels", "sum", "mean_each"] = "mean_pixels"  # of L_tc: by pixels, not, or each term
    class_balance: Literal["batch", "weights"] = "batch"  # class means: in the batch, or by weights from all samples
    skip_unknown: bool = False  # no pull towards 0 for classes that have no prototype yet
    average_untrained: bool = False  # decoders of clients that never trained one count in the mean as well
    min_class_count: int = 1  # classes with fewer samples are not sent
    recompute: bool = True  # hold the activations of one part at a time: less memory, a third more computing
    keep_untuned: bool = True  # keep models from before fine-tuning, to be measured beside
    allow_degenerate: bool = False  # accept 0 samples or epochs, with which nothing is fine-tuned

    needs = Needs(same_features=True, same_classes=True)
    sends = Sends(
        up="mean feature per class, one deviation per feature; the weights of a small decoder once or each round",
        down="the same over all clients: features of the client's classes in each round, those of all classes once",
    )

    def decoder_layout(self, profile: Profile) -> Layout:
        return _decoder_layout(profile.features, profile.image, self.decoder, self.decoder_norm)

    def init(self, server: Server) -> None:
        server.state["prototypes"] = ClassTable.empty(server.features).without_counts()  # absent: 0, never updated
        server.state["deviation"] = torch.ones(server.features)
        server.state["decoder"] = weights_of(self.new_decoder(server.seed, server.roster[0]))
        server.state["classes"] = {}  # of every client that has sent prototypes

    def round(self, server: Server, cohort: Cohort) -> None:
        known, tables, deviations, decoders = server.memory.table("prototypes"), [], WeightedMean(), WeightedMean()
        shared = ("deviation", "decoder") if self.vtc == "regular" else ("deviation",)
        each = {name: {"prototypes": self.for_client(server, name)} for name in cohort.ids}
        for name, got in cohort.stream(self.train, shared={key: server.state[key] for key in shared}, each=each):
            tables.append(got.table("prototypes"))
            server.state["classes"] = {**server.memory.weights("classes"), name: tables[-1].classes}
            deviations.add({"sigma": got.tensor("deviation").clamp(min=0)}, 1.0)
            decoders.add(got.weights("decoder") if "decoder" in got else {}, float("decoder" in got))
        fresh = mean_over_clients(tables, width=server.features)  # c^y, over those that hold y (line 19)
        server.state["prototypes"] = known.updated(fresh)
        mean = deviations.result({"sigma": server.memory.tensor("deviation")})
        server.state["deviation"] = Deviation(mean["sigma"])().detach()  # sigma (line 20), within its bounds
        if self.vtc == "regular":
            server.state["decoder"] = decoders.result(server.memory.weights("decoder"))
            self.show(server)

    def for_client(self, server: Server, name: str) -> ClassTable:
        """The prototypes of the classes that a client has sent; of all, as long as they are not known."""
        known, classes = server.memory.table("prototypes"), server.memory.weights("classes")
        all_of_them = name not in classes or self.min_class_count > 1
        return known if all_of_them else known.only(classes[name].tolist())

    @step(down={**STATISTICS, **PERHAPS}, up={**STATISTICS, **PERHAPS})
    def train(self, client: Client, msg: Payload) -> Reply:
        if "decoder" in msg:
            client.state["decoder"] = msg["decoder"]
        bound, steps = self.bound(client, msg), 0
        for turn, part in enumerate(self.turns(client)):
            self.train_model(client, bound, part, turn)
            steps += self.train_decoder(client, bound, part, turn)
        if steps:
            client.state["decoder"] = weights_of(bound.decoder)
        means = client.class_means(client.model.features, client.profile.features, min_count=self.min_class_count)
        reply: Reply = {"prototypes": means.without_counts(), "deviation": bound.deviation().detach()}
        return {**reply, **self.give_decoder(client, msg)} if self.vtc == "regular" else reply

    def turns(self, client: Client) -> Iterator[Samples]:
        """What model and decoder are trained on before it is the other's turn."""
        settings = client.settings
        if self.alternate == "epoch":
            yield from itertools.repeat(client.train, settings.epochs if settings.steps is None else 1)
        elif len(client.train):
            epochs = range(settings.epochs) if settings.steps is None else itertools.count()
            yield from itertools.islice(self.single_batches(client, epochs), settings.steps)

    def single_batches(self, client: Client, epochs: Iterable[int]) -> Iterator[Samples]:
        for epoch in epochs:
            order = torch.randperm(len(client.train), generator=client.stream(f"batches {epoch}"))
            yield from map(client.train.subset, torch.split(order, client.settings.batch_size))

    def steps_of_a_turn(self, client: Client) -> int | None:
        """How many steps model or decoder take before it is the other's turn; none: as many as there are batches."""
        return client.settings.steps if self.alternate == "epoch" else None

    def bound(self, client: Client, msg: Payload) -> Bound:
        """L_tc at a client, with the decoder and the deviations that it is of."""
        decoder, deviation = self.own_decoder(client), Deviation(msg.tensor("deviation"))
        prototypes, known = msg.table("prototypes").dense(client.classes)
        counts = torch.bincount(client.train.labels, minlength=client.classes)
        pulled = known if self.skip_unknown else torch.ones_like(known)
        if client.bound is not None:  # classes of too few samples are not sent, so that nothing comes back for them
            pulled = known | (pulled & (counts >= client.bound.count))
        weighted = counts if self.class_balance == "weights" else None
        return Bound(decoder, deviation, prototypes, pulled, weighted, self.matching, self.reduction)

    def train_model(self, client: Client, bound: Bound, part: Samples, turn: int) -> None:
        """Pass A: f on CE + L_tc, with psi and sigma frozen. L_tc reaches g alone."""
        noise, sigma = client.stream(f"noise for model {turn}"), bound.deviation().detach()

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z = self.through(client.model.backbone, x)
            made = self.through(bound.decoder, reparameterised(z, sigma, noise))  # x'
            with statistics_kept(client.model):  # of real images only
                again = self.through(client.model.backbone, made) if self.matching else None
            return F.cross_entropy(client.model.head(z), y), bound.loss(x, y, z, sigma, made, again)

        with frozen(bound.decoder):
            client.fit(loss, samples=part, epochs=1, steps=self.steps_of_a_turn(client), purpose=f"model {turn}")

    def train_decoder(self, client: Client, bound: Bound, part: Samples, turn: int) -> int:
        """Pass B: psi and sigma on L_tc, with f frozen; how many steps it took."""
        noise, usual = client.stream(f"noise for decoder {turn}"), client.settings

        def loss(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                z = client.model.features(x)
            sigma = bound.deviation()
            made = self.through(bound.decoder, reparameterised(z, sigma, noise))
            again = self.through(client.model.backbone, made) if self.matching else None
            return bound.loss(x, y, z, sigma, made, again)

        modules, optimizer = [bound.decoder, bound.deviation], self.decoder_optimizer or usual.optimizer
        how = {
            "epochs": 1,
            "steps": self.steps_of_a_turn(client),
            "lr": self.decoder_lr or usual.lr,
            "optimizer": optimizer,
        }
        with frozen(client.model):
            return client.fit(loss, samples=part, modules=modules, purpose=f"decoder {turn}", **how).steps  # type: ignore[arg-type]

    def through(self, module: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = recomputed(module, x) if self.recompute else module(x)
        return y

    def finish(self, server: Server, everyone: Cohort) -> None:
        if self.vtc == "once":
            mean = WeightedMean()
            for _, got in everyone.stream(self.give_decoder):
                mean.add(got.weights("decoder") if "decoder" in got else {}, float("decoder" in got))
            server.state["decoder"] = mean.result(server.memory.weights("decoder"))  # psi
        self.show(server)
        everyone.call(self.fine_tune, shared={key: server.state[key] for key in (*STATISTICS, *DECODER)})

    @step(up=PERHAPS)
    def give_decoder(self, client: Client, msg: Payload) -> Reply:
        if "decoder" not in client.state and not self.average_untrained:
            return {}
        return {"decoder": weights_of(self.own_decoder(client))}

    @step(down={**STATISTICS, **DECODER})
    def fine_tune(self, client: Client, msg: Payload) -> None:
        """The whole model by CE on S samples of every class that has a prototype."""
        if self.keep_untuned:
            client.state["untuned"] = weights_of(client.model)
        stream = rng.generator(client.seed, "synthetic") if self.same_images else client.stream("synthetic")
        synthetic = self.synthetic(msg, client.seed, client.profile, self.samples_per_class, stream)
        batch = max(1, len(synthetic)) if self.finetune_full_batch else client.settings.batch_size
        lr, still = self.finetune_lr or client.settings.lr, self.finetune_norms == "frozen"
        how = dataclasses.replace(client.settings, epochs=self.finetune_epochs, steps=None, lr=lr, batch_size=batch)
        real, stream = (client.train, self.real_share), client.stream("fine-tune")
        fine_tune(client.model, synthetic, how, stream, real=real, freeze_norms=still)

    def synthetic(self, known: Payload, seed: int, profile: Profile, each: int, stream: torch.Generator) -> Generated:
        """x' = psi(c^y + sigma eps) with label y; never for a class without a prototype."""
        decoder, table = self.new_decoder(seed, profile), known.table("prototypes")
        copy_into(decoder, known.weights("decoder"))
        centres, _ = table.dense(profile.classes)
        return generated(decoder, centres, table.classes, known.tensor("deviation"), each, stream)

    def show(self, server: Server) -> None:
        """Keep some synthetic images for a figure."""
        made = self.synthetic(server.memory, server.seed, server.roster[0], SHOWN, server.stream("shown"))
        if len(made):
            server.save_artifact("synthetic", images=made.made(torch.arange(len(made))), labels=made.labels)

    def own_decoder(self, client: Client) -> nn.Module:
        """The decoder as the client trained or received it last; before that, the initial one that all have."""
        decoder = self.new_decoder(client.seed, client.profile)
        if "decoder" in client.state:
            copy_into(decoder, client.memory.weights("decoder"))
        return decoder

    def new_decoder(self, seed: int, profile: Profile) -> nn.Module:
        with rng.seeded(seed, "decoder"):
            return transposed_decoder(profile.features, profile.image, self.decoder, self.decoder_norm)

    def predict_untuned(self, client: Client, x: Tensor) -> Tensor:
        """By the model from before fine-tuning; until then that is the model."""
        if "untuned" not in client.state:
            return self.predict(client, x)
        logits: Tensor = functional_call(client.model, client.memory.weights("untuned"), (x,))
        return logits

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"untuned": self.predict_untuned} if self.keep_untuned else {}

"""FedVTC: bridging the generalization gap of heterogeneous federated clients using generative models.

Niu, Dong, Qin; 2025, Algorithm 1 (variational transposed convolution).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.func import functional_call

from polyfed.core import ClassTable, Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.class_tables import mean_over_clients
from polyfed.core.client import weights_of
from polyfed.core.client_profile import Layout, Profile
from polyfed.methods.fedvtc.alternating_training import train_decoder, train_model
from polyfed.methods.fedvtc.class_moments import class_moments, mean_and_variance
from polyfed.methods.fedvtc.decoder import build_decoder, decoder_layout
from polyfed.methods.fedvtc.figures import IMAGES_PER_CLASS, save_synthetic_images
from polyfed.methods.fedvtc.fine_tuning import fine_tune
from polyfed.methods.fedvtc.messages import DECODER, MOMENTS, OPTIONAL_DECODER, STATISTICS, VARIANCES
from polyfed.methods.fedvtc.synthetic_samples import SyntheticSamples, recalibrate_decoder, samples_by_state
from polyfed.methods.fedvtc.training_work import training_work
from polyfed.methods.fedvtc.variational_bound import LossWeights, StandardDeviation, VariationalBound


@register("fedvtc")
@dataclass(frozen=True)
class FedVTC(Method):
    """FedVTC: clients share prototypes and train small decoders, then fine-tune on synthetic images of all classes.

    Model and decoder are trained in alternating epochs (section 3.4, not Algorithm 1). The defaults differ from the
    paper's formulas where these make training collapse: L_tc is a mean over pixels and classes with separate weights,
    latents have the variance of each class, and fine-tuning also uses real samples. The preset `fedvtc-paper` has the
    paper's settings. After the last round, clients are measured with fine-tuned models, and also with untuned ones.
    """

    matching: Annotated[float, Ge(0)] = 0.1  # lambda, weight of distribution matching; 0 trains with L_e alone
    reconstruction: Annotated[float, Ge(0)] = 20.0  # weight of |x' - x|^2 in L_e; the paper has 1
    alignment: Annotated[float, Ge(0)] = 0.3  # weight of |z - c|^2 in the KL divergence; the paper has 1
    noise: Annotated[float, Gt(0)] = 0.3  # initial and prior standard deviation of latents; the paper has 1
    reduction: Literal["mean", "sum"] = "mean"  # of L_tc over pixels and classes; the paper sums
    vtc: Literal["once", "regular"] = "once"  # average the decoders after the last round, or in every round
    spread: Literal["classes", "learned"] = "classes"  # draw latents with the variance of each class, or sigma alone
    samples_per_class: Annotated[int, Ge(1)] = 500  # S, synthetic samples per class
    finetune_epochs: Annotated[int, Ge(1)] = 5  # passes over the synthetic samples after the last round
    finetune_lr: float | None = None  # learning rate of fine-tuning; none: the rate of local training
    finetune_norms: Literal["trained", "frozen"] = "frozen"  # update BatchNorm statistics in fine-tuning, or not
    real_share: Annotated[float, Ge(0)] = 1.0  # local samples per synthetic sample in fine-tuning; the paper has 0
    decoder_norm: Literal["batch", "group"] = "batch"  # normalisation layers of the decoder
    decoder_lr: float | None = 0.003  # learning rate of decoder and deviations; none: the rate of local training
    decoder_optimizer: Literal["sgd", "adam"] | None = "adam"  # their optimiser; none: the one of local training
    skip_unknown: bool = True  # do not pull features to 0 while their class has no prototype
    min_class_count: int = 1  # do not send prototypes of classes with fewer samples
    recompute: bool = True  # activation checkpointing: less memory, about a third more computing time
    keep_untuned: bool = True  # keep the client's own model, from before fine-tuning, and evaluate it as well
    verdict = "Raises global accuracy clearly when labels are skewed, with few messages; needs pictures."
    needs = Needs(same_features=True, same_classes=True, images=True)
    sends = Sends(
        up="mean feature per class, one standard deviation per feature; a small decoder, once or in every round; "
        "mean squared features per class, once",
        down="the same over all clients: prototypes of the client's classes in each round, of all classes once",
        kinds=("class-means", "class-statistics", "decoder"),
    )
    averaged = ("prototypes", "deviation", "decoder", "moments")
    training_work = training_work

    def decoder_layout(self, profile: Profile) -> Layout:
        return decoder_layout(profile.features, profile.input_shape, self.decoder_norm)

    def moments_width(self, profile: Profile) -> int:
        return 2 * profile.features

    def init(self, server: Server) -> None:
        server.state["prototypes"] = server.state["variances"] = ClassTable.empty(server.features).without_counts()
        server.state["deviation"] = torch.full((server.features,), self.noise)
        server.state["decoder"] = weights_of(build_decoder(None, server.seed, server.roster[0], self.decoder_norm))
        server.state["classes"] = {}  # classes by client, learned from the prototypes that it uploads

    def round(self, server: Server, cohort: Cohort) -> None:
        """Run lines 2 to 20 of Algorithm 1."""
        tables, (deviations, decoders) = [], [WeightedMean(server.aggregation) for _ in range(2)]
        shared = {key: server.state[key] for key in ("deviation", *(["decoder"] if self.vtc == "regular" else []))}
        each = {name: {"prototypes": self.prototypes_for(server, name)} for name in cohort.ids}  # lines 4 to 6
        for name, reply in cohort.stream(self.train, shared=shared, each=each):
            tables.append(reply.table("prototypes"))
            server.state["classes"] = {**server.memory.weights("classes"), name: tables[-1].classes}
            deviations.add({"sigma": reply.tensor("deviation").clamp(min=0)}, 1.0)
            if "decoder" in reply:
                decoders.add(reply.weights("decoder"), 1.0)
        prototypes = mean_over_clients(tables, width=server.features, rule=server.aggregation)  # line 19
        server.state["prototypes"] = server.memory.table("prototypes").updated(prototypes)
        mean = deviations.result({"sigma": server.memory.tensor("deviation")})
        server.state["deviation"] = StandardDeviation(mean["sigma"])().detach()  # line 20, clamped
        if self.vtc == "regular":
            server.state["decoder"] = decoders.result(server.memory.weights("decoder"))
            save_synthetic_images(server, self.synthetic_samples(server, IMAGES_PER_CLASS))

    def prototypes_for(self, server: Server, name: str) -> ClassTable:
        """Return the prototypes of a client's classes, or all prototypes if its classes are not known yet."""
        prototypes, classes = server.memory.table("prototypes"), server.memory.weights("classes")
        known = name in classes and self.min_class_count <= 1
        return prototypes.only(classes[name].tolist()) if known else prototypes

    @step(down={**STATISTICS, **OPTIONAL_DECODER}, up={**STATISTICS, **OPTIONAL_DECODER})
    def train(self, client: Client, msg: Payload) -> Reply:
        """Run lines 8 to 16 of Algorithm 1."""
        if "decoder" in msg:
            client.state["decoder"] = msg["decoder"]
        bound, decoder_steps = self.variational_bound(client, msg), 0
        for epoch in range(client.settings.epochs if client.settings.steps is None else 1):  # line 10
            train_model(client, bound, epoch)  # line 11, and the update of g_k in line 12
            decoder_steps += train_decoder(client, bound, epoch, self.decoder_lr, self.decoder_optimizer)  # line 12
        if decoder_steps:
            client.state["decoder"] = weights_of(bound.decoder)
        means = client.class_means(client.model.features, client.profile.features, min_count=self.min_class_count)
        reply: Reply = {"prototypes": means.without_counts(), "deviation": bound.deviation().detach()}
        if self.vtc == "regular" and "decoder" in client.state:  # there is none without a training step
            reply = {**reply, "decoder": client.state["decoder"]}
        return reply

    def variational_bound(self, client: Client, msg: Payload) -> VariationalBound:
        """Build L_tc with the client's decoder and sigma_k = sigma (line 9)."""
        prototypes, known = msg.table("prototypes").dense(client.classes)
        regularised = known if self.skip_unknown else torch.ones_like(known)
        if client.bound is not None:  # privacy: small classes are not sent, so they never get a prototype
            counts = torch.bincount(client.train.labels, minlength=client.classes)
            regularised = known | (regularised & (counts >= client.bound.count))
        weights = client.memory.weights("decoder") if "decoder" in client.state else None
        decoder = build_decoder(weights, client.seed, client.profile, self.decoder_norm).to(client.device)
        deviation = StandardDeviation(msg.tensor("deviation"))
        terms = LossWeights(self.matching, self.reconstruction, self.alignment, self.noise, self.reduction)
        return VariationalBound(decoder, deviation, prototypes, regularised, terms, recompute=self.recompute)

    def finish(self, server: Server, everyone: Cohort) -> None:
        """Run lines 22 to 31 of Algorithm 1."""
        decoders, moments = WeightedMean(server.aggregation), []
        if self.vtc == "once" or self.spread == "classes":
            for _, reply in everyone.stream(self.describe):  # line 23
                moments += [reply.table("moments")] if "moments" in reply else []
                if "decoder" in reply:
                    decoders.add(reply.weights("decoder"), 1.0)
        if self.vtc == "once":
            server.state["decoder"] = decoders.result(server.memory.weights("decoder"))  # line 25
        if moments:
            pooled = mean_over_clients(moments, width=2 * server.features, rule=server.aggregation)
            prototypes, server.state["variances"] = mean_and_variance(pooled)
            server.state["prototypes"] = server.memory.table("prototypes").updated(prototypes)
        samples = self.synthetic_samples(server, self.samples_per_class)
        server.state["decoder"] = recalibrate_decoder(samples, server.stream("recalibrate"))
        save_synthetic_images(server, self.synthetic_samples(server, IMAGES_PER_CLASS))
        sent = {key: server.state[key] for key in (*STATISTICS, *VARIANCES, *DECODER)}
        everyone.call(self.fine_tune, shared=sent)  # line 26

    @step(up={**OPTIONAL_DECODER, **MOMENTS})
    def describe(self, client: Client, msg: Payload) -> Reply:
        """Send the decoder (`vtc: once`) and class moments of the features, unless the client has never trained."""
        if "decoder" not in client.state:
            return {}
        reply: Reply = {"decoder": client.state["decoder"]} if self.vtc == "once" else {}
        if self.spread == "classes":
            reply = {**reply, "moments": class_moments(client, self.min_class_count)}
        return reply

    def synthetic_samples(self, at: Server | Client, per_class: int, msg: Payload | None = None) -> SyntheticSamples:
        """Return synthetic samples by the server's state, or by the message with it that a client received."""
        return samples_by_state(at, at.memory if msg is None else msg, per_class, self.decoder_norm)

    @step(down={**STATISTICS, **VARIANCES, **DECODER})
    def fine_tune(self, client: Client, msg: Payload) -> None:
        """Run lines 28 to 31 of Algorithm 1: fine-tune f_k on S synthetic samples of every class."""
        if self.keep_untuned:
            client.state["untuned"] = weights_of(client.model)
        lr = self.finetune_lr or client.settings.lr
        settings = replace(client.settings, epochs=self.finetune_epochs, steps=None, lr=lr)
        fine_tune(
            client.model,
            self.synthetic_samples(client, self.samples_per_class, msg),
            settings,
            client.stream("fine-tune"),
            local=client.train,
            local_share=self.real_share,
            freeze_norms=self.finetune_norms == "frozen",
        )

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"untuned": self.predict_untuned} if self.keep_untuned else {}

    def predict_untuned(self, client: Client, x: Tensor) -> Tensor:
        """Predict with the model as it was before fine-tuning."""
        weights = client.memory.weights("untuned") if "untuned" in client.state else {}
        logits: Tensor = functional_call(client.model, weights, (x,))
        return logits

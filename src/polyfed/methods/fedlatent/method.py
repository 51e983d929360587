"""FedLatent: clients with different models share a small decoder and class statistics of their features.

polyfed's own method; no paper. It builds on FedVTC (Niu, Dong, Qin, 2025) and on CCVR (Luo et al., NeurIPS 2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.func import functional_call

from polyfed.core import (
    ClassTable,
    Client,
    Cohort,
    Method,
    Needs,
    Payload,
    Reply,
    Sends,
    Server,
    Value,
    register,
    rng,
    step,
)
from polyfed.core.averaging import WeightedMean
from polyfed.core.class_tables import mean_over_clients
from polyfed.core.client import copy_into, weights_of
from polyfed.core.client_profile import Layout, Profile
from polyfed.core.options import Degenerate
from polyfed.core.row_training import Rows
from polyfed.core.schema import FromMethod, TableField, TensorField, TreeField
from polyfed.methods.fedlatent.class_gaussians import describe_classes, pool_classes, row_width, sample_class
from polyfed.methods.fedlatent.decoder import decoder_layout, new_decoder
from polyfed.methods.fedlatent.units import Units, channel_moments, channels, has_units, pooled_moments
from polyfed.training import fit
from polyfed.training.optimizers import Adam

SHOWN = 8  # synthetic images of every class that are kept for a figure
DECODER = TreeField(layout=FromMethod("decoder_layout"))
# The model is in evaluation mode when features are described, so a sample enters the row of its class alone.
MEANS = TableField("features", counts=True, by_sample=True)
STATISTICS = TableField(FromMethod("row_width"), counts=True, by_sample=True)
CHANNELS = TensorField((2, channels), optional=True)  # of series and tables: mean and variance or standard deviation


@register("fedlatent")
@dataclass(frozen=True)
class FedLatent(Method):
    """FedLatent: clients share class statistics of features and a small decoder, and fine-tune on synthetic images.

    In every round a client trains its own model together with a copy of the common decoder. Three losses make the
    features a latent space that all clients share: cross-entropy, the reconstruction of the image from the features,
    and the distance of the features to the class mean over all clients. The client sends its class means and its
    decoder, and the server averages them. After the last round clients send a Gaussian of their features per class.
    Every client then decodes samples from the pooled Gaussians of all classes into labelled synthetic images, and
    fine-tunes its model on synthetic and on its own real images. Its final weights lie between the personal and the
    fine-tuned ones (as in WiSE-FT: Wortsman et al., CVPR 2022), which preserves accuracy on its own data.

    A client reveals which classes it holds, how many samples of each, the class statistics of its features, and a
    decoder trained on its images. It sends neither model weights nor the embedding of a single sample: classes below
    `min_class_count` samples are not described, because the mean of one sample is its embedding.

    Differences from FedVTC: model and decoder train together in one pass; a large weight on reconstruction, without
    which the features of a class collapse and the decoder learns one image per class; features are sampled with
    their covariance within and between clients instead of one learned deviation; the decoder receives the class and
    uses group normalisation, which leaves no running statistics to average; real images take part in fine-tuning.

    Samples are pictures in [0, 1], time series (channels, steps) or rows of a table. Errors of series and tables are
    measured in common units, for which clients of the first round send mean and variance of every channel once.
    "Images" stands for samples of any of these kinds.

    Clients are measured with their models, after the last round with the fine-tuned ones. Results:
    docs/results/fedlatent.md.
    """

    reconstruction: Annotated[float, Ge(0)] = 50.0  # weight of the mean squared error of reconstructed images
    alignment: Annotated[float, Ge(0)] = 0.3  # weight of the squared distance of features to their global class mean
    noise: Annotated[float, Ge(0)] = 0.3  # standard deviation of the noise added to features before they are decoded
    rank: Annotated[int, Ge(0)] = 8  # principal directions of features sent per class; 0 sends variances only
    samples_per_class: Annotated[int, Ge(0), Degenerate(0)] = 1000  # synthetic images per class, each used once
    real_ratio: Annotated[float, Ge(0)] = 1.0  # real images per synthetic image in fine-tuning
    finetune_lr: float = 0.003  # learning rate of fine-tuning (Adam)
    interpolation: Annotated[float, Ge(0), Le(1)] = 0.9  # final weights between personal (0) and fine-tuned model (1)
    decoder_lr: float = 0.003  # learning rate of the decoder (Adam)
    min_class_count: int = 5  # classes with fewer samples are left out of what a client sends
    keep_untuned: bool = True  # keep and evaluate the personal model from before fine-tuning as well
    allow_degenerate: bool = False  # accept 0 synthetic images, which switches fine-tuning off

    verdict = (
        "The best global accuracy for different models and skewed labels; no gain in it where all clients have all "
        "classes."
    )
    needs = Needs(same_features=True, same_classes=True, numbers=True)
    sends = Sends(
        up="each round mean feature per class with counts and a small decoder; once a Gaussian per class; "
        "once mean and variance of every channel, if samples are series or tables",
        down="the same over all clients",
        kinds=("class-means", "class-statistics", "counts", "decoder"),
    )
    averaged = ("means", "decoder")

    def row_width(self, profile: Profile) -> int:
        """Return the number of entries that describe one class."""
        return row_width(profile.features, self.rank)

    def decoder_layout(self, profile: Profile) -> Layout:
        return decoder_layout(profile.features, profile.input_shape, profile.classes)

    def init(self, server: Server) -> None:
        server.state["means"] = ClassTable.empty(server.features).without_counts()
        server.state["decoder"] = weights_of(self.new_decoder(server.seed, server.roster[0]))

    def round(self, server: Server, cohort: Cohort) -> None:
        if has_units(server.roster[0]) and "units" not in server.state:
            self.agree_on_units(server, cohort)
        tables, decoders = [], WeightedMean(server.aggregation)
        for _, reply in cohort.stream(self.train, shared=self.present(server, "means", "decoder", "units")):
            tables.append(reply.table("means"))
            decoders.add(reply.weights("decoder"), 1.0)
        means = mean_over_clients(tables, width=server.features, by_count=True, rule=server.aggregation)
        server.state["means"] = server.memory.table("means").updated(means)  # absent classes keep their row
        server.state["decoder"] = decoders.result(server.memory.weights("decoder"))

    def agree_on_units(self, server: Server, cohort: Cohort) -> None:
        """Fix the units of series and tables for the whole run, from the clients of the first round."""
        replies = cohort.call(self.measure)
        reported = {name: reply.tensor("moments") for name, reply in replies.items() if "moments" in reply}
        if reported:
            samples = {name: server.profile(name).samples for name in reported}
            server.state["units"] = pooled_moments(reported, samples).to(server.device)

    @step(up={"moments": CHANNELS})
    def measure(self, client: Client, msg: Payload) -> Reply:
        """Return mean and variance of every channel; the mean of a few samples would be close to each of them."""
        return {"moments": channel_moments(client)} if len(client.train) >= max(1, self.min_class_count) else {}

    @step(
        down={"means": TableField("features"), "decoder": DECODER, "units": CHANNELS},
        up={"means": MEANS, "decoder": DECODER},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        decoder = self.load_decoder(client.seed, client.profile, msg)
        optimizer = Adam(decoder.parameters(), lr=self.decoder_lr)
        means, known = msg.table("means").dense(client.classes)
        units = Units(msg, client.profile)
        stream = client.stream("noise")

        def draw(batch: int) -> tuple[Tensor]:
            return (torch.randn(batch, client.profile.features, generator=stream),)

        def loss(x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            z = client.model.features(x)
            decoded = decoder(z + self.noise * noise, y)
            error = F.mse_loss(decoded, units.scaled(x))
            distance = ((z - means[y]).square().sum(1) * known[y]).mean() / (2 * x[0].numel())
            return F.cross_entropy(client.model.head(z), y), self.reconstruction * error, self.alignment * distance

        def step_decoder() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        client.fit(loss, adjust=step_decoder, draw=draw)
        client.state["trained"] = True
        width, count = client.profile.features, self.min_class_count
        table = client.class_means(client.model.features, width, min_count=count)
        return {"means": table, "decoder": weights_of(decoder)}

    def finish(self, server: Server, everyone: Cohort) -> None:
        tables = [reply.table("statistics") for reply in everyone.call(self.describe).values()]
        server.state["statistics"] = pool_classes(tables, server.features, self.rank)
        latents, labels = self.sample(server.memory, SHOWN, server.stream("shown"))
        if len(labels) and not has_units(server.roster[0]):
            decoder = self.load_decoder(server.seed, server.roster[0], server.memory)
            server.save_artifact("synthetic", images=decoder(latents, labels), labels=labels)
        everyone.call(self.fine_tune, shared=self.present(server, "statistics", "decoder", "units"))

    @staticmethod
    def present(server: Server, *names: str) -> dict[str, Value]:
        """Return the entries of the server's state that exist: there are no units for pictures."""
        return {name: server.state[name] for name in names if name in server.state}

    @step(up={"statistics": STATISTICS})
    def describe(self, client: Client, msg: Payload) -> Reply:
        """Describe the features of every class; a client that never trained has nothing to describe."""
        if "trained" not in client.state:
            return {"statistics": ClassTable.empty(row_width(client.profile.features, self.rank))}
        with torch.no_grad():
            features = torch.cat([client.model.features(x) for x, _ in client.clean_pass()])
        return {"statistics": describe_classes(features, client.train.labels, self.rank, self.min_class_count)}

    @step(down={"statistics": TableField(FromMethod("row_width")), "decoder": DECODER, "units": CHANNELS})
    def fine_tune(self, client: Client, msg: Payload) -> None:
        """Train the whole model on synthetic images of all described classes and on real images."""
        untuned = weights_of(client.model)
        if self.keep_untuned:
            client.state["untuned"] = untuned
        decoder = self.load_decoder(client.seed, client.profile, msg)
        units = Units(msg, client.profile)
        stream, real = client.stream("fine-tune"), client.train
        latents, labels = self.sample(msg, self.samples_per_class, stream)

        def draw(batch: int) -> tuple[Tensor]:
            count = round(self.real_ratio * batch) if len(real) else 0
            return (torch.randint(max(1, len(real)), (count,), generator=stream),)

        def loss(z: Tensor, y: Tensor, at: Tensor) -> Tensor:
            with torch.no_grad():
                x = units.restored(decoder(z, y))
            real_x, real_y = real.select(at)
            return F.cross_entropy(client.model(torch.cat([x, real_x])), torch.cat([y, real_y]))

        client.model.train()
        for part in client.model.modules():  # BatchNorm keeps the running statistics of real images
            part.training = not isinstance(part, nn.modules.batchnorm._BatchNorm)
        settings = dataclasses.replace(client.settings, epochs=1, steps=None, optimizer="adam", lr=self.finetune_lr)
        fit([], loss, Rows(latents, labels), settings, stream, parameters=client.model.parameters(), draw=draw)
        with torch.no_grad():
            for name, weight in client.model.named_parameters():  # untuned + interpolation * (tuned - untuned)
                weight.lerp_(untuned[name], 1 - self.interpolation)

    def sample(self, msg: Payload, count: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw `count` latents of every described class, with their labels."""
        table = msg.table("statistics")
        features = table.width // (2 + self.rank)
        drawn = [sample_class(row, features, count, self.noise, stream) for row in table.values]
        return torch.cat([table.values.new_zeros(0, features), *drawn]), table.classes.repeat_interleave(count)

    def load_decoder(self, seed: int, profile: Profile, msg: Payload) -> nn.Module:
        weights = msg.weights("decoder")
        decoder = self.new_decoder(seed, profile).to(next(iter(weights.values())).device)
        copy_into(decoder, weights)
        return decoder

    def new_decoder(self, seed: int, profile: Profile) -> nn.Module:
        with rng.seeded(seed, "decoder"):
            return new_decoder(profile.features, profile.input_shape, profile.classes)

    def predict_untuned(self, client: Client, x: Tensor) -> Tensor:
        """Predict with the model from before fine-tuning; before the last round that is the current model."""
        if "untuned" not in client.state:
            return self.predict(client, x)
        logits: Tensor = functional_call(client.model, client.memory.weights("untuned"), (x,))
        return logits

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"untuned": self.predict_untuned} if self.keep_untuned else {}

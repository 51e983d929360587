"""DFFKE: aggregation-free heterogeneous federated learning with data-free knowledge exchange.

Anonymous authors (under review when read), Algorithm 1, with the local training of a round at its end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, Value, register, rng, step
from polyfed.core.client import copy_into, weights_of
from polyfed.core.payload import view
from polyfed.core.profile import Profile
from polyfed.core.schema import FromMethod, ScalarField, TensorField, TreeField, WeightsField
from polyfed.errors import InputError
from polyfed.methods.dffke.docking import ClientSnapshot, fit_decoder, fit_docking
from polyfed.methods.dffke.embedding_decoder import (
    Album,
    EmbeddingDecoder,
    PublicAlbum,
    decoded,
    decoder_skeleton,
    some_of_each,
    viewable,
)
from polyfed.methods.dffke.exchange import Lesson, answers, learn
from polyfed.methods.dffke.public_images import public_images
from polyfed.methods.dffke.replay import ReplayIndex, newest, reviewed, reviewed_rows
from polyfed.models.generators import resized
from polyfed.training import TrainSettings, score
from polyfed.training.cycle import cycled
from polyfed.training.samples import as_floats

TOLD = ("targets", "memory", "targets_codes", "memory_codes")  # what teachers say, about the present and the past
SHOWN = 4  # synthetic images per class that are kept for looking at
Messages = dict[str, dict[str, Value]]  # to each client its own


def _samples(method: object, profile: Profile) -> int:
    return profile.samples


@register("dffke")
@dataclass(frozen=True)
class DFFKE(Method):
    """DFFKE: a decoder turns everybody's embeddings into images, on which every client learns from all others.

    The server sees all weights and one embedding per private sample, and other clients see the embeddings: there is
    no global model, but there is a party that must be trusted. The paper's text is taken where the released code
    differs: labels align the docking layers (`docking_target`), only answers are learned (`fke_embedding_loss`), and
    what was noised stays noised (`dp_scope`); the divergence is KL(teacher || student), as in equations 2 to 8 and in
    the code. Local training is by `train` of the config, epoch by epoch with a new optimiser each, until the model is
    right about `tau` of its own training samples in evaluation mode. Pixels are brought to about the range that
    models here take, as there are no statistics of the data. Global accuracy is measured after the exchange, personal
    accuracy after local training; clients outside a round count with the model that they have.
    """

    transfer: Literal["decoder", "dataset"] = "decoder"  # what is exchanged on: synthetic images, or a public set
    public: str | None = None  # with `transfer: dataset`, which one, not the clients' own; its labels are not used
    public_samples: Annotated[int, Ge(1)] = 1000  # images of the public set that are used, at most
    tau: Annotated[float, Interval(gt=0, le=1)] = 0.98  # training accuracy at which a client stops local training
    max_local_epochs: Annotated[int, Ge(1)] = 100  # after which it stops in any case
    width: Annotated[int, Ge(1)] = 512  # h, of the common space
    decoder_channels: Annotated[int, Ge(1)] = 128  # of the decoder's first map; the second has half of them
    docking_steps: int = 100  # T_Tran, steps on every client's embeddings
    docking_target: Literal["labels", "soft"] = "labels"  # what aligns embeddings: labels, or the models' own answers
    docking_decay: float = 0.001  # weight decay of docking layers
    decoder_epochs: int = 3  # T_Dec, passes over the embeddings of the largest client
    decoder_init: Literal["fresh", "warm"] = "fresh"  # a new decoder every round, or the last one trained on
    discrepancy: Literal["none", "kl", "mae", "mse"] = "none"  # also rewards the decoder where two clients disagree
    exchange_epochs: int = 2  # T_FKE, passes over the synthetic images of the largest client
    least_steps: int = 1000  # of the decoder, and of a student, in a round
    batch: Annotated[int, Ge(1)] = 100  # embeddings or synthetic images in a step
    lr: Annotated[float, Gt(0)] = 0.001  # of Adam for docking layers, decoder and exchange
    teachers: Annotated[int, Ge(1)] | None = None  # of a student in a round, drawn anew; none: all others
    weight_decay: float = 0.00001  # of the exchange
    kl: Literal["forward", "reverse", "jeffreys"] = "forward"  # KL(teacher || student), the other way, or their sum
    fke_embedding_loss: Literal["off", "on"] = "off"  # on: learn also teachers' codes of an image, as released
    fke_bn: Literal["train", "frozen"] = "train"  # whether synthetic images enter the running statistics of norms
    buffer: Annotated[int, Ge(0)] | None = None  # R, past rounds that are reviewed; none: all of them
    buffer_sync: Literal["full", "lazy"] = "full"  # a client that was away gets what it missed, or does without
    dp_scope: Literal["release", "docking_only"] = "release"  # docking_only: clean embeddings, not private

    needs = Needs()
    sends = Sends(
        up="all weights, one embedding and label (or answer) per training sample, and answers on synthetic images",
        down="a decoder, everybody's embeddings in a common space, a docking layer, and everybody's answers",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transfer == "dataset" and self.public is None:
            raise InputError("method.transfer is 'dataset', which needs method.public: the name of a dataset to use")
        if self.transfer == "dataset" and self.learns_codes:
            raise InputError("method.fke_embedding_loss is on, but with transfer: dataset there is no common space")

    def init(self, server: Server) -> None:
        server.state = {"docking": {}, "decoder": {}, "shelf": ReplayIndex().state(), "archive": {}, "introduced": {}}
        if (public := self.public_dataset()) is not None:
            server.state["public"] = public_images(public, self.public_samples, server.stream("public"))

    def public_dataset(self) -> str | None:
        return self.public if self.transfer == "dataset" else None

    def round(self, server: Server, cohort: Cohort) -> None:
        ask = self.ask_on_public_set if self.transfer == "dataset" else self.ask_on_synthetic_images
        lessons = ask(server, cohort)
        if lessons:
            cohort.call(self.exchange, each=lessons)
        cohort.measure("global")  # the paper's "classic"
        done = cohort.call(self.train)
        epochs, accuracy = ([reply.number(name) for reply in done.values()] for name in ("epochs", "accuracy"))
        server.record("local", epochs=epochs, accuracy=accuracy, missed=sum(a < self.tau for a in accuracy))
        cohort.measure("personal")

    def ask_on_synthetic_images(self, server: Server, cohort: Cohort) -> Messages:
        """Steps 1 to 7: from embeddings of private samples to everybody's answers on synthetic images."""
        got = {
            name: reply
            for name, reply in cohort.call(self.warm_up, self.embed).items()
            if server.profile(name).samples
        }
        if len(got) < 2:
            return {}
        parties = {name: self.party(server, name, reply) for name, reply in got.items()}
        self.unify(server, parties, got)
        codes = self.translated(cohort, parties, got)
        if len(codes) < 2:
            return {}
        sent: dict[str, Value] = {"decoder": self.train_decoder(server, parties, codes, got), "codes": codes}
        rows = {name: len(own) for name, own in codes.items()}
        turns = self.turns(rows.values())
        now, shelf = _key(server.round), ReplayIndex.of(server.state["shelf"], self.buffer)
        archive = _tree(server.state["archive"])
        owed = {name: shelf.owed(name) if self.buffer_sync == "full" else [] for name in cohort.ids}
        plans = {name: shelf.plan(name, owed[name]) for name in codes}
        each: Messages = {
            name: {"missing": {key: archive[key] for key in keys}} for name, keys in owed.items() if keys
        }
        for name, plan in plans.items():
            each[name] = {**each.get(name, {}), "review": plan, "docking": weights_of(parties[name].docking)}
        taught = cohort.call(self.teach, shared={**sent, "turns": turns}, each=each)
        for name in taught:
            shelf.took(name, [*owed[name], now])
        shelf.put(now, rows)
        wanted = shelf.wanted([profile.name for profile in server.roster] if self.buffer_sync == "full" else [])
        server.state["archive"] = {key: entry for key, entry in {**archive, now: sent}.items() if key in wanted}
        server.state["shelf"] = shelf.state()
        return self.lessons(server, cohort.ids, taught, rows, plans)

    def ask_on_public_set(self, server: Server, cohort: Cohort) -> Messages:
        """Everybody's answers on images that all have; nothing else leaves a client."""
        public, known = server.memory.tensor("public"), _tree(server.state["introduced"])
        each: Messages = {name: {"public": public} for name in cohort.ids if name not in known}
        rows = dict.fromkeys(cohort.ids, len(public))
        turns = self.turns(rows.values())
        taught = cohort.call(self.warm_up, self.teach, shared={"turns": turns}, each=each)
        server.state["introduced"] = {**known, **dict.fromkeys(taught, True)}
        return self.lessons(server, cohort.ids, taught, rows, {})

    @step()
    def warm_up(self, client: Client, msg: Payload) -> None:
        """Once: train alone, so that there is something to exchange."""
        if "warm" not in client.state:
            self.train_to_goal(client)
            client.state["warm"] = True

    @step(
        up={
            "model": WeightsField("model"),
            "embeddings": TensorField((_samples, "features"), by_sample=True),
            "labels": TensorField((_samples,), torch.int32, optional=True),
            "outputs": TensorField((_samples, "classes"), optional=True, by_sample=True),
            "docking": TreeField(optional=True),
        }
    )
    def embed(self, client: Client, msg: Payload) -> Reply:
        """Steps 1 and 2: E_k = h_k(X_k), and what belongs to each row. X_k is not looked at again before step 11."""
        with torch.no_grad():
            passed = [client.model.features(x) for x, _ in client.clean_pass()]
            rows = torch.cat([torch.zeros(0, client.profile.features), *passed])
            outputs = client.model.head(rows)
        told: Reply = {"outputs": outputs} if self.docking_target == "soft" else {"labels": client.train.labels.int()}
        trained = {"docking": client.state["docking"]} if self.learns_codes and "docking" in client.state else {}
        return {"model": weights_of(client.model), "embeddings": rows, **told, **trained}

    def party(self, server: Server, name: str, reply: Payload) -> ClientSnapshot:
        """A client as it uploaded itself, frozen, with the docking layer that it had last."""
        profile = server.profile(name)
        model = server.build(profile.spec)
        copy_into(model, reply.weights("model"))
        model.eval().requires_grad_(False)
        with rng.seeded(server.seed, "docking", name):
            docking = nn.Linear(profile.features, self.width)
        known = reply.get("docking") or _tree(server.state["docking"]).get(name)
        if known is not None:
            copy_into(docking, view({"docking": known}).weights("docking"))
        return ClientSnapshot(model.backbone, model.head, docking)

    def unify(self, server: Server, parties: Mapping[str, ClientSnapshot], got: Mapping[str, Payload]) -> None:
        """Step 3: docking layers by which one new head, dropped afterwards, tells everybody's classes."""
        with rng.seeded(server.seed, "head", server.round):
            head = nn.Linear(self.width, server.classes)
        course = fit_docking(
            parties,
            {name: reply.tensor("embeddings") for name, reply in got.items()},
            {name: _target(reply) for name, reply in got.items()},
            head,
            iterations=self.docking_steps,
            lr=self.lr,
            weight_decay=self.docking_decay,
        )
        fresh = {name: weights_of(party.docking) for name, party in parties.items()}
        server.state["docking"] = {**_tree(server.state["docking"]), **fresh}
        for party in parties.values():
            party.docking.requires_grad_(False)
        server.record("docking", loss=[*course[:1], *course[-1:]])

    def translated(
        self, cohort: Cohort, parties: Mapping[str, ClientSnapshot], got: Mapping[str, Payload]
    ) -> dict[str, Tensor]:
        """Step 4: E~_k = z_k(E_k), from what was uploaded."""
        if self.dp_scope == "release":
            return {name: party.docking(got[name].tensor("embeddings")) for name, party in parties.items()}
        sent: Messages = {name: {"docking": weights_of(party.docking)} for name, party in parties.items()}
        again = cohort.call(self.embed_again, each=sent)
        return {name: reply.tensor("codes") for name, reply in again.items() if "codes" in reply}

    @step(
        down={"docking": TreeField(optional=True)},
        up={"codes": TensorField((_samples, FromMethod("width")), optional=True, by_sample=True)},
    )
    def embed_again(self, client: Client, msg: Payload) -> Reply:
        """Step 4 as released: from clean samples, whatever noise the docking layers were trained with."""
        if "docking" not in msg:
            return {}
        client.state["docking"] = msg["docking"]
        docking = self.docking_of(client)
        with torch.no_grad():
            return {"codes": torch.cat([docking(client.model.features(x)) for x, _ in client.clean_pass()])}

    def train_decoder(
        self,
        server: Server,
        parties: Mapping[str, ClientSnapshot],
        codes: Mapping[str, Tensor],
        got: Mapping[str, Payload],
    ) -> dict[str, Tensor]:
        """Step 5: images from which encoders get the codes back (Eq. 12)."""
        with rng.seeded(server.seed, "decoder", server.round):
            decoder = EmbeddingDecoder(self.width, server.roster[0].image, self.decoder_channels)
        decoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.decoder_init == "warm" and server.state["decoder"]:
            copy_into(decoder, server.memory.weights("decoder"))
        passes = self.decoder_epochs * max(math.ceil(len(rows) / self.batch) for rows in codes.values())
        course = fit_decoder(
            decoder,
            parties,
            codes,
            {name: server.stream(f"decoder {name}") for name in codes},
            iterations=max(self.least_steps // len(codes), passes),
            batch=self.batch,
            lr=self.lr,
            discrepancy=self.discrepancy,
        )
        weights = weights_of(decoder)
        if self.decoder_init == "warm":
            server.state["decoder"] = weights
        rows, labels = torch.cat(list(codes.values())), torch.cat([_labels(got[name]) for name in codes])
        variance = float(rows.var(0, unbiased=False).mean())
        server.record("decoder", fidelity=[*course[:1], *course[-1:]], variance=variance)
        shown = some_of_each(labels, SHOWN)
        server.save_artifact(
            "synthetic", images=viewable(decoded(decoder.eval(), weights, rows[shown])), labels=labels[shown]
        )
        return weights

    @step(
        down={
            "turns": ScalarField(least=0),
            **{
                name: TreeField(optional=True)
                for name in ("decoder", "codes", "review", "docking", "missing", "public")
            },
        },
        up={
            "targets": TensorField(("rows", "classes"), optional=True),
            "memory": TensorField(("past", "classes"), optional=True),
            "targets_codes": TensorField(("rows", FromMethod("width")), optional=True),
            "memory_codes": TensorField(("past", FromMethod("width")), optional=True),
        },
    )
    def teach(self, client: Client, msg: Payload) -> Reply:
        """Step 7: T_k = softmax f_k(Dec(E~_k)) in evaluation mode, and the same on images of past rounds."""
        now = _key(client.round)
        if "decoder" in msg:
            past = {**_tree(client.state.get("buffer")), **_tree(msg.get("missing"))}
            client.state["buffer"] = {**newest(past, self.buffer), now: {k: msg[k] for k in ("decoder", "codes")}}
            if "docking" not in msg:  # what it uploaded did not arrive: it learns in this round, but does not teach
                return {}
            client.state["docking"] = msg["docking"]
        if "public" in msg:
            images = resized(as_floats(msg.tensor("public")), client.profile.image)
            client.state["public"] = (255 * images).round().to(torch.uint8)
        album = self.album(client)
        client.model.eval()
        present = [(now, torch.arange(album.count(now, client.name)))]
        again = self.reviewed(client, client.name, msg.get("review"), int(msg.number("turns")))
        reply: dict[str, Value] = {}
        for name, parts in (("targets", present), ("memory", again)):
            if parts:
                seen = [lambda at, key=key: album.images(key, client.name, at) for key, _ in parts]
                found = [
                    answers(client.model.backbone, client.model.head, images, at)
                    for images, (_, at) in zip(seen, parts, strict=True)
                ]
                reply[name] = torch.cat([told for told, _ in found])
                if self.learns_codes:
                    with torch.no_grad():
                        reply[f"{name}_codes"] = self.docking_of(client)(torch.cat([f for _, f in found]))
        return reply

    def turns(self, rows: Collection[int]) -> int:
        """I, in each of which a student takes a step for every teacher on its past and one on its present."""
        teachers = min(len(rows) - 1, self.teachers or len(rows))
        passes = self.exchange_epochs * max(math.ceil(count / self.batch) for count in rows)
        return max(self.least_steps // 2 // max(1, teachers), passes)

    def lessons(
        self,
        server: Server,
        students: tuple[str, ...],
        taught: Mapping[str, Payload],
        rows: Mapping[str, int],
        plans: Mapping[str, Mapping[str, int]],
    ) -> Messages:
        """For every student the answers of its teachers, all others or some of them; never its own."""
        turns = self.turns(rows.values())
        whole = {
            name: reply
            for name, reply in taught.items()
            if _rows(reply, "targets") == rows.get(name)
            and _rows(reply, "memory") == reviewed_rows(plans.get(name, {}), turns, self.batch)
        }
        each: Messages = {}
        for student in students:
            others = [name for name in whole if name != student]
            if self.teachers is not None:
                drawn = torch.randperm(len(others), generator=server.stream(f"teachers {student}"))[: self.teachers]
                others = [others[k] for k in sorted(drawn.tolist())]
            if others:
                told = {kind: {n: whole[n][kind] for n in others if kind in whole[n]} for kind in TOLD}
                review = {name: plans[name] for name in others if plans.get(name)}
                each[student] = {"turns": turns, **{k: v for k, v in {**told, "review": review}.items() if v}}
        sent = [value for message in each.values() for kind in TOLD for value in _tree(message.get(kind)).values()]
        server.record("peers", bytes=sum(value.nbytes for value in sent if isinstance(value, Tensor)))
        return each

    @step(
        down={
            "turns": ScalarField(least=0, optional=True),
            **{
                name: TreeField(optional=True)
                for name in ("targets", "memory", "targets_codes", "memory_codes", "review")
            },
        }
    )
    def exchange(self, client: Client, msg: Payload) -> None:
        """Step 8: learn from the others' answers, which stay as they are; step 9: forget the oldest round."""
        kept = _tree(client.state.get("buffer"))
        if "targets" in msg and ("public" in client.state or _key(client.round) in kept):
            docking = self.docking_of(client) if self.learns_codes and "docking" in client.state else None
            learn(
                client.model.backbone,
                client.model.head,
                docking,
                self.lessons_of(client, msg),
                TrainSettings(optimizer="adam", lr=self.lr, weight_decay=self.weight_decay),
                direction=self.kl,
                frozen_norms=self.fke_bn == "frozen",
            )
            if docking is not None:
                client.state["docking"] = weights_of(docking)
        client.state["buffer"] = newest(kept, self.buffer)

    def lessons_of(self, client: Client, msg: Payload) -> Iterator[Lesson]:
        """In every turn a batch from the past of every teacher (Eq. 14), then one from its present (Eq. 13)."""
        album, now, turns = self.album(client), _key(client.round), int(msg.number("turns"))
        told = {kind: Payload(_tree(msg.get(kind))) for kind in TOLD}
        present, past = {}, {}
        for name in told["targets"]:
            rows = torch.arange(album.count(now, name))
            present[name] = cycled(rows, rows, self.batch, client.stream(f"exchange {name}"))
            again = self.reviewed(client, name, _tree(msg.get("review")).get(name), turns)
            ends = torch.tensor([len(at) for _, at in again]).cumsum(0).tolist()
            past[name] = [
                (key, at, torch.arange(end - len(at), end)) for (key, at), end in zip(again, ends, strict=True)
            ]
        for turn in range(turns):
            for name, batches_again in past.items():
                if batches_again and album.count(batches_again[turn][0], name):
                    key, at, place = batches_again[turn]
                    yield _lesson(album.images(key, name, at), told, "memory", name, place)
            for name, batches in present.items():
                at, _ = next(batches)
                yield _lesson(album.images(now, name, at), told, "targets", name, at)

    @step(up={"epochs": ScalarField(least=0), "accuracy": ScalarField(least=0)})
    def train(self, client: Client, msg: Payload) -> Reply:
        """Step 11."""
        epochs, accuracy = self.train_to_goal(client)
        return {"epochs": epochs, "accuracy": accuracy}

    def train_to_goal(self, client: Client) -> tuple[int, float]:
        """Epochs of training on its own samples until it is right about tau of them; how many, and about how many."""
        epochs, accuracy = 0, self.accuracy(client)
        while accuracy < self.tau and epochs < self.max_local_epochs:
            if not client.fit(epochs=1, steps=client.settings.steps, purpose=f"local {epochs}").steps:
                break  # a single sample, which a model with BatchNorm cannot be trained on
            epochs, accuracy = epochs + 1, self.accuracy(client)
        return epochs, accuracy

    def accuracy(self, client: Client) -> float:
        client.model.eval()
        return score(client.model, client.train).accuracy if len(client.train) else 1.0

    @property
    def learns_codes(self) -> bool:
        return self.fke_embedding_loss == "on"

    def docking_of(self, client: Client) -> nn.Linear:
        docking = nn.Linear(client.profile.features, self.width)
        copy_into(docking, client.memory.weights("docking"))
        return docking

    def album(self, client: Client) -> Album | PublicAlbum:
        """The images of the present and of past rounds."""
        if self.transfer == "dataset":
            return PublicAlbum(client.memory.tensor("public"))
        rounds = {key: view(_tree(entry)) for key, entry in _tree(client.state.get("buffer")).items()}
        skeleton = decoder_skeleton(self.width, client.profile.image, self.decoder_channels)
        return Album(skeleton, {key: (got.weights("decoder"), got.weights("codes")) for key, got in rounds.items()})

    def reviewed(self, client: Client, teacher: str, sizes: Value, turns: int) -> list[tuple[str, Tensor]]:
        """The past images of a teacher that are looked at in this round: the same at every client."""
        counts = {key: int(view(_tree(sizes)).number(key)) for key in _tree(sizes)}
        stream = partial(rng.generator, client.seed, "review", client.round, teacher)
        return reviewed(counts, turns, self.batch, stream)


def _tree(value: Value) -> dict[str, Value]:
    """A mapping as such; empty where there is none."""
    return dict(value) if isinstance(value, Mapping) else {}


def _target(reply: Payload) -> Tensor:
    """Y_k, or what f_k says of its samples: noise, if there is any, is on the logits."""
    return reply.tensor("labels").long() if "labels" in reply else reply.tensor("outputs").softmax(1)


def _labels(reply: Payload) -> Tensor:
    target = _target(reply)
    return target.argmax(1) if target.ndim > 1 else target


def _key(number: int) -> str:
    """What a round is called in a buffer."""
    return f"{number:06d}"


def _rows(reply: Payload, name: str) -> int:
    return len(reply.tensor(name)) if name in reply else 0


def _lesson(images: Tensor, told: Mapping[str, Payload], kind: str, teacher: str, rows: Tensor) -> Lesson:
    codes = told[f"{kind}_codes"]
    return Lesson(images, told[kind].tensor(teacher)[rows], codes.tensor(teacher)[rows] if teacher in codes else None)

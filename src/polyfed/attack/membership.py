"""Membership inference: tell a client's training samples from other samples of the same kind.

The attack on the model is the loss threshold of Yeom et al. 2018 (https://arxiv.org/abs/1709.01604): the model was
probably trained on samples with a low loss. The attack on uploaded class means uses the distance of a sample's
features to the mean of its class instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.attack import target as targets
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import Client
from polyfed.core.codec import decode
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.runs.folder import RunFolder
from polyfed.training import Samples
from polyfed.training.samples import EVALUATION_BATCH as BATCH

THREAT_MODEL = "The attacker has the client's model and, for each sample, its label."


@dataclass(frozen=True)
class Separation:
    """How well a score separates training samples from others. Lower scores speak for training samples."""

    members: Tensor
    others: Tensor

    @property
    def auc(self) -> float:
        """Probability that a training sample has a lower score than another sample; 0.5 is guessing."""
        ordered = torch.sort(self.others).values
        up_to = torch.searchsorted(ordered, self.members, right=True)
        above, equal = len(ordered) - up_to, up_to - torch.searchsorted(ordered, self.members)
        return float((above + 0.5 * equal).double().mean() / len(ordered))

    @property
    def advantage(self) -> float:
        """True positive rate minus false positive rate at the threshold of Yeom et al., the mean over members."""
        threshold = self.members.mean()
        return float((self.members <= threshold).double().mean() - (self.others <= threshold).double().mean())

    def report(self) -> dict[str, float]:
        return {"auc": self.auc, "advantage": self.advantage}


def infer_membership(path: Path, client: str | None = None, *, trust: bool = False) -> dict[str, Any]:
    """Attack a client of a finished run; by default, the first client whose uploads were recorded."""
    folder, federation = targets.load_run(path, trust=trust)
    name = targets.choose_client(federation, client, path)
    victim = federation.make_client(name)
    victim.seed = federation.seed
    if not len(victim.train) or not len(victim.test):
        raise InputError(f"client {name} has no training samples or no held-out samples to tell apart")
    separations = {"initial model": _by_loss(victim)}  # has seen no sample: what it separates is not membership
    protected = set() if federation.guard is None else {one.field for one in federation.guard.protections}
    reply = _last_upload(folder, name)
    visible = Payload({field: value for field, value in reply.items() if field not in protected})
    model = targets.load_model(folder, victim, visible)
    separations["model"] = _by_loss(victim)
    for field, value in reply.items():
        if isinstance(value, ClassTable) and value.width in (victim.profile.features, victim.profile.classes):
            separations[f"uploaded '{field}'"] = _by_distance(victim, value)
    return {
        "client": name,
        "model": model,
        "members": len(victim.train),
        "others": len(victim.test),
        "threat_model": THREAT_MODEL,
        "scores": {kind: one.report() for kind, one in separations.items()},
    }


def _last_upload(folder: RunFolder, client: str) -> Payload:
    files = folder.uploads(client)
    return decode(files[-1].read_bytes()) if files else Payload({})


def _by_loss(client: Client) -> Separation:
    def losses(samples: Samples) -> Tensor:
        client.model.eval()
        with torch.no_grad():
            batches = [F.cross_entropy(client.model(x), y, reduction="none") for x, y in samples.batches(BATCH)]
        return torch.cat(batches)

    return Separation(losses(client.train), losses(client.test))


def _by_distance(client: Client, table: ClassTable) -> Separation:
    """Compare samples with the uploaded row of their class. Samples of classes without a row are left out."""
    rows = dict(zip(table.classes.tolist(), table.values, strict=True))

    def distances(samples: Samples) -> Tensor:
        has_row = torch.tensor([int(label) in rows for label in samples.labels], dtype=torch.bool)
        means = [rows[int(label)] for label in samples.labels[has_row]]
        vectors = targets.rows_of(client, samples, table.width)[has_row]
        return torch.linalg.vector_norm(vectors - torch.stack(means), dim=1) if means else torch.zeros(1)

    return Separation(distances(client.train), distances(client.test))

"""The split of a client's training data into a study set and a quiz set (Algorithm 1, line 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from polyfed.core import Client, rng
from polyfed.training import Samples
from polyfed.training.samples import model_inputs


def study_quiz_split(client: Client, quiz: int) -> tuple[Samples, Samples]:
    """Return the study and the quiz set of a client.

    The split depends on the run's seed and the client's name only, so that it is the same in every round. Clients
    with fewer samples than `quiz` and a batch hold out a tenth of them, at least one.
    """
    n, batch = len(client.train), client.settings.batch_size
    held_out = quiz if n >= quiz + batch else max(1, n // 10)
    order = torch.randperm(n, generator=rng.generator(client.seed, "quiz", client.name))
    study, quiz_indices = order[held_out:].sort().values, order[:held_out].sort().values
    return client.train.subset(study), client.train.subset(quiz_indices)


def random_study_batches(client: Client, study: Samples, count: int) -> list[tuple[Tensor, Tensor]]:
    """Return random batches of the study set, each drawn from the whole set."""
    generator, size = client.stream("study"), client.settings.batch_size
    batches = [study.subset(torch.randperm(len(study), generator=generator)[:size]) for _ in range(count)]
    return [(model_inputs(batch.inputs.to(client.device)), batch.labels) for batch in batches]

"""How much work a run is, before it starts: training steps, FLOPs, memory and disk space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfed.config import Config
from polyfed.core.client_profile import Profile
from polyfed.core.rounds import one_torch_thread
from polyfed.federation.simulation import SimulatedFederation
from polyfed.models import ModelSpec
from polyfed.models.training_cost import TrainingCost, training_cost

USUAL_OPERATIONS_PER_SECOND = 100_000  # that one process starts on a GPU without compilation
STARTED_PER_STEP = 3  # operations of a training step, compared with a forward pass
CHECKPOINTS = 2  # kept at any time; a client that took part in between has a state in each


@dataclass(frozen=True)
class Workload:
    """Estimates for a whole run. Models besides the clients' own, such as auxiliary ones, are not counted."""

    steps: float  # training steps of all clients
    training_flops: float
    evaluation_flops: float
    operations: float  # such as one convolution of a batch, which a GPU has to start
    state_bytes: int  # models of all clients, in two checkpoints
    worker_bytes: float  # weights, gradients, optimiser state and activations of the largest client in a step
    largest: str  # model of that client
    assumptions: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        """FLOPs of the run."""
        return self.training_flops + self.evaluation_flops

    def computing_hours(self, tflops: float) -> float:
        """Return the hours on a device with this many TFLOPS, if batches are large enough to reach them."""
        return self.flops / (tflops * 1e12) / 3600

    def starting_hours(self, per_second: float = USUAL_OPERATIONS_PER_SECOND) -> float:
        """Return the hours that it takes to start all operations. Small batches on a GPU are limited by this."""
        return self.operations / per_second / 3600


def estimate_workload(federation: SimulatedFederation, profiles: Sequence[Profile]) -> Workload:
    """Estimate the work of a run from one small forward pass per architecture."""
    config, train = federation.config, federation.config.train
    with one_torch_thread():
        distinct = dict.fromkeys(federation.specs)
        costs = {spec: training_cost(spec, federation.shape, federation.classes) for spec in distinct}
    participations = config.rounds * config.per_round / config.clients  # expected, per client
    training = steps = operations = 0.0
    assumptions = []
    for spec, profile in zip(federation.specs, profiles, strict=True):
        work = federation.method.training_work(profile, profiles, config.per_round, federation.training)
        samples = work.per_round * participations + work.at_end
        training += samples * costs[spec].training_flops
        own_steps = samples / max(1, min(train.batch_size, profile.samples))
        steps += own_steps
        operations += own_steps * STARTED_PER_STEP * costs[spec].operations
        assumptions += [work.assumption] if work.assumption else []
    memory = {spec: cost.memory(train.batch_size, train.optimizer, train.momentum) for spec, cost in costs.items()}
    largest = max(memory, key=lambda spec: memory[spec])
    return Workload(
        steps=steps,
        training_flops=training,
        evaluation_flops=_evaluations(config) * _evaluation_flops(federation, costs),
        operations=operations,
        state_bytes=CHECKPOINTS * sum(costs[spec].state_bytes for spec in federation.specs),
        worker_bytes=memory[largest],
        largest=largest.label,
        assumptions=tuple(dict.fromkeys(assumptions)),
    )


def _evaluations(config: Config) -> int:
    """Return the number of rounds after which models are evaluated. The last one is always among them."""
    return math.ceil(config.rounds / config.evaluate.every)


def _evaluation_flops(federation: SimulatedFederation, costs: Mapping[ModelSpec, TrainingCost]) -> float:
    """Return the FLOPs of one evaluation of all clients."""
    evaluate, flops = federation.config.evaluate, 0.0
    ways = 1 + len(federation.method.also_predict())
    if evaluate.personal:
        tests = federation.matched_test if federation.matched_test is not None else federation.partition.test
        flops += sum(
            len(test) * costs[spec].forward_flops for spec, test in zip(federation.specs, tests, strict=True)
        )
    if evaluate.global_ and federation.global_test is not None:
        evaluated = costs if federation.method.predicts_from_published() else federation.specs
        flops += len(federation.global_test) * sum(costs[spec].forward_flops for spec in evaluated)
    return ways * flops

"""How much DFFKE trains a client's model, for estimates before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfed.core.client_profile import Profile
from polyfed.core.training_work import TrainingWork
from polyfed.methods.dffke.decoder_training import steps_per_client
from polyfed.training import TrainSettings

if TYPE_CHECKING:
    from polyfed.methods.dffke.method import DFFKE

USUAL_EPOCHS = 10  # of local training in a round: Table 9 has 14 in round 1 and 7 in round 20
FROZEN_PASS = 2 / 3  # cost of a forward and backward pass through frozen weights, compared with training


def training_work(
    method: DFFKE, client: Profile, roster: Sequence[Profile], per_round: int, settings: TrainSettings
) -> TrainingWork:
    """Count local training, the exchange, and passes of the decoder's images through the client's model."""
    sizes = sorted((profile.samples for profile in roster), reverse=True)[:per_round]
    teachers = min(per_round - 1, method.teachers or per_round)
    batch = min(method.batch, client.samples)
    exchange = method.exchange_turns(sizes) * teachers * 2 * batch
    decoder = steps_per_client(sizes, method.decoder_epochs, method.batch, method.least_steps) * batch
    epochs = min(method.max_local_epochs, USUAL_EPOCHS)
    decoder = decoder if method.public is None else 0
    return TrainingWork(
        epochs * client.samples + exchange + FROZEN_PASS * decoder,
        assumption=f"clients reach {100 * method.tau:g} % training accuracy after {epochs} epochs in a round",
    )

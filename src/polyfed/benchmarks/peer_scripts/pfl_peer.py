"""FedAvg in Apple's pfl, in one process with all cores, as its simulation runs on one machine without a launcher."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import setting


class PflCNN(setting.PeerCNN):
    """The common CNN with the functions that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor, **options: Any) -> dict[str, Any]:
        return {}


def main(folder: str, cores: int) -> None:
    """Run a round for every line of the input."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(cores)
    share, rounds, module = setting.Share(Path(folder)), setting.Rounds(), PflCNN()
    module.load_state_dict(share.initial_model().state_dict())

    class Gate(TrainingProcessCallback):  # type: ignore[misc]
        """Answers at the end of a round and waits for the next request."""

        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
            rounds.answer()
            rounds.wait()  # the request for the accuracy
            rounds.answer(accuracy=setting.accuracy(module, *share.samples("test")))
            module.train()
            return not rounds.wait(), Metrics()

    def dataset(user: str) -> Any:
        x, y = share.samples("train", int(user))
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(int(user)))
        return Dataset([x[order], y[order]], user_id=user)

    users = [str(client) for client in range(share.clients)]
    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", users))
    model = PyTorchModel(
        module,
        local_optimizer_create=partial(torch.optim.SGD, fused=True),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    training = NNTrainHyperParams(
        local_batch_size=setting.BATCH, local_num_epochs=1, local_learning_rate=setting.LEARNING_RATE
    )
    plan = NNAlgorithmParams(
        central_num_iterations=10_000,
        evaluation_frequency=10_000,  # only before the first round, which does not count
        train_cohort_size=share.clients,
        val_cohort_size=0,
    )
    if rounds.wait():
        FederatedAveraging().run(
            plan,
            SimulatedBackend(data, data),
            model,
            training,
            NNEvalHyperParams(local_batch_size=None),
            [Gate()],
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

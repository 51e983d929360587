"""Fine-tuning on synthetic samples (Algorithm 1, lines 29 to 31), with local samples mixed in on request."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.training import Samples, TrainSettings, fit


def fine_tune(
    model: nn.Module,
    synthetic: Samples,
    settings: TrainSettings,
    generator: torch.Generator,
    *,
    local: Samples,
    local_share: float = 0.0,
    freeze_norms: bool = False,
) -> None:
    """Train the whole model by cross-entropy on synthetic samples.

    Each batch is extended by `local_share` times its size in random samples of `local`. With `freeze_norms`,
    BatchNorm uses its running statistics and does not update them.
    """

    def draw(batch: int) -> tuple[Tensor, ...]:
        count = round(local_share * batch) if len(local) else 0
        return (torch.randint(len(local), (count,), generator=generator),) if count else ()

    def loss(x: Tensor, y: Tensor, *at: Tensor) -> Tensor:
        if at:
            local_x, local_y = local.select(at[0])
            x, y = torch.cat([x, local_x]), torch.cat([y, local_y])
        return F.cross_entropy(model(x), y)

    modules = [model]
    if freeze_norms:
        model.train()
        for module in model.modules():
            module.training = not isinstance(module, nn.modules.batchnorm._BatchNorm)
        modules = []  # `fit` would set them to training mode
    fit(modules, loss, synthetic, settings, generator, parameters=model.parameters(), draw=draw)

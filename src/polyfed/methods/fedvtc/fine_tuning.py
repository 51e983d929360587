"""Fine-tuning on synthetic samples (Algorithm 1, lines 29 to 31), with local samples mixed in on request."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.training import Samples, TrainSettings, fit
from polyfed.training.samples import model_inputs


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

    def loss(x: Tensor, y: Tensor) -> Tensor:
        count = round(local_share * len(y)) if len(local) else 0
        if count:
            drawn = torch.randint(len(local), (count,), generator=generator)
            x, y = torch.cat([x, model_inputs(local.inputs[drawn])]), torch.cat([y, local.labels[drawn]])
        return F.cross_entropy(model(x), y)

    modules = [model]
    if freeze_norms:
        model.train()
        for module in model.modules():
            module.training = not isinstance(module, nn.modules.batchnorm._BatchNorm)
        modules = []  # `fit` would set them to training mode
    fit(modules, loss, synthetic, settings, generator, parameters=model.parameters())

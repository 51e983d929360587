"""FedRolex: model-heterogeneous federated learning with rolling sub-model extraction.

Alam, Liu, Yan, Zhang; NeurIPS 2022, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from polyfed.core import Server, register
from polyfed.methods.heterofl import HeteroFL
from polyfed.models.slicing import Rule, window

rolling_window = cache(window)  # one rule object for all clients of a round


@register("fedrolex")
@dataclass(frozen=True)
class FedRolex(HeteroFL):
    """FedRolex: HeteroFL with a window of channels that moves by one each round, so that all channels are trained.

    The window depends only on the round and on the width of a layer, so the layers of a residual stage roll together.
    The published settings draw the level of each client in every round; here it is fixed, like its model. Clients
    have equal weights; the released code also offers weights by width or by number of updates.

    A client is measured with its window of the last round. The accuracy "by server model" is that of the whole model,
    which the paper reports. If label distributions are similar, it is far better than narrow windows, which are not
    trained to work without the rest.
    """

    verdict = "Trains a large server model with small clients; judge it by the whole model, not by the windows."

    def rule(self, server: Server, client: str) -> Rule:
        """Return the window {s, ..., s + m - 1} mod K, with s = j mod K in round j."""
        return rolling_window(server.round)

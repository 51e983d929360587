"""Federated Dropout: expanding the reach of federated learning by reducing client resource requirements.

Caldas, Konecny, McMahan, Talwalkar; 2018, arXiv 1812.07210.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfed.core import Cohort, Server, register, rng
from polyfed.methods.heterofl import HeteroFL
from polyfed.models.slicing import Rule, drawn

OWN = "statistics of client "


@register("fed-dropout")
@dataclass(frozen=True)
class FedDropout(HeteroFL):
    """Federated Dropout: HeteroFL with random channels, drawn for every client and round.

    The layers of a residual stage use the same channels. The paper also compresses messages, which is not
    implemented. BatchNorm statistics are those of a client's own slice in the round; statistics pooled over different
    channels fit none of them.

    A client is measured with the slice that it trains in that round, with the statistics of test batches if it did
    not take part. The accuracy "by server model" is that of the whole model, which the paper reports.
    """

    verdict = (
        "Lets small clients train random parts of one model; judge it by the server's whole model, not by the parts."
    )

    averaged = ("model",)  # statistics belong to one client's slice

    def rule(self, server: Server, client: str) -> Rule:
        return drawn(rng.generator(server.seed, "kept channels", client, server.round))

    def statistics_key(self, server: Server, client: str) -> str:
        family, spec = server.family, server.profile(client).spec
        if family is None or spec == family.whole:
            return super().statistics_key(server, client)  # no channels are left out
        return f"{OWN}{client}"

    def collect(self, server: Server, cohort: Cohort) -> None:
        for key in [key for key in server.state if key.startswith(OWN)]:
            del server.state[key]  # of another round, and so of other channels
        super().collect(server, cohort)

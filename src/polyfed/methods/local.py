"""Local training: no communication. The baseline that every other method should beat."""

from __future__ import annotations

from dataclasses import dataclass

from polyfed.core import Client, Cohort, Method, Needs, Payload, Sends, Server, register, step


@register("local")
@dataclass(frozen=True)
class Local(Method):
    """Local training: every client trains its own model on its own data.

    There is no published protocol to deviate from. Clients are measured with the models that they have trained.
    """

    verdict = "The baseline without communication: hard to beat on own data, weak on classes that a client lacks."
    needs = Needs(same_classes=False)
    sends = Sends(up="nothing", down="nothing")

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.train)

    @step()
    def train(self, client: Client, msg: Payload) -> None:
        client.fit()

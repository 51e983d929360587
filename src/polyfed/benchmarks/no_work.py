"""A method whose clients only answer: what is left is what the engine itself takes."""

from __future__ import annotations

from dataclasses import dataclass

from polyfed.core import Client, Cohort, Method, Needs, Payload, Sends, Server, register, step


@register("no-work")
@dataclass(frozen=True)
class NoWork(Method):
    """Clients are called once a round, do nothing and say nothing."""

    needs = Needs(same_classes=False)
    sends = Sends(up="nothing", down="nothing")

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.answer)

    @step()
    def answer(self, client: Client, msg: Payload) -> None:
        """Nothing to do."""

"""A method with idle clients, to measure the time of the engine itself."""

from __future__ import annotations

from dataclasses import dataclass

from polyfed.core import Client, Cohort, Method, Needs, Payload, Sends, Server, register, step


@register("no-work")
@dataclass(frozen=True)
class NoWork(Method):
    """A method that calls every client once a round; clients do nothing and send nothing."""

    needs = Needs(same_classes=False)
    sends = Sends(up="nothing", down="nothing")

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.answer)

    @step()
    def answer(self, client: Client, msg: Payload) -> None:
        """Do nothing."""

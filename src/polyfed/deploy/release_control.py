"""Control of a site's releases: whether a run meets the site's demands, and whether one more upload does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from polyfed.core.client_maker import ClientMaker
from polyfed.core.engine import Call, Task
from polyfed.core.method import Method
from polyfed.deploy.privacy_ledger import PrivacyLedger, Release
from polyfed.deploy.site_demands import Demands, FieldDemand
from polyfed.deploy.site_errors import SiteRefusalError
from polyfed.errors import nearest
from polyfed.guards import accountant
from polyfed.guards.exposure import exposed_fields
from polyfed.guards.privacy import PrivacyGuard
from polyfed.guards.protections import Protection, steps_by_field

ID_DIGITS = 16  # hexadecimal digits of a release's id


@dataclass
class ReleaseControl:
    """Checks the uploads of one run at a site against its demands, and enters them into its ledger."""

    site: str
    run: str
    demands: Demands
    ledger: PrivacyLedger
    maker: ClientMaker

    def __post_init__(self) -> None:
        guard = self.maker.guard
        protections = guard.protections if isinstance(guard, PrivacyGuard) else ()
        self._protections = {one.field: one for one in protections if not one.measured}
        self._exposed = exposed_fields(self.maker.method, list(self._protections.values()))

    def check_run(self) -> None:
        """Raise `SiteRefusalError` if the config cannot meet the demands for single fields."""
        sent = steps_by_field(self.maker.method)
        for field, demand in self.demands.fields.items():
            if field not in sent:
                raise SiteRefusalError(
                    f"site {self.site} requires privacy for '{field}', which {self.maker.method.name} does not "
                    f"upload; {nearest(field, sent)}"
                )
            protection = self._protections.get(field)
            if protection is None:
                raise SiteRefusalError(f"{self._requirement(field, demand)}; the config does not protect it")
            cost = _planned_cost(protection, demand.delta)
            if cost > demand.epsilon:
                raise SiteRefusalError(f"{self._requirement(field, demand)}; the config gives {cost:.4g}")

    def admit_evaluation(self, call: Call, task: Task, shared: bytes) -> None:
        """Enter an evaluation of a model that is not the site's own. Raise `SiteRefusalError` beyond the limit."""
        if call.steps or type(self.maker.method).adopt is Method.adopt:
            return
        limit, evaluations = self.demands.max_evaluations, self.ledger.evaluations
        question = repr((self.run, call.round, task.base, call.measures, call.metrics)).encode()
        digests = b"".join(hashlib.sha256(part).digest() for part in (question, shared, task.own))
        identity = hashlib.sha256(digests).hexdigest()[:ID_DIGITS]
        if identity in evaluations:
            return
        if limit is not None and len(evaluations) >= limit:
            raise SiteRefusalError(
                f"site {self.site} evaluates models that are not its own at most {limit} times and has reached the "
                "limit"
            )
        evaluations.append(identity)
        self.ledger.save()

    def admit_upload(self, fields: Iterable[str], digest: str) -> None:
        """Enter an upload of these fields. Raise `SiteRefusalError` if it goes beyond a demand.

        Call it before the reply is sent. `digest` identifies the content of the reply.
        """
        identity, new = digest[:ID_DIGITS], list[Release]()
        for field in fields:
            protection = self._protections.get(field)
            multiplier = None if protection is None else protection.multiplier
            release = self.ledger.release(self.run, field, multiplier, field in self._exposed)
            if identity not in release.ids:
                new.append(release)
        for release in new:
            release.ids.append(identity)
        try:
            for release in new:
                self._check_release(release)
            self._check_budget(new)
        except SiteRefusalError:
            for release in new:
                release.ids.pop()
            raise
        if new:
            self.ledger.save()

    def _check_release(self, release: Release) -> None:
        field, limit = release.field, self.demands.max_releases
        if limit is not None and self.ledger.count(field) > limit:
            raise SiteRefusalError(
                f"site {self.site} uploads '{field}' at most {limit} times and has reached the limit"
            )
        demand = self.demands.fields.get(field)
        if demand is not None and self.ledger.spent(demand.delta, field=field, run=self.run) > demand.epsilon:
            raise SiteRefusalError(f"{self._requirement(field, demand)}; one more upload would exceed it")

    def _check_budget(self, new: list[Release]) -> None:
        budget = self.demands.epsilon_budget
        if budget is None or not new:
            return
        if self.ledger.exposed is not None:
            raise SiteRefusalError(
                f"site {self.site} has an epsilon budget, but '{self.ledger.exposed.field}' of run "
                f"{self.ledger.exposed.run} depends on single samples and is not protected"
            )
        if self.ledger.spent() > budget:
            raise SiteRefusalError(
                f"site {self.site} has an epsilon budget of {budget:g} for all runs on its data; another upload "
                "would exceed it"
            )

    def _requirement(self, field: str, demand: FieldDemand) -> str:
        limit = f"{demand.epsilon:g} at delta {demand.delta:g}"
        return f"site {self.site} requires an epsilon of at most {limit} for '{field}'"


def _planned_cost(protection: Protection, delta: float) -> float:
    """Return the epsilon of the planned releases of a field, or of one release if their number is open."""
    return accountant.epsilon([(protection.multiplier, protection.planned or 1)], delta)

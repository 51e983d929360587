"""A client that lies about its values does not end a run, and no other client fails because of it."""

from __future__ import annotations

import pytest
from tests.methods.lying_clients import LIES, LyingEngine
from tests.methods.test_battery import METHODS
from tests.small import SMALL

from polyfed import catalogue
from polyfed.core.finite_values import check_finite
from polyfed.testing.toy_federation import ToyFederation

MAX_RATIO = 1e4  # as in the config
CLASS_COUNTS = ((4, 4, 0, 0), (0, 4, 3, 0), (0, 0, 4, 4), (3, 0, 0, 4), (2, 2, 2, 2))  # one batch for each client


@pytest.mark.parametrize("method", METHODS)
def test_one_client_of_five_lies_in_ten_ways(method: str) -> None:
    with ToyFederation(catalogue.load(method), SMALL.get(method, {})) as toy:
        # every method begins with another lie
        engine = LyingEngine(liar="2", first=METHODS.index(method) % len(LIES))
        outcome = toy.run(toy.config(CLASS_COUNTS, rounds=len(LIES)), wrap=engine, max_ratio=MAX_RATIO)
        for client in "0134" if outcome.ledger.versions else ():  # local training calls no client
            check_finite(outcome.client(client))
    assert {failure["client"] for failure in outcome.failures} <= {"2"}
    check_finite(outcome.server)

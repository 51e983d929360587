"""The battery on a simulated device: every check passes, and all of its runs give the results of the CPU."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet
from tests import simulated_device
from tests.device_runs import METHODS
from tests.small import SMALL
from tests.tiers import always_if

from polyfed import catalogue, testing

# Checks that start worker processes run on the device in tests/devices/test_device_engines.py.
CHECKS = [name for name in testing.checks() if name != "serial_equals_pool"]
# checks of messages, which use the run of an earlier check
READS_MESSAGES = ["sends_matches_messages", "invalid_messages_refused", "bytes_counted_as_sent"]
QUICK: dict[str, list[str]] = {
    "local": ["client_with_one_sample"],
    "fedproto": ["odd_last_batch", "resumed_equals_uninterrupted"],
    "scaffold": ["failing_clients_tolerated"],
}


def parameters() -> list[ParameterSet]:
    pairs = [(method, check) for method in METHODS for check in CHECKS]
    return [pytest.param(m, c, marks=always_if(c in QUICK.get(m, [])), id=f"{m}-{c}") for m, c in pairs]


@pytest.mark.parametrize(("method", "check"), parameters())
def test_method_passes_on_a_device(method: str, check: str) -> None:
    kind, fields = catalogue.load(method), SMALL.get(method)
    with simulated_device.simulated() as counts:
        on_device = testing.run_check(check, kind, fields, device="sim")
        assert counts.to_device > 0 or not on_device or check in READS_MESSAGES
    assert on_device == testing.run_check(check, kind, fields)

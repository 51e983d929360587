"""Counting of releases: replies that may have been sent count."""

from __future__ import annotations

from polyfed.catalogue import make
from polyfed.config import PrivacyConfig
from polyfed.guards.privacy_cost import count_releases, privacy_report
from polyfed.guards.protections import Schedule, resolve


def test_lost_replies_count_as_sent() -> None:
    protections = resolve({"model": PrivacyConfig(clip=1.0, noise=2.0)}, make({"name": "fedavg"}), Schedule(2))
    left = [{"client": "0", "fields": {"model": 8, "samples": 0}}, {"client": "1", "fields": {"samples": 0}}]
    failures = [
        {"client": name, "kind": kind, "steps": [step]}
        for name, kind, step in (
            ("0", "timeout", "train"),
            ("2", "died", "train"),
            ("3", "refused", "train"),
            ("4", "unavailable", "train"),
            ("5", "raised", "train"),
            ("6", "timeout", "evaluate"),
        )
    ]
    counted = count_releases(protections, left, failures)
    assert counted == {"model": {"0": 2, "2": 1, "3": 1, "4": 1}}
    privacy = privacy_report(protections, ["samples"], [counted, {"model": {"0": 1}}], ["0", "2", "5"])
    assert [privacy["clients"][name]["releases"]["model"] for name in ("0", "2", "5")] == [3, 1, 0]
    costs = [privacy["clients"][name]["epsilon"] for name in ("0", "2", "5")]
    assert costs[0] > costs[1] > costs[2] == 0 and privacy["fields"]["model"]["epsilon"] == costs[0]

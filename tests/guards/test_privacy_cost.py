"""Counting of releases: replies that may have been sent count."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.catalogue import make
from polyfed.config import PrivacyConfig
from polyfed.guards.exposure import exposed_fields
from polyfed.guards.privacy_cost import count_releases, privacy_report
from polyfed.guards.protections import Schedule, resolve
from polyfed.report.uploads import describe_privacy_cost


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
    privacy = privacy_report(protections, ["samples"], [], [counted, {"model": {"0": 1}}], ["0", "2", "5"])
    assert [privacy["clients"][name]["releases"]["model"] for name in ("0", "2", "5")] == [3, 1, 0]
    costs = [privacy["clients"][name]["epsilon"] for name in ("0", "2", "5")]
    assert costs[0] > costs[1] > costs[2] == 0 and privacy["fields"]["model"]["epsilon"] == costs[0]


@pytest.mark.parametrize(
    ("method", "protected", "uploaded", "exposed"),
    [
        # the rows are noised, but the outputs of the same samples are not
        (
            {"name": "dffke", "docking_target": "soft"},
            "embeddings",
            ["model", "outputs", "targets"],
            "'outputs' depends",
        ),
        ({"name": "dffke"}, "embeddings", ["model", "pixels", "targets"], "'pixels' depends"),
        ({"name": "dffke"}, "embeddings", ["model", "labels", "targets", "accuracy"], None),  # the model is known
        ({"name": "dffke"}, "model", ["embeddings", "pixels"], "'embeddings', 'pixels' depend"),
        ({"name": "moon"}, "model", ["samples", "projection"], "'projection' depends"),  # for any change of the data
        ({"name": "fedavg"}, "model", ["samples"], None),
        ({"name": "fedproto"}, "prototypes", [], None),
    ],
)
def test_unprotected_fields_of_samples_leave_no_epsilon(
    method: dict[str, Any], protected: str, uploaded: list[str], exposed: str | None
) -> None:
    made = make(method)
    protections = resolve({protected: PrivacyConfig(clip=1.0, noise=2.0)}, made, Schedule(2))
    fields = exposed_fields(made, protections)
    privacy = privacy_report(
        protections, uploaded, [name for name in uploaded if name in fields], [{protected: {"0": 1}}], ["0"]
    )
    assert (privacy["clients"]["0"]["epsilon"] is None) == (exposed is not None)
    assert privacy["fields"][protected]["epsilon"] > 0  # of this field alone
    sentences = describe_privacy_cost(privacy, ["0"])
    if exposed is None:
        assert privacy["no_epsilon"] is None and sentences[0].startswith("Privacy spent in the whole run")
    else:
        assert privacy["no_epsilon"].startswith(exposed)
        assert sentences[0] == f"The run as a whole has no epsilon: {privacy['no_epsilon']}."

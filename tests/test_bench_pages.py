"""`polyfed bench`: sections of pages, options of `peers`, and the samples that other libraries get."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyfed.benchmarks.page import write_section
from polyfed.benchmarks.peer_models import NAMES
from polyfed.benchmarks.peer_scripts import setting
from polyfed.benchmarks.peers import write_samples
from polyfed.benchmarks.synthetic import images
from polyfed.cli.app import main
from polyfed.config import parse
from polyfed.federation import simulation


def test_a_section_of_a_page_is_replaced_and_the_rest_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nText.\n")
    result = {"name": "thing", "figures": {"round_ratio": 1.5, "same": True}, "settings": {"turns": 3}}
    write_section(page, result)
    write_section(page, {**result, "name": "other"})
    write_section(page, {**result, "figures": {"round_ratio": 2.5}})
    text = page.read_text()
    assert text.startswith("# Title\n\nText.\n") and text.count("bench thing`") == text.count("bench other`") == 1
    assert text.count("| round ratio | 2.5 |") == text.count("| round ratio | 1.5 |") == 1
    assert text.index("bench thing`") < text.index("| round ratio | 2.5 |") < text.index("bench other`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["overhead", "--htfllib", "."], "are for the benchmark peers, not for overhead"),
        (["peers", "--htfllib", "nowhere"], "nowhere, which is not a checkout of HtFLlib"),
        (["peers", "--task", "fedprotto"], "--task is 'fedprotto'; did you mean 'fedproto'?"),
        (["peers", "--task", "fedproto"], "--task fedproto compares with HtFLlib; give its checkout"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_other_libraries_get_the_samples_of_the_clients(tmp_path: Path) -> None:
    config = {
        "method": "local",
        "imports": ["polyfed.benchmarks.peer_models"],
        "models": {"group": NAMES[:1]},
        "clients": 3,
        "data": {"partition": {"scheme": "iid"}},
    }
    federation = simulation.build_federation(parse(config), data=images("samples", 60, 28, tmp_path / "cache"))
    write_samples(federation, tmp_path)
    share = setting.Share(tmp_path)
    assert share.clients == 3
    client = federation.make_client(federation.names[1])
    (inputs, labels), (x, y) = next(iter(client.train.batches(1000))), share.samples("train", 1)
    assert torch.equal(inputs, x) and torch.equal(labels, y)
    weights = share.initial_model().state_dict()
    common = federation.common_model(federation.specs[0].text).state_dict()
    assert torch.equal(weights["fc.weight"], common["head.weight"])
    assert federation.global_test is not None and len(share.samples("test")[1]) == len(federation.global_test)

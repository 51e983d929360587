"""`polyfed bench device` on the processor: the block for an issue, and the record that `polyfed check` uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests import simulated_device

from polyfed import devices
from polyfed.benchmarks import device
from polyfed.benchmarks.device_record import DeviceRecord, read_record, write_record
from polyfed.benchmarks.synthetic import images
from polyfed.cli.app import main


def test_the_command_on_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "cache"))
    tiny = device._Load("tiny-resnet", 4, 2)
    monkeypatch.setattr(device, "LARGE", {"cpu": tiny, "gpu": tiny})
    monkeypatch.setattr(device, "find_device", lambda: torch.device("cpu"))
    assert main(["bench", "device"]) == 0
    out = capsys.readouterr().out
    assert "(no GPU is used)" in out and "cannot be counted on cpu" in out
    assert "bit-identical with 1 and 2 workers" in out
    saved = json.loads((tmp_path / "benchmarks" / "out" / "device.json").read_text())
    assert saved["figures"]["bit_identical"] == 1 and "synchronisations_per_step" not in saved["figures"]
    record = read_record()
    assert record is not None and record.device.startswith("cpu")
    assert main(["check", "quickstart"]) == 0
    assert f"on this machine ({record.device}" in capsys.readouterr().out


def test_federations_run_on_the_device(tmp_path: Path) -> None:
    data = images("device", 40, device.SIZE, tmp_path / "cache", device.CLASSES)
    with simulated_device.simulated() as counts:
        result = device._run(data, tmp_path / "run", torch.device("sim"), steps=2)
        trained = counts.steps
    assert result["versions"]["device"] == "sim"
    assert trained == 2 * device.CLIENTS


def test_the_device_is_the_one_that_auto_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.find_device().type == devices.kind_of("auto").name
    monkeypatch.setattr(devices.Cuda, "count", lambda kind: 1)
    assert device.find_device().type == "cuda"


def test_a_damaged_record_is_ignored(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    path = write_record(DeviceRecord("a device", 30.0, 1e5), tmp_path)
    assert read_record(tmp_path) == DeviceRecord("a device", 30.0, 1e5)
    for text in ("{", "[]", '{"device": "a"}', '{"device": "a", "tflops": 0, "operations_per_second": 1}'):
        path.write_text(text)
        assert read_record(tmp_path) is None

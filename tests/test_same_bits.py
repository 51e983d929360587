"""The script that compares two checkouts: equal code is equal, and a change of one random stream is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def compared(old: Path, new: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "same_bits.py"), str(old), str(new), "--only", "local"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.all_methods  # it starts six interpreters
def test_equal_code_is_equal_and_a_moved_stream_is_found(tmp_path: Path) -> None:
    assert compared(ROOT, ROOT).returncode == 0
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    client = tmp_path / "src" / "polyfed" / "core" / "client.py"
    before = client.read_text(encoding="utf-8")
    assert 'purpose: str = "fit"' in before
    client.write_text(before.replace('purpose: str = "fit"', 'purpose: str = "other"'), encoding="utf-8")
    moved = compared(ROOT, tmp_path)
    assert moved.returncode == 1 and "DIFFERENT  local" in moved.stdout


def test_a_folder_that_is_no_checkout_is_named(tmp_path: Path) -> None:
    wrong = compared(tmp_path / "nothing", ROOT)
    assert wrong.returncode == 2 and "is not a checkout of polyfed" in wrong.stderr

"""Run on disks that are full, become read-only, or are slow. Needs root, to mount file systems, and strace.

    python scripts/reliability/disks.py

- full: the run folder is on a tmpfs that is too small. After the error the tmpfs is enlarged and the run resumed.
- read-only: the run folder is on an ext4 image that becomes read-only at a random moment, as after an error of the
  disk (`trigger_fs_error`). After the error it is checked, mounted again and the run resumed.
- slow: strace delays every fsync and rename of the run by 200 ms.

A run that cannot write must end with exit code 1 and one sentence. The result must have the bits of the undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import yaml
from scripts.reliability import results
from scripts.reliability.endurance import folder_size
from scripts.reliability.simulation_kills import SETTING
from tests import warm_processes

from polyfed import api

QUICK = {**SETTING, "rounds": 12}
DELAYED = "fsync,rename"


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def mounted(place: Path, *words: str) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    command("mount", *words, str(place))
    try:
        yield
    finally:
        command("umount", str(place))


def polyfed(*arguments: str, log: Path) -> warm_processes.Process:
    with log.open("wb") as file:
        return warm_processes.Process("-m", "polyfed", *arguments, stdout=file, stderr=file)


class Disks:
    """Runs of one config on bad disks, compared with an undisturbed run."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._config, self._log = folder, folder / "config.yaml", folder / "log"
        self._config.write_text(yaml.safe_dump(QUICK))
        self._hash = api.run(QUICK, out=folder / "whole")["state_hash"]
        self.size = folder_size(folder / "whole")

    def full(self, share: float) -> dict[str, Any]:
        """Run on a tmpfs with a share of the bytes that a whole run needs."""
        place = self._folder / "full"
        with mounted(place, "-t", "tmpfs", "-o", f"size={int(share * self.size)}", "tmpfs"):
            failure = self._fail(place, lambda: None)
            command("mount", "-o", "remount,size=100m", str(place))
            return {"share": share, **failure, **self._resume(place)}

    def read_only(self, draws: random.Random) -> dict[str, Any]:
        """Run on a disk that becomes read-only after some rounds."""
        place, image = self._folder / "disk", self._folder / "image"
        command("dd", "if=/dev/zero", f"of={image}", "bs=1M", "count=64")
        command("mkfs.ext4", "-q", "-F", str(image))
        rounds, pause = draws.randrange(8), 0.5 * draws.random()

        def break_disk() -> None:
            events = place / "run" / "events.jsonl"
            while not events.exists() or events.read_bytes().count(b'"event": "round"') < rounds:
                time.sleep(0.01)
            time.sleep(pause)
            device = subprocess.run(
                ["findmnt", "-no", "SOURCE", str(place)], check=True, capture_output=True, text=True
            ).stdout
            Path("/sys/fs/ext4", Path(device.strip()).name, "trigger_fs_error").write_text("1")

        with mounted(place, "-o", "loop,errors=remount-ro", str(image)):
            failure = self._fail(place, break_disk)
        subprocess.run(["fsck.ext4", "-fy", str(image)], check=False, capture_output=True)
        with mounted(place, "-o", "loop", str(image)):
            return {"rounds": rounds, **failure, **self._resume(place)}

    def slow(self) -> dict[str, Any]:
        """Run with delayed system calls. Return the seconds with and without the delay, and the number of calls."""
        seconds, calls = {}, self._folder / "calls"
        for name, prefix in {"usual": [], "slow": ["strace", "-f", "-qq", "-o", str(calls)]}.items():
            if prefix:
                prefix = [*prefix, "-e", f"trace={DELAYED}", "-e", f"inject={DELAYED}:delay_enter=200000"]
            out, start = self._folder / name, time.monotonic()
            run = [sys.executable, "-m", "polyfed", "run", str(self._config), "--quiet", "--out", str(out)]
            subprocess.run([*prefix, *run, "engine={name: serial}"], check=True, capture_output=True)
            seconds[name] = round(time.monotonic() - start, 1)
        equal = json.loads((self._folder / "slow" / "result.json").read_text())["state_hash"] == self._hash
        return {"seconds": seconds, "delayed": calls.read_text().count("(DELAYED)"), "equal": equal}

    def _fail(self, place: Path, disturb: Callable[[], None]) -> dict[str, Any]:
        process = polyfed("run", str(self._config), "--quiet", "--out", str(place / "run"), log=self._log)
        disturb()
        code, text = process.wait(300), " ".join(self._log.read_text().split())
        sentence = code in (1, 2) and "Traceback" not in text and "unexpected" not in text
        return {"code": code, "sentence": sentence, "message": text.replace(str(place), "DISK")[:300]}

    def _resume(self, place: Path) -> dict[str, Any]:
        """Run the same command again. Return whether the result has the expected bits."""
        code = polyfed("run", str(self._config), "--quiet", "--out", str(place / "run"), log=self._log).wait(300)
        if code:
            return {"equal": False, "resume": " ".join(self._log.read_text().split())[:300]}
        return {"equal": json.loads((place / "run" / "result.json").read_text())["state_hash"] == self._hash}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5, help="runs on full disks, and on disks that become read-only")
    parser.add_argument("--out", type=Path, default=results.FOLDER)
    chosen = parser.parse_args()
    draws = random.Random(21)
    figures: dict[str, Any] = {"full": [], "read_only": []}
    with tempfile.TemporaryDirectory(prefix="disks-") as folder:
        disks = Disks(Path(folder))
        for number in range(chosen.count):
            figures["full"].append(disks.full(0.2 + 0.7 * number / chosen.count))
            print(figures["full"][-1], flush=True)
        for _ in range(chosen.count):
            figures["read_only"].append(disks.read_only(draws))
            print(figures["read_only"][-1], flush=True)
        results.save("disks", figures, chosen.out)
        figures["slow"] = disks.slow()
        print(figures["slow"], flush=True)
        results.save("disks", figures, chosen.out)
    return 0 if all(case["sentence"] and case["equal"] for case in figures["full"] + figures["read_only"]) else 1


if __name__ == "__main__":
    sys.exit(main())

"""How large a payload real federations carry: one site, one round of FedAvg over a model of some size, TLS and keys on.

    .venv/bin/python scripts/flower_payload.py [MEGABYTES]

Prints what was counted, what the gateway carried, and the seconds. 1,000 MB need some 12 GB of memory on one machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from polyfed.config import parse
from polyfed.deploy.processes import require_flower

require_flower()

from polyfed.deploy.certificates import create_authority  # noqa: E402
from polyfed.deploy.coordinator import Coordinator  # noqa: E402  (Flower must be known to be there first)
from polyfed.deploy.keys import create_site_key, read_public_key  # noqa: E402
from polyfed.deploy.site_registry import SiteRegistry  # noqa: E402
from polyfed.runs.folder import RunFolder  # noqa: E402

MODEL = """
from torch import nn
from polyfed.models import register

def wide(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, {width}), nn.ReLU(),
                         nn.Linear({width}, classes))

register("wide", wide, head="5")
"""


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "wide.py"
        model.write_text(MODEL.format(width=round(megabytes * 1e6 / 4 / 4096)))
        create_authority(folder / "home", [])
        key = create_site_key(folder, "ana")
        SiteRegistry(folder / "home").admit("ana", read_public_key(key.public))
        config = parse(
            {
                "clients": 1,
                "names": ["ana"],
                "rounds": 1,
                "method": {"name": "fedavg"},
                "models": {"group": ["wide"]},
                "data": {"limit": 20},
                "train": {"steps": 1},
                "evaluate": {"personal": False, "global": False},
                "imports": [str(model)],
            }
        )
        with Coordinator(folder / "home", say) as coordinator:
            site = subprocess.Popen(
                [
                    *(sys.executable, "-m", "polyfed", "join", "--server", f"127.0.0.1:{coordinator.gateway.port}"),
                    *("--key", str(key.private), "--ca", str(folder / "home" / "ca.crt"), "--rehearsal"),
                    *("--state", str(folder / "ana"), "--import", str(model)),
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            try:
                started = time.monotonic()
                result = coordinator.run(config, RunFolder(folder / "run"))
                seconds = time.monotonic() - started
            finally:
                site.terminate()
                site.wait()
            counts = coordinator.gateway.counts
            say(f"counted {result['bytes']['down']:,} bytes down, the gateway carried {counts.to_sites:,}")
            say(f"counted {result['bytes']['up']:,} bytes up, the gateway carried {counts.from_sites:,}")
            say(f"{seconds:.0f} s, of which the round {result['seconds']['by_round'][0]:.0f} s; {result['failures']}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)

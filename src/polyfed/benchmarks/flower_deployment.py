"""A real federation over Flower on this machine, with TLS and keys, whose sites are idle.

It is part of the benchmark `engines`. Every site is a process with its own SuperNode.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from polyfed.config import parse
from polyfed.deploy.certificates import create_authority
from polyfed.deploy.coordinator import Coordinator
from polyfed.deploy.keys import create_site_key, read_public_key
from polyfed.deploy.site_registry import SiteRegistry
from polyfed.runs.folder import RunFolder


def rounds(folder: Path, settings: dict[str, Any], sites: int, count: int) -> tuple[float, list[float]]:
    """Return the seconds until the end of the first round, and the seconds of each later round."""
    names = [f"site-{k}" for k in range(sites)]
    home = folder / "home"
    create_authority(home, [])
    registry = SiteRegistry(home)
    for name in names:
        registry.admit(name, read_public_key(create_site_key(folder, name).public))
    config = parse({**settings, "clients": sites, "names": names, "rounds": count + 1, "engine": {"timeout": 300.0}})
    started = time.perf_counter()
    with Coordinator(home, lambda sentence: None) as coordinator, contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(_stop, _join(folder, name, coordinator.gateway.port, config.imports))
        result = coordinator.run(config, RunFolder(folder / "run"))
    seconds: list[float] = result["seconds"]["by_round"]
    return time.perf_counter() - started - sum(seconds[1:]), seconds[1:]


def _join(folder: Path, name: str, port: int, imports: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "polyfed", "join", "--rehearsal", "--server", f"127.0.0.1:{port}"]
    command += ["--key", str(folder / f"{name}.key"), "--ca", str(folder / "home" / "ca.crt")]
    command += ["--state", str(folder / name), *(word for module in imports for word in ("--import", module))]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)

"""Attack the gateway of a running federation, and measure how its honest sites are served meanwhile.

    python scripts/reliability/gateway_load.py

Phases, one after the other: no attack; 500 connections that send nothing and are opened again when the gateway closes
them; 100 bodies of an admitted site that arrive at 1 kB/s; 16 bodies of 60 MB that carry an admitted public key and
no signature. In each phase, an admitted site asks for its status once every half second over a new TLS connection.
The memory of the coordinator (with its gateway) and of the SuperLink is read every half second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx
from scripts.reliability import results
from scripts.reliability.federation import Federation, run_federation
from scripts.reliability.processes import SUPERLINK, children, memory
from tests.deploy.test_gateway import PROTOBUF, header_lines, signed_headers

from polyfed.deploy.keys import create_site_key, read_public_key
from polyfed.deploy.request_filter import STATUS_PATH
from polyfed.deploy.site_registry import SiteRegistry

SECONDS = 40.0  # of one phase
BODY = 60_000_000


class Attack:
    """Connections to the gateway at `port` that trust the authority in `ca`."""

    def __init__(self, port: int, ca: Path, key: Path) -> None:
        self._port, self._key = port, key
        self._tls = ssl.create_default_context(cafile=str(ca))
        self.answers: Counter[str] = Counter()

    async def silent_connections(self) -> None:
        await self._repeat(500, lambda reader, writer: reader.read())

    async def slow_bodies(self) -> None:
        async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self._head(1_000_000, signed=True))
            while not reader.at_eof():
                writer.write(bytes(1000))
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    answer = await asyncio.wait_for(reader.readline(), 1.0)
                    self.answers[answer[9:12].decode() or "closed"] += 1
                    return

        await self._repeat(100, send)

    async def unsigned_bodies(self) -> None:
        async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self._head(BODY, signed=False))
            with contextlib.suppress(ConnectionError):
                for _ in range(BODY // 1_000_000):
                    writer.write(bytes(1_000_000))
                    await writer.drain()
            self.answers[(await reader.readline())[9:12].decode() or "closed"] += 1

        await asyncio.gather(*(self._connect(send) for _ in range(16)))

    def _head(self, size: int, *, signed: bool) -> bytes:
        headers = signed_headers(self._key)
        if not signed:
            headers = {"flwr-public-key": headers["flwr-public-key"]}
        lines = header_lines({"host": "127.0.0.1", "content-type": PROTOBUF, "content-length": str(size), **headers})
        return b"POST /v1/fleet/push-object HTTP/1.1\r\n" + lines + b"\r\n"

    async def _repeat(self, count: int, use: Callable[..., Awaitable[object]]) -> None:
        """Hold `count` connections for the time of a phase. Open another one for each that the gateway closes."""
        end = time.monotonic() + SECONDS

        async def hold() -> None:
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._connect(use), end - time.monotonic())
                await asyncio.sleep(0.2)

        await asyncio.gather(*(hold() for _ in range(count)))

    async def _connect(self, use: Callable[..., Awaitable[object]]) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        except OSError:
            self.answers["refused"] += 1
            return
        try:
            await use(reader, writer)
        except OSError:
            self.answers["closed"] += 1
        finally:
            writer.transport.abort()


class Probe(threading.Thread):
    """Asks for the status of a site again and again, and reads the memory of the processes."""

    def __init__(self, port: int, ca: Path, key: Path, federation: Federation) -> None:
        super().__init__(daemon=True)
        self._url = f"https://127.0.0.1:{port}{STATUS_PATH.decode()}"
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._headers = {"flwr-public-key": signed_headers(key)["flwr-public-key"]}
        self._pid = federation.coordinator.pid
        self._end = threading.Event()
        self.seconds: list[float] = []
        self.failures = 0
        self.coordinator_mb: list[int] = []
        self.superlink_mb: list[int] = []

    def run(self) -> None:
        while not self._end.is_set():
            start = time.monotonic()
            try:
                answer = httpx.get(self._url, headers=self._headers, verify=self._tls, timeout=30, trust_env=False)
                answer.raise_for_status()
                self.seconds.append(time.monotonic() - start)
            except httpx.HTTPError:
                self.failures += 1
            self.coordinator_mb.append(memory(self._pid))
            self.superlink_mb += [memory(pid) for pid in children(self._pid, SUPERLINK)]
            self._end.wait(0.5)

    def end(self) -> None:
        self._end.set()
        self.join()


@contextlib.contextmanager
def measured(
    name: str, figures: dict[str, Any], make_probe: Callable[[], Probe], federation: Federation
) -> Iterator[None]:
    probe, before, start = make_probe(), federation.rounds(), time.monotonic()
    probe.start()
    yield
    probe.end()
    seconds = sorted(probe.seconds) or [float("nan")]
    figures[name] = {
        "seconds": round(time.monotonic() - start, 1),
        "requests": len(probe.seconds),
        "failed_requests": probe.failures,
        "median_ms": milliseconds(seconds[len(seconds) // 2]),
        "slowest_ms": milliseconds(seconds[-1]),
        "rounds": federation.rounds() - before,
        "coordinator_mb": [probe.coordinator_mb[0], max(probe.coordinator_mb), probe.coordinator_mb[-1]],
        "superlink_mb": [probe.superlink_mb[0], max(probe.superlink_mb), probe.superlink_mb[-1]],
    }
    print(name, figures[name], flush=True)


def milliseconds(seconds: float) -> int | None:
    """Return rounded milliseconds. None: there was no answer."""
    return None if math.isnan(seconds) else round(1000 * seconds)


def run_attack(name: str, port: int, ca: Path, key: Path) -> dict[str, int]:
    """Run an attack in a process of its own, so that it does not slow down the honest requests. Return the answers."""
    command = [sys.executable, str(Path(__file__).resolve()), "--attack", name, str(port), str(ca), str(key)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    answers: dict[str, int] = json.loads(printed)
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=results.FOLDER)
    parser.add_argument("--attack", nargs=4, metavar=("NAME", "PORT", "CA", "KEY"), help="only run an attack")
    chosen = parser.parse_args()
    if chosen.attack:
        name, port, ca, key = chosen.attack
        attack = Attack(int(port), Path(ca), Path(key))
        asyncio.run(getattr(attack, name)())
        print(json.dumps(attack.answers))
        return 0
    return measure(chosen.out)


def measure(out: Path) -> int:
    """Run all phases and write their figures."""
    figures: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="gateway-", ignore_cleanup_errors=True) as place,
        run_federation(Path(place), ["ana", "ben"]) as federation,
    ):
        folder, home = Path(place), Path(place) / "home"
        key = create_site_key(folder, "mallory")
        SiteRegistry(home).admit("mallory", read_public_key(key.public))
        federation.next_run("load", 1000)
        federation.wait_for_rounds(2)
        ca = home / "ca.crt"

        def probe() -> Probe:
            return Probe(federation.port, ca, folder / "ana.key", federation)

        with measured("no attack", figures, probe, federation):
            time.sleep(SECONDS)
        for name in ("silent_connections", "slow_bodies", "unsigned_bodies"):
            with measured(name, figures, probe, federation):
                answers = run_attack(name, federation.port, ca, key.private)
                if name == "unsigned_bodies":
                    time.sleep(10)
            figures[name]["answers"] = answers
            results.save("gateway-load", {"phases": figures}, out)
        with measured("afterwards", figures, probe, federation):
            time.sleep(SECONDS / 2)
    results.save("gateway-load", {"phases": figures}, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Flower's own simulation in a separate process: one round of idle clients for every line that the process reads.

It is part of the benchmark `engines`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Simulation:
    """The process with Flower's simulation, from the caller's side."""

    def __init__(self, clients: int, cores: int) -> None:
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "polyfed.benchmarks.flower_simulation", str(clients), str(cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **SWITCHES},
            text=True,
        )
        self.turn()
        self.startup = time.perf_counter() - started  # until the end of the first round

    def turn(self) -> float:
        """Run a round and return its seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # Ray may print lines of its own
            if line.startswith('{"seconds"'):
                return float(json.loads(line)["seconds"])
        raise RuntimeError(f"Flower's simulation ended with code {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(clients: int, cores: int) -> None:
    """Run a server app that sends every client an empty message for each input line, and clients that reply."""
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.query()
    def answer(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < clients:
            time.sleep(0.05)
        for _ in sys.stdin:
            started = time.perf_counter()
            replies: Iterable[Any] = grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes])
            if sum(not reply.has_error() for reply in replies) != clients:
                raise RuntimeError("some clients of Flower's simulation did not reply")
            sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started}) + "\n")
            sys.stdout.flush()

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
    run_simulation(server_app, client_app, clients, backend_config=resources)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

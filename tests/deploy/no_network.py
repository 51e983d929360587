"""A program for a network namespace with loopback only: runs a command, and counts its attempts to reach a network.

The attempts fail, and the kernel counts them (`OutNoRoutes`). The name server has an address outside of this machine,
so that name lookups count as attempts, too.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

FLOWER_COMMAND = "from flwr.supernode.cli.flower_supernode import flower_supernode; flower_supernode()"
CONFIG = """\
name: offline
method: fedproto
data: {dataset: digits, limit: 40}
models: {group: [tiny-mlp]}
clients: 1
rounds: 1
"""


def open_loopback() -> None:
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, get_flags, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", request)[1]
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def attempts() -> int:
    """Return how often a process of this namespace tried to send something to another machine."""
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Ip:")
    )
    six = [line.split() for line in Path("/proc/net/snmp6").read_text().splitlines()]
    return int(values[names.index("OutNoRoutes")]) + sum(int(n) for name, n in six if name == "Ip6OutNoRoutes")


def polyfed(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "polyfed", *arguments]


def federation() -> str:
    """Run a real federation with one site. Return its result."""
    Path("config.yaml").write_text(CONFIG)
    subprocess.run(polyfed("keys", "new", "authority"), check=True, capture_output=True)
    subprocess.run(polyfed("keys", "new", "site", "north"), check=True, capture_output=True)
    subprocess.run(polyfed("sites", "admit", "north", "north.pub"), check=True, capture_output=True)
    with Path("serve.log").open("w") as serve_log, Path("join.log").open("w") as join_log:
        coordinator = subprocess.Popen(
            polyfed("serve", "config.yaml", "--port", "8443", "--json"),
            stdout=subprocess.PIPE,
            stderr=serve_log,
            text=True,
        )
        site = None
        try:
            while "each site runs" not in Path("serve.log").read_text():
                if coordinator.poll() is not None:
                    raise SystemExit(Path("serve.log").read_text())
                time.sleep(0.2)
            options = ("--server", "127.0.0.1:8443", "--key", "north.key", "--ca", "coordinator/ca.crt")
            site = subprocess.Popen(polyfed("join", *options, "--rehearsal", "--state", "state"), stderr=join_log)
            result, _ = coordinator.communicate(timeout=200)
        finally:
            for child in (coordinator, site):
                if child is not None:
                    child.terminate()
                    child.wait()
    return result


def ray() -> str:
    """Run an experiment on Ray. Return its result."""
    Path("config.yaml").write_text(CONFIG)
    command = polyfed("run", "config.yaml", "engine.name=ray", "engine.workers=1", "--json")
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def flower() -> str:
    """Run a command of Flower without the environment that polyfed sets."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    command = [sys.executable, "-c", FLOWER_COMMAND, "--version"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**environment, "FLWR_HOME": str(Path.cwd())})
    return "{}"


def main(command: str, folder: str) -> None:
    open_loopback()
    os.chdir(folder)
    Path("resolv.conf").write_text("nameserver 192.0.2.53\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", "resolv.conf", "/etc/resolv.conf"], check=True)
    result = {"federation": federation, "ray": ray, "flower": flower}[command]()
    sys.stdout.write(json.dumps({"attempts": attempts(), "result": json.loads(result)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

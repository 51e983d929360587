"""FedAvg, or clients that do nothing, in Flower's simulation."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import setting

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.serverapp import Grid

START_SECONDS, RAY_STARTS = 600.0, 5


@cache
def _share(folder: str) -> setting.Share:
    return setting.Share(Path(folder))  # once per process


# Ray's workers import this module for the functions of clients. Functions of `__main__` would be sent with every
# message, and their caches would be missing.


def do_nothing(message: Message, context: Context) -> Message:
    """Answer with an empty message."""
    from flwr.app import Message, RecordDict

    return Message(RecordDict(), reply_to=message)


def train(message: Message, context: Context) -> Message:
    """Train the received model and return it."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    config = message.content.config_records["config"]
    model = setting.PeerCNN()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = _share(str(config["folder"])).samples("train", client)
    setting.train(model, x, y, 1000 * int(str(config["server-round"])) + client)
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def main(folder: str, cores: int, task: str) -> None:
    """Run a round for every line of the input: `fedavg` trains, `idle` sends empty messages."""
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    _start_ray(cores)
    client_app, server_app = ClientApp(), ServerApp()
    client_app.query()(do_nothing)
    client_app.train()(train)
    clients = _share(folder).clients

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        nodes = _wait_for_nodes(grid, clients)
        if task == "idle":
            _exchange_empty_messages(grid, nodes)
        else:
            _average_models(grid, folder, clients)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, clients, backend_config=resources)  # type: ignore[arg-type]


def _start_ray(cores: int) -> None:
    """Start Ray, which Flower then uses. On a busy machine Ray gives up after 30 seconds, so try again."""
    import ray

    for attempt in range(RAY_STARTS):
        with contextlib.suppress(Exception) if attempt < RAY_STARTS - 1 else contextlib.nullcontext():
            ray.init(num_cpus=cores, include_dashboard=False, _node_ip_address="127.0.0.1")
            return
        ray.shutdown()


def _wait_for_nodes(grid: Grid, clients: int) -> list[int]:
    deadline = time.monotonic() + START_SECONDS
    while len(nodes := list(grid.get_node_ids())) < clients:
        if time.monotonic() > deadline:
            os._exit(1)  # the simulation could not start; it would wait forever
        time.sleep(0.05)
    return nodes


def _exchange_empty_messages(grid: Grid, nodes: list[int]) -> None:
    from flwr.app import Message, RecordDict

    rounds = setting.Rounds()
    while rounds.wait():
        replies = list(grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes]))
        if len(replies) < len(nodes) or any(reply.has_error() for reply in replies):
            raise RuntimeError("a client of Flower's simulation failed")
        rounds.answer(accuracy=None)


def _average_models(grid: Grid, folder: str, clients: int) -> None:
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    rounds, model, number = setting.Rounds(), _share(folder).initial_model(), 0
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    while rounds.wait():
        number += 1
        config = ConfigRecord({"folder": folder})
        replies = list(
            grid.send_and_receive(strategy.configure_train(number, ArrayRecord(model.state_dict()), config, grid))
        )
        reasons = [reply.error.reason for reply in replies if reply.has_error()]
        arrays, _ = strategy.aggregate_train(number, replies)
        if arrays is None or reasons or len(replies) < clients:
            raise RuntimeError(f"clients of Flower's simulation failed: {reasons[:1]}")
        model.load_state_dict(arrays.to_torch_state_dict())
        rounds.answer()
        rounds.wait()  # the request for the accuracy
        rounds.answer(accuracy=setting.accuracy(model, *_share(folder).samples("test")))


if __name__ == "__main__":
    # the module under its own name, which Ray's workers can import
    importlib.import_module("peer_scripts.flower_peer").main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

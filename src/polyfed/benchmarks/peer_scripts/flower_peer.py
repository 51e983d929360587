"""FedAvg, or clients that do nothing, in Flower's simulation."""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import cache
from pathlib import Path

import torch

from . import setting

START_SECONDS = 600.0


@cache
def _share(folder: str) -> setting.Share:
    return setting.Share(Path(folder))  # once per process


def main(folder: str, cores: int, task: str) -> None:
    """Run a round for every line of the input: `fedavg` trains, `idle` sends empty messages."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    client_app, server_app = ClientApp(), ServerApp()
    clients = _share(folder).clients

    @client_app.query()
    def idle(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        client = int(context.node_config["partition-id"])
        model = setting.PeerCNN()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        x, y = _share(folder).samples("train", client)
        number = int(str(message.content.config_records["config"]["server-round"]))
        setting.train(model, x, y, 1000 * number + client)
        metrics = MetricRecord({"num-examples": len(y)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        deadline = time.monotonic() + START_SECONDS
        while len(nodes := list(grid.get_node_ids())) < clients:
            if time.monotonic() > deadline:
                os._exit(1)  # the simulation could not start; it would wait forever
            time.sleep(0.05)
        rounds, model, number = setting.Rounds(), setting.PeerCNN(), 0
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        while rounds.wait():
            number += 1
            if task == "idle":
                replies = list(grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes]))
                if any(reply.has_error() for reply in replies):
                    raise RuntimeError("a client of Flower's simulation failed")
                rounds.answer(accuracy=None)
                continue
            messages = strategy.configure_train(number, ArrayRecord(model.state_dict()), ConfigRecord(), grid)
            replies = list(grid.send_and_receive(messages))
            arrays, _ = strategy.aggregate_train(number, replies)
            if arrays is None or any(reply.has_error() for reply in replies):
                reasons = [reply.error.reason for reply in replies if reply.has_error()]
                raise RuntimeError(f"clients of Flower's simulation failed: {reasons[:1]}")
            model.load_state_dict(arrays.to_torch_state_dict())
            rounds.answer()
            rounds.wait()  # the request for the accuracy
            rounds.answer(accuracy=setting.accuracy(model, *_share(folder).samples("test")))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
    run_simulation(server_app, client_app, clients, backend_config=resources)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

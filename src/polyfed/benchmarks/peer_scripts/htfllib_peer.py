"""LG-FedAvg and FedProto in a checkout of HtFLlib, with four CNNs and an evaluation in every round.

HtFLlib reads data from `../dataset` and writes to the working directory, so it works in a folder of its own. The
checkout is not changed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from . import setting

ALGORITHMS = {"lg-fedavg": ("serverlg", "LG_FedAvg"), "fedproto": ("serverproto", "FedProto")}


def main(folder: str, checkout: str, method: str) -> None:
    """Run a round for every line of the input. Threads are as torch and HtFLlib choose them."""
    share = setting.Share(Path(folder))
    work = Path(folder) / f"htfllib-{method}"
    _write_data(share, work / "dataset" / "peers")
    (work / "system").mkdir(parents=True, exist_ok=True)
    os.chdir(work / "system")
    sys.path.insert(0, str(Path(checkout).resolve() / "system"))
    # its networks are not used here, and its compiled part would have to match the build of torch
    sys.modules.setdefault("torchvision", ModuleType("torchvision"))
    models: Any = importlib.import_module("flcore.trainmodel.models")
    models.PeerCNN = setting.PeerCNN  # HtFLlib creates models from strings, in the names of this module
    module, name = ALGORITHMS[method]
    rounds = setting.Rounds()
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        server = getattr(importlib.import_module(f"flcore.servers.{module}"), name)(_options(share.clients, name), 0)
        select = server.select_clients
        started = False

        def wait_and_select() -> Any:  # called at the start of every round
            nonlocal started
            if started:
                rounds.answer(accuracy=server.rs_test_acc[-1])
            started = True
            if not rounds.wait():
                sys.exit(0)
            return select()

        server.select_clients = wait_and_select
        server.train()


def _options(clients: int, algorithm: str) -> Namespace:
    """Return the options of HtFLlib's command, with its defaults where the task says nothing."""
    return Namespace(
        algorithm=algorithm,
        dataset="peers",
        device="cpu",
        models=[f"PeerCNN{shape}" for shape in setting.SHAPES],
        num_classes=setting.CLASSES,
        num_clients=clients,
        batch_size=setting.BATCH,
        local_learning_rate=setting.LEARNING_RATE,
        local_epochs=1,
        global_rounds=10_000,
        feature_dim=setting.FEATURES,
        lamda=1.0,
        join_ratio=1.0,
        random_join_ratio=False,
        few_shot=0,
        time_select=False,
        time_threthold=10_000,
        goal="test",
        top_cnt=100,
        auto_break=False,
        save_folder_name="temp",
        models_folder_name="",
        eval_gap=1,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
    )


def _write_data(share: setting.Share, folder: Path) -> None:
    """Write the samples of every client in HtFLlib's layout."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for client in range(share.clients):
            x, y = share.samples(part, client)
            data = np.array({"x": x.numpy(), "y": y.numpy().astype(np.int64)}, dtype=object)
            np.savez(folder / part / f"{client}.npz", data=data)


if __name__ == "__main__":
    main(*sys.argv[1:4])

"""The trained model of a site. It stays at the site, in the form that `polyfed export` writes."""

from __future__ import annotations

from pathlib import Path

from polyfed.config import Config
from polyfed.core.client_host import ClientMaker, Host
from polyfed.core.engine import Call, Task
from polyfed.deploy.site_federation import SiteFederation
from polyfed.experiment import versions
from polyfed.federation.simulation import SimulatedFederation, file_format
from polyfed.trained.client import Origin, TrainedClient
from polyfed.trained.model_folder import SITE_MODEL, write_model


def is_last_evaluation(config: Config, call: Call) -> bool:
    """Return whether a call evaluates the model after the last round."""
    return not call.steps and call.round == config.rounds and bool({"personal", "global"} & {*call.measures})


def write_final_model(
    maker: ClientMaker, host: Host, call: Call, task: Task, shared: bytes, run: Path, imports: tuple[str, ...]
) -> Path:
    """Write the model that an evaluation has measured to the folder of a site's run. Return the model's folder."""
    if not isinstance(maker, SiteFederation | SimulatedFederation):
        raise TypeError(f"a {type(maker).__name__} has no dataset")
    config, data = maker.config, maker.dataset
    spec = maker.spec if isinstance(maker, SiteFederation) else maker.specs[maker.positions[task.client]]
    trained = TrainedClient(
        name=task.client,
        classes=data.class_names,
        shape=data.shape,
        kind=data.kind,
        vocabulary=data.vocabulary,
        features=data.features,
        spec=spec,
        format=file_format(config),
        origin=Origin(
            method=config.method,
            imports=imports,
            trained={
                "run": run.name,
                "method": config.method["name"],
                "dataset": config.data.dataset,
                "rounds": config.rounds,
                "seed": config.seed,
                "config_hash": config.hash(),
                "versions": versions(),
            },
        ),
        method=maker.method,
        client=host.evaluated_client(call, task, shared),
    )
    write_model(trained, run / SITE_MODEL)
    return run / SITE_MODEL

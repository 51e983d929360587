"""The trained models in a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from polyfed import api
from polyfed.core.client_host import Host
from polyfed.core.codec import encode
from polyfed.core.engine import INITIAL, Call, Task
from polyfed.core.method import Outgoing
from polyfed.errors import InputError, nearest
from polyfed.federation.session_code import import_user_code
from polyfed.federation.simulation import SimulatedFederation, build_federation, file_format, make_host
from polyfed.runs.checkpoint import CLIENT_STATES, Checkpoint, Checkpoints
from polyfed.trained.client import Origin, TrainedClient


class RunModels:
    """The models of a finished run, in the state that its last evaluation measured."""

    def __init__(self, path: Path, *, trust: bool = False) -> None:
        opened = api.open_existing_run(path, trust=trust, imports=True)
        self.path, self.config, self._folder = path, opened.config, opened.folder
        if opened.result is None:
            raise InputError(f"the run {path} has not finished; resume it first: polyfed resume {path}")
        if self.config.engine.name == "flower":
            raise InputError(
                f"{path} is the run of a coordinator: the models are at the sites, each in the folder RUN/model of "
                "the site's --state"
            )
        self.result = opened.result

    @property
    def numbers(self) -> dict[str, int]:
        """The clients' numbers, by name."""
        return {name: number for number, name in enumerate(self.config.client_names)}

    def load(self, client: int | str) -> TrainedClient:
        """Return the trained model of a client, by its number or name."""
        name = client_name(client, self.numbers, str(self.path))
        federation = self.federation
        version = self._checkpoint.ledger.versions.get(name, INITIAL)
        own = self._published.each.get(name)
        task = Task(name, version, b"" if own is None else encode(own).data)
        loaded = self._host.evaluated_client(self._last_evaluation, task, encode(self._published.shared).data)
        data = federation.dataset
        return TrainedClient(
            name=name,
            classes=data.class_names,
            shape=data.shape,
            kind=data.kind,
            vocabulary=data.vocabulary,
            features=data.features,
            spec=federation.specs[federation.positions[name]],
            format=file_format(self.config),
            origin=self._origin,
            method=federation.method,
            client=loaded,
        )

    @cached_property
    def federation(self) -> SimulatedFederation:
        import_user_code(self.config, self._folder)
        return build_federation(self.config)

    @cached_property
    def _host(self) -> Host:
        return make_host(self.federation, self._folder.checkpoint_folder / CLIENT_STATES)

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        latest, _, _ = Checkpoints(self._folder.checkpoint_folder).load_latest()
        if latest is None or latest.round != self.config.rounds:
            raise InputError(
                f"{self._folder.checkpoint_folder} has no valid checkpoint of the last round, so the models of this "
                "run are lost; run it again"
            )
        return latest

    @property
    def _last_evaluation(self) -> Call:
        return Call(-1, self.config.rounds)

    @cached_property
    def _published(self) -> Outgoing:
        """What the server published for the last evaluation."""
        federation = self.federation
        server = federation.server(federation.profiles())
        server.state, server.round = self._checkpoint.server, self.config.rounds
        return federation.method.publish(server)

    @cached_property
    def _origin(self) -> Origin:
        result = self.result
        return Origin(
            method=self.config.method,
            imports=tuple(self.config.imports),
            user_code=self.config.user_code,
            trained={
                "run": self.config.run_name,
                "method": result.method,
                "dataset": self.config.data.dataset,
                "rounds": self.config.rounds,
                "seed": self.config.seed,
                "config_hash": self.config.hash(),
                "versions": result.get("versions", {}),
            },
        )


def client_name(client: int | str, numbers: Mapping[str, int], where: str) -> str:
    """Return the name of a client that is given by its name or its number."""
    text = str(client)
    if text in numbers:
        return text
    by_number = {str(number): name for name, number in numbers.items()}
    if text in by_number:
        return by_number[text]
    hint = nearest(text, numbers) if len(numbers) <= 20 else f"its {len(numbers)} clients are {_some(numbers)}"
    raise InputError(f"there is no client '{text}' in {where}; {hint}")


def _some(numbers: Mapping[str, int]) -> str:
    names = list(numbers)
    return f"{names[0]}, {names[1]}, ..., {names[-1]}"

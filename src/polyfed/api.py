"""The Python way in: the same keys as the config."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.config import Config, parse, sources
from polyfed.engines.zygote import WORKER
from polyfed.errors import InputError
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result

if TYPE_CHECKING:
    from polyfed.core.method import Method
    from polyfed.data.dataset import Dataset
    from polyfed.experiment import Observer


def run(
    source: str | Path | Mapping[str, Any] = "quickstart",
    *,
    data: Dataset | Mapping[str, Any] | None = None,
    method: str | type[Method] | Method | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    observers: Sequence[Observer] = (),
    **overrides: Any,
) -> Result:
    """Run an experiment and give its result: a config file, a preset or a mapping, with keys on top.

    `data` may be an open dataset, `method` a class of your own or an object of it.
    """
    from polyfed.data.dataset import Dataset

    if os.environ.get(WORKER):
        raise InputError(
            "polyfed.run was called while a worker imported this file; put the call under if __name__ == '__main__':"
        )
    raw = sources.unshared_copy(source) if isinstance(source, Mapping) else sources.read_source(source)
    for key, value in overrides.items():
        sources.set_key(raw, [key], value, key)
    if method is not None:
        raw["method"] = _method_entry(method)
        raw["imports"] = [*raw.get("imports", []), *_method_imports(method)]
    if isinstance(data, Dataset):
        # its folder in the cache, so that a resume finds it again
        sources.set_key(raw, ["data", "dataset"], data.name, "data")
        sources.set_key(raw, ["data", "root"], str(data.folder), "data")
    elif data is not None:
        sources.set_key(raw, ["data"], dict(data), "data")
    return run_config(
        parse(raw),
        out=Path(out) if out else None,
        data=data if isinstance(data, Dataset) else None,
        observers=observers,
    )


def run_config(
    config: Config, *, out: Path | None = None, data: Dataset | None = None, observers: Sequence[Observer] = ()
) -> Result:
    """Run a checked config. A run that is already finished is not run again."""
    from polyfed import trackers
    from polyfed.experiment import Experiment, versions
    from polyfed.federation import simulation

    if config.engine.name == "flower":
        raise InputError("engine flower reaches sites on other machines; start it with polyfed serve")
    folder = open_folder(folder_of(config, out), config)
    finished = folder.result()
    if finished is not None:
        return finished
    tracking = trackers.check(config.track)
    federation = simulation.build_federation(config, data=data)

    def note(sentence: str) -> None:
        folder.event("note", message=sentence)
        for observer in observers:
            observer.note(sentence)
        if not observers:
            logging.getLogger("polyfed").warning(sentence)

    with trackers.tracked(config.track, tracking, note) as watchers:
        experiment = Experiment(federation, folder, [*observers, *watchers])
        if not folder.exists():
            folder.create({**config.to_dict(), "name": config.run_name, "versions": versions()})
        return experiment.run()


def folder_of(config: Config, out: Path | None = None) -> Path:
    """Where a run is kept."""
    return out or Path("runs") / config.run_name


def open_folder(path: Path, config: Config) -> RunFolder:
    """The folder for a run; one that exists must belong to the same config. Needs no torch."""
    folder = RunFolder(path)
    if folder.exists():
        if config_of(folder).hash() != config.hash():
            raise InputError(
                f"the run folder {path} exists with another config; choose another name or --out, or remove it"
            )
    elif path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists and is not a run folder; choose another name or --out")
    return folder


def config_of(folder: RunFolder) -> Config:
    """The config of a run that exists."""
    return parse(folder.config(), str(folder.config_file))


def resume(path: str | Path, *, observers: Sequence[Observer] = ()) -> Result:
    """Go on from the last checkpoint of a run; a finished run gives its result."""
    folder = RunFolder(Path(path))
    return run_config(config_of(folder), out=folder.path, observers=observers)


def _method_entry(method: Any) -> Any:
    if isinstance(method, str):
        return {"name": method}
    if isinstance(method, Mapping):
        return dict(method)
    fields = {} if isinstance(method, type) else dataclasses.asdict(method)
    return {"name": method.name, **fields}


def _method_imports(method: Any) -> list[str]:
    """The file or module that a worker must import to have this method too."""
    if isinstance(method, str | Mapping):
        return []
    kind: Any = method if isinstance(method, type) else type(method)
    if not kind.name:
        raise InputError(f'the method {kind.__qualname__} has no name; put @register("name") above its class')
    if kind.__module__.startswith("polyfed."):
        return []
    if kind.__module__ != "__main__":
        return [kind.__module__]
    import __main__

    file = getattr(__main__, "__file__", None)
    if file is None or not Path(file).exists():
        raise InputError(
            f"the method {kind.__qualname__} was defined where no worker can import it; put it into a file"
        )
    return [str(Path(file).resolve())]

"""The Python API: `polyfed.run` and `polyfed.resume`, with the same keys as a config file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed import profiling
from polyfed.config import Config, code_digest, parse
from polyfed.config.trust import check_source_trusted, require_trust
from polyfed.errors import InputError
from polyfed.federation.resumed_objects import check_data_exists, check_same_models, same_data
from polyfed.federation.run_arguments import method_section, raw_config
from polyfed.federation.session_code import import_user_code, with_user_code
from polyfed.machine import fast_imports
from polyfed.runs.atomic_files import check_folder_creatable
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result
from polyfed.runs.result_warnings import warn_of_problems

if TYPE_CHECKING:
    from polyfed.data.dataset import Dataset
    from polyfed.experiment import Observer


def run(
    config: str | Path | Mapping[str, Any] | Config | None = None,
    *,
    data: Any = None,
    models: Any = None,
    method: Any = None,
    out: str | Path | None = None,
    force: bool = False,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    profile: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Result:
    """Run an experiment and return its result.

    If the run folder exists, resume the run, or return its result if it has finished. Raise `InputError` if the
    folder was made with other settings, data, models or code.

    Args:
        config: Name of a preset, path of a config file, mapping or `Config`. None: the preset `quickstart`.
        data: `(x, y)`, `(x_train, y_train, x_test, y_test)`, a torch Dataset, a polyfed Dataset, or a list with one
            of these per client. A mapping is the config's `data` section; it may also hold `train` or `clients`,
            `test`, `vocabulary`, `class_names` and `columns`.
        models: A list of torch modules, classes, functions of `shape` and `classes`, and names of models. Clients get
            them in turn. Modules keep the weights that they have. A mapping is the config's `models` section.
        method: The name of a method, or your own method class or an object of it.
        out: The run folder. None: a folder below `runs`, named after the settings.
        force: Move an existing run folder to `NAME.old-1` (or the next free number) and run again.
        observers: Objects whose methods are called during the run, see `polyfed.experiment.Observer`.
        progress: Show a progress bar. None: in a terminal or a notebook.
        profile: Print where the time went, and write `profile.json`, a trace for ui.perfetto.dev, to the run folder.
        trust: Import the code that a config of another user names.
        settings: Top-level keys of the config, such as `rounds=5` or `train={"lr": 0.1}`.

    Examples:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(120, 4))
        >>> y = np.where(x[:, 0] > 0, "ill", "healthy")
        >>> result = polyfed.run(data=(x, y), method="local", clients=2, rounds=1, engine={"name": "serial"})
        >>> result.method, [client.model for client in result.clients]
        ('local', ['tiny-table-mlp', 'tiny-table-resnet'])
    """
    if "polyfed.federation.user_imports" in sys.modules:  # otherwise no user code is being imported; it needs torch
        from polyfed.federation.user_imports import check_no_nested_run

        check_no_nested_run()
    with profiling.profiled(profile, print):
        raw, dataset = raw_config(config, data=data, models=models, method=method, settings=settings)
        check_source_trusted(parsed := parse(raw), config, trust=trust)
        path = Path(out) if out else None
        result = run_with_progress(
            with_user_code(parsed), out=path, force=force, data=dataset, observers=observers, progress=progress
        )
    warn_of_problems(result)
    return result


def load(folder: str | Path) -> Result:
    """Return the result of a finished run from its folder.

    Raise `InputError` if the folder is not a run folder, or if the run has not finished.

    Examples:
        >>> result = polyfed.load("runs/digits")
        >>> result.method, result.rounds, len(result.history)
        ('fedproto', 2, 2)
    """
    opened = RunFolder(Path(folder))
    opened.config()  # raises an error if it is not a run folder
    result = opened.result()
    if result is None:
        raise InputError(f"the run {folder} has not finished; resume it with polyfed.resume({str(folder)!r})")
    return result


def run_with_progress(
    config: Config,
    *,
    out: Path | None = None,
    force: bool = False,
    data: Dataset | None = None,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
) -> Result:
    """Run a parsed config as `run_config` does, with a progress bar."""
    from polyfed.progress import progress_observers

    with progress_observers(progress, str(config.method["name"])) as shown:
        return run_config(config, out=out, force=force, data=data, observers=[*observers, *shown])


@dataclass(frozen=True)
class OpenedRun:
    """A config with its run folder, which is examined once: does the run exist, and has it finished?"""

    config: Config
    folder: RunFolder
    exists: bool
    result: Result | None  # None if the run has not finished
    code: Mapping[str, str]  # digests of the user's code
    replace: bool = False  # move the existing folder away and run again


class ChangedRunError(InputError):
    """The run folder was made with other settings or other code."""


FORCE = "use --force (in Python force=True) to keep the old folder as {old} and run again"
RESTART = "use polyfed run with --force (in Python polyfed.run with force=True) to keep the old folder as {old}"


def open_run(config: Config, out: Path | None = None, *, force: bool = False, remedy: str = FORCE) -> OpenedRun:
    """Examine the run folder of a config. Write nothing, and do not import torch.

    Raise `InputError` if the folder belongs to another config, was made with other code, or is not a run folder. With
    `force`, the run will move an existing run folder away; otherwise the message offers `remedy`.
    """
    folder = RunFolder(run_path(config, out))
    exists = folder.exists()
    if not exists and folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise InputError(f"{folder.path} exists and is not a run folder; choose another name or --out")
    check_folder_creatable(folder.path)
    code = code_digest.code_digests(config)
    if exists and force:
        return OpenedRun(config, folder, False, None, code, replace=True)
    if exists and read_config(folder).hash() != config.hash():
        raise ChangedRunError(
            f"the run folder {folder.path} exists with another config; choose another name or --out, or "
            + remedy.format(old=folder.next_old_path().name)
        )
    if exists:
        _check_code(folder, config, code, remedy)
    return OpenedRun(config, folder, exists, folder.result() if exists else None, code)


def _check_code(folder: RunFolder, config: Config, code: Mapping[str, str], remedy: str) -> None:
    """Raise `InputError` if a run was made with other code of the user or another version of polyfed."""
    recorded = folder.config().get("versions")
    changes = code_digest.describe_changes(
        recorded if isinstance(recorded, Mapping) else {},
        {"polyfed": code_digest.polyfed_version(), "code": code},
        (folder.user_code(), config.user_code),
    )
    if changes:
        raise ChangedRunError(
            f"the code{' or the initial weights' if config.models.start else ''} of the run in {folder.path} has "
            f"changed: {changes}; choose another name or --out, or " + remedy.format(old=folder.next_old_path().name)
        )


def open_existing_run(path: Path, *, trust: bool = False, imports: bool = False) -> OpenedRun:
    """Open a run folder with the config that it records.

    Raise `InputError` if it is not a run folder, or if its code has changed or comes from elsewhere. A finished run
    needs its code only if the caller `imports` it. With `trust`, the folder counts as the user's own from now on.
    """
    folder = RunFolder(path)
    config, result = read_config(folder), folder.result()
    if trust or imports or result is None:
        require_trust(config, path, trust=trust)
    if result is not None:
        return OpenedRun(config, folder, True, result, {})
    code = code_digest.code_digests(config)
    _check_code(folder, config, code, RESTART)
    return OpenedRun(config, folder, True, None, code)


def run_config(
    config: Config,
    *,
    out: Path | None = None,
    force: bool = False,
    data: Dataset | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run a parsed config and return its result. Resume an unfinished run; return the result of a finished one."""
    return execute(open_run(config, out, force=force), data=data, observers=observers)


def resume(
    path: str | Path,
    *,
    data: Any = None,
    models: Any = None,
    method: Any = None,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    trust: bool = False,
) -> Result:
    """Resume a run from its last checkpoint and return its result.

    Give `data`, `models` or `method` again, as you gave them to `run`, if polyfed asks for them: arrays that are no
    longer in the cache, or classes that could not be saved as source code. `trust` allows code of a folder that was
    made elsewhere.

    Examples:
        >>> polyfed.resume("runs/digits") == polyfed.load("runs/digits")  # it has finished
        True
    """
    opened = open_existing_run(Path(path), trust=trust)
    dataset = None
    if opened.result is None:
        if method is not None and method_section(method)["name"] != opened.config.method["name"]:
            raise InputError(f"{path} is a run of the method {opened.config.method['name']}; give this method")
        if models is not None:
            check_same_models(models, opened.config, opened.folder.path)
        if data is not None:
            dataset = same_data(data, opened.config, opened.folder.path)
    from polyfed.progress import progress_observers

    with progress_observers(progress, str(opened.config.method["name"])) as shown:
        result = execute(opened, data=dataset, observers=[*observers, *shown])
    warn_of_problems(result)
    return result


def execute(
    opened: OpenedRun, *, data: Dataset | None = None, observers: Sequence[Observer] = (), own_process: bool = False
) -> Result:
    """Run an opened run to its end. Everything is checked before the run folder is created."""
    if opened.result is not None:
        return opened.result
    from polyfed import trackers

    config, folder = opened.config, opened.folder
    if config.engine.name == "flower":
        raise InputError("engine flower reaches sites on other machines; start it with polyfed serve")
    tracking = trackers.create_trackers(config.track)
    with profiling.span("startup", "import torch"), fast_imports(permanent=own_process):
        from polyfed.experiment import Experiment, versions
        from polyfed.federation import simulation
        from polyfed.federation.user_code import initial_weights

    with profiling.span("startup", "build the federation"):
        if opened.exists:
            import_user_code(config, folder)
            if data is None:
                check_data_exists(config, folder.path)
        federation = simulation.build_federation(config, data=data)

    def note(sentence: str) -> None:
        if not opened.replace:  # the folder still holds the old run
            folder.event("note", message=sentence)
        for observer in observers:
            observer.note(sentence)
        if not observers:
            logging.getLogger("polyfed").warning(sentence)

    with trackers.track_run(config.track, tracking, note) as tracker_observers:
        with profiling.span("startup", "check the run"):
            experiment = Experiment(federation, folder, [*observers, *tracker_observers])
        if opened.replace:
            folder.set_aside()
        if not opened.exists:
            settings = {**config.to_dict(), "name": config.run_name, "versions": {**versions(), "code": opened.code}}
            folder.create(settings, config.user_code, initial_weights(config) if config.user_code else b"")
        with profiling.saved(folder.write_profile):
            return experiment.run()


def run_path(config: Config, out: Path | None = None) -> Path:
    """Return the path of a config's run folder."""
    return out or Path("runs") / config.run_name


def read_config(folder: RunFolder) -> Config:
    """Read the config of an existing run."""
    return parse(folder.config(), str(folder.config_file)).with_user_code(folder.user_code())

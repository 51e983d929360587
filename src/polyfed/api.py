"""The Python API: `polyfed.run` and `polyfed.resume`, with the same keys as a config file."""

from __future__ import annotations

import dataclasses
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.config import Config, code_digest, loading, parse
from polyfed.errors import InputError
from polyfed.runs.atomic_files import check_folder_creatable
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result, failure_summary

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
    force: bool = False,
    observers: Sequence[Observer] = (),
    **overrides: Any,
) -> Result:
    """Run an experiment and return its result.

    `source` is a config file, the name of a preset or a mapping; `overrides` are top-level config keys. `data` may be
    an open dataset, and `method` your own method class or an object of it. If the run folder exists, resume the run,
    or return its result if it has finished. Raise `InputError` if the folder was made with other settings or other
    code. With `force`, move an existing folder to `NAME.old-1` (or the next free number) and run again.
    """
    from polyfed.data.dataset import Dataset

    if "polyfed.federation.user_imports" in sys.modules:  # otherwise no user code is being imported; it needs torch
        from polyfed.federation.user_imports import check_no_nested_run

        check_no_nested_run()
    raw = loading.unshared_copy(source) if isinstance(source, Mapping) else loading.read_source(source)
    for key, value in overrides.items():
        loading.set_key(raw, [key], value, key)
    if method is not None:
        raw["method"] = _method_entry(method)
    if isinstance(data, Dataset):
        # record its cache folder, so that `resume` can open it again
        loading.set_key(raw, ["data", "dataset"], data.name, "data")
        loading.set_key(raw, ["data", "root"], str(data.folder), "data")
    elif data is not None:
        loading.set_key(raw, ["data"], dict(data), "data")
    result = run_config(
        _with_user_code(parse(raw)),
        out=Path(out) if out else None,
        force=force,
        data=data if isinstance(data, Dataset) else None,
        observers=observers,
    )
    _warn_of_failures(result)
    return result


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
            f"the code of the run in {folder.path} has changed: {changes}; choose another name or --out, or "
            + remedy.format(old=folder.next_old_path().name)
        )


def open_existing_run(path: Path) -> OpenedRun:
    """Open a run folder with the config that it records.

    Raise `InputError` if it is not a run folder, or if the run has not finished and its code has changed.
    """
    folder = RunFolder(path)
    config, result = read_config(folder), folder.result()
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


def resume(path: str | Path, *, observers: Sequence[Observer] = ()) -> Result:
    """Resume a run from its last checkpoint and return its result."""
    result = execute(open_existing_run(Path(path)), observers=observers)
    _warn_of_failures(result)
    return result


def execute(opened: OpenedRun, *, data: Dataset | None = None, observers: Sequence[Observer] = ()) -> Result:
    """Run an opened run to its end. Everything is checked before the run folder is created."""
    if opened.result is not None:
        return opened.result
    from polyfed import trackers

    config, folder = opened.config, opened.folder
    if config.engine.name == "flower":
        raise InputError("engine flower reaches sites on other machines; start it with polyfed serve")
    tracking = trackers.create_trackers(config.track)
    from polyfed.experiment import Experiment, versions  # imports torch
    from polyfed.federation import simulation

    import_user_code(config, folder)
    federation = simulation.build_federation(config, data=data)

    def note(sentence: str) -> None:
        if not opened.replace:  # the folder still holds the old run
            folder.event("note", message=sentence)
        for observer in observers:
            observer.note(sentence)
        if not observers:
            logging.getLogger("polyfed").warning(sentence)

    with trackers.track_run(config.track, tracking, note) as tracker_observers:
        experiment = Experiment(federation, folder, [*observers, *tracker_observers])
        if opened.replace:
            folder.set_aside()
        if not opened.exists:
            settings = {**config.to_dict(), "name": config.run_name, "versions": {**versions(), "code": opened.code}}
            folder.create(settings, config.user_code)
        return experiment.run()


def run_path(config: Config, out: Path | None = None) -> Path:
    """Return the path of a config's run folder."""
    return out or Path("runs") / config.run_name


def read_config(folder: RunFolder) -> Config:
    """Read the config of an existing run."""
    return parse(folder.config(), str(folder.config_file)).with_user_code(folder.user_code())


def _method_entry(method: Any) -> Any:
    """Return the `method` section of the config for a name, a mapping, a class or an object."""
    if isinstance(method, str):
        return {"name": method}
    if isinstance(method, Mapping):
        return dict(method)
    cls: Any = method if isinstance(method, type) else type(method)
    if not cls.name:
        raise InputError(f'the method {cls.__qualname__} has no name; put @register("name") above its class')
    fields = {} if isinstance(method, type) else dataclasses.asdict(method)
    return {"name": cls.name, **fields}


def _warn_of_failures(result: Result) -> None:
    """Warn the caller of `run` or `resume` of replies that are missing in a result."""
    if result.failures:
        warnings.warn(f"{failure_summary(result)}; see result['failures']", stacklevel=3)


def _with_user_code(config: Config) -> Config:
    """Return the config with the code that workers need to know its models and method."""
    if "torch" not in sys.modules:
        return config  # nothing can have been registered
    from polyfed.federation.user_code import collect_user_code, fingerprints_as_code
    from polyfed.federation.user_imports import check_current

    try:
        config = config.with_user_code(collect_user_code(config))
    except InputError:
        if config.engine.name != "serial":
            raise
        return config.with_user_code(fingerprints_as_code(config))  # everything is in this process
    check_current({*code_digest.code_digests(config)} - {*code_digest.file_digests(config.imports)})
    return config


def import_user_code(config: Config, folder: RunFolder) -> None:
    """Import the user code of a run that is resumed, unless this process has the same code."""
    from polyfed.federation.user_code import collect_user_code, fingerprints_as_code
    from polyfed.federation.user_imports import import_user_modules

    if not config.user_code:
        return
    import_user_modules(config.imports)
    try:
        present = collect_user_code(config)
    except InputError:
        present = fingerprints_as_code(config)
    if present != config.user_code:
        import_user_modules([str(folder.user_code_file.resolve())])

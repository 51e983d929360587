"""A run folder: its files, and the lock that one process holds while it writes them."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import yaml

from polyfed import profiling
from polyfed.errors import InputError, RunError
from polyfed.runs import lock_owner, safe_files
from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.config_text import read_yaml
from polyfed.runs.origin import write_origin
from polyfed.runs.records import Result

if TYPE_CHECKING:
    from torch import Tensor

OLD = ".old-"  # and a number: end of the names of folders whose run was started again
SITE_FILE = "site.json"  # marks the folder in which a site of a real federation keeps its runs


class RunFolder:
    """The folder of one run: `config.yaml`, `events.jsonl`, `checkpoint/`, `result.json` and others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._appended = False  # this object has written an event

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def partition_file(self) -> Path:
        return self.path / "partition.npz"

    @property
    def clients_file(self) -> Path:
        return self.path / "clients.json"

    @property
    def user_code_file(self) -> Path:
        return self.path / "user_code.py"

    @property
    def weights_file(self) -> Path:
        return self.path / "initial_weights.safetensors"

    @property
    def profile_file(self) -> Path:
        return self.path / "profile.json"

    @property
    def lock_file(self) -> Path:
        return self.path / ".lock"

    @property
    def checkpoint_folder(self) -> Path:
        return self.path / "checkpoint"

    @property
    def artifacts_folder(self) -> Path:
        return self.path / "artifacts"

    @property
    def uploads_folder(self) -> Path:
        return self.path / "uploads"

    # reading

    def exists(self) -> bool:
        try:
            return self.config_file.exists()
        except OSError as error:
            raise InputError(f"{self.path} cannot be a run folder: {error.strerror}") from None

    def config(self) -> dict[str, Any]:
        """Return the complete config of the run."""
        try:
            config = read_yaml(safe_files.read_text(self.config_file))
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(f"{self.path} is not a run folder: it has no config.yaml") from None
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InputError(f"{self.config_file} cannot be read: {safe_files.reason(error)}") from None
        if not isinstance(config, dict):
            raise InputError(f"{self.config_file} does not hold a config")
        return config

    def user_code(self) -> str:
        """Return the source of the user's models and methods that are in no other file."""
        try:
            return safe_files.read_text(self.user_code_file)
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise InputError(f"{self.user_code_file} cannot be read: {safe_files.reason(error)}") from None

    def result(self) -> Result | None:
        """Return the result of a finished run, or None if the run has not finished."""
        try:
            result = safe_files.read_json(self.result_file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.result_file} cannot be read: {safe_files.reason(error)}") from None
        if not isinstance(result, dict):
            raise InputError(f"{self.result_file} holds a {type(result).__name__}, expected a mapping")
        loaded = Result(result)
        loaded.folder = self.path
        return loaded

    def events(self) -> list[dict[str, Any]]:
        """Return all events in order, without damaged lines, such as a last line cut off by a kill.

        Raise `InputError` if the file cannot be read.
        """
        try:
            lines = list(safe_files.read_lines(self.events_file))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{self.events_file} cannot be read: {safe_files.reason(error)}") from None
        return [event for line in lines if (event := safe_files.parse_event(line)) is not None]

    # writing

    def create(self, config: dict[str, Any], user_code: str = "", weights: bytes = b"") -> None:
        """Create the folder with its `config.yaml`, and with the user's code and initial weights if there are any.

        Raise `RunError` if another process was faster.
        """
        if self.exists():
            raise RunError(f"another process has just created the run folder {self.path}; run the same command again")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the run folder {self.path} cannot be created: {error.strerror}") from None
        if user_code:
            write_atomically(self.user_code_file, user_code.encode())
        if weights:
            write_atomically(self.weights_file, weights)
        write_atomically(self.config_file, yaml.safe_dump(config, sort_keys=False).encode())
        write_origin(self.path)

    def next_old_path(self) -> Path:
        """Return the path to which the folder is moved before its run is started again."""
        path = self.path.absolute()
        return next(p for n in itertools.count(1) if not (p := path.with_name(f"{path.name}{OLD}{n}")).exists())

    def set_aside(self) -> None:
        """Move the folder to `NAME.old-1` or the next free number. Raise `RunError` if a process is working on it."""
        self.lock()
        try:
            self.path.rename(self.next_old_path())
        except OSError as error:
            raise InputError(f"the run folder {self.path} cannot be moved: {error.strerror}") from None
        finally:
            self.unlock()

    def write_result(self, result: dict[str, Any]) -> None:
        with profiling.span("write", "write the result"):
            write_atomically(self.result_file, json.dumps(result, indent=1).encode())

    def write_profile(self, trace: str) -> None:
        write_atomically(self.profile_file, trace.encode(), durable=False)

    def write_clients(self, clients: dict[str, Any]) -> None:
        write_atomically(self.clients_file, json.dumps(clients).encode(), durable=False)

    def write_artifact(self, kind: str, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors for figures to `artifacts/<kind>-<round>.safetensors`. A repeated round overwrites them."""
        from safetensors.torch import save

        self.artifacts_folder.mkdir(exist_ok=True)
        write_atomically(self.artifacts_folder / f"{kind}-{number:06d}.safetensors", save(dict(tensors)))

    def write_upload(self, client: str, number: int, steps: str, frame: bytes) -> None:
        """Write a reply to `uploads/<client>/<round>-<steps>.polyfed`. A repeated round overwrites it."""
        folder = self.uploads_folder / quote(client, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{number:06d}-{steps}.polyfed", frame, durable=False)

    def uploads(self, client: str) -> list[Path]:
        """Return the recorded replies of a client, oldest round first."""
        return sorted((self.uploads_folder / quote(client, safe="")).glob("*.polyfed"))

    def event(self, kind: str, /, **fields: Any) -> None:
        """Append an event. Write errors are ignored: a full disk must not hide the error that is being recorded."""
        line = json.dumps({"time": round(time.time(), 3), **fields, "event": kind}) + "\n"
        with contextlib.suppress(OSError), safe_files.open_for_append(self.events_file) as file:
            if not self._appended and safe_files.ends_within_line(file):
                line = "\n" + line  # a kill cut off the last line: keep this event out of it
            file.write(line.encode())
            self._appended = True

    # locking

    def lock(self) -> None:
        """Lock the folder for this process. Raise RunError if another process holds the lock.

        The lock ends with the process, even if it is killed.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = safe_files.open_lock(self.lock_file)
        except OSError as error:
            raise InputError(
                f"the run folder {self.path} cannot be written: {self.lock_file.name}: {safe_files.reason(error)}"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise RunError(f"another process is working on {self.path}") from None
        lock_owner.write(descriptor)
        self._lock = descriptor

    def unlock(self) -> None:
        if self._lock is not None:
            lock_owner.erase(self._lock)
            os.close(self._lock)
            self._lock = None

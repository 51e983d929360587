"""`polyfed export`: write the trained models of a run to a folder, one subfolder for each client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from polyfed.errors import InputError
from polyfed.trained import onnx_file
from polyfed.trained.model_folder import write_model
from polyfed.trained.run_models import RunModels, client_name


@dataclass(frozen=True)
class Exported:
    """One exported model."""

    client: str
    architecture: str
    folder: Path
    onnx_error: str | None = None  # why there is no model.onnx, if it was requested


def export_models(
    run: Path, folder: Path, *, client: int | str | None = None, onnx: bool = False, trust: bool = False
) -> Iterator[Exported]:
    """Write the models of all clients of a run, or of one, and yield each after it is written.

    Raise `InputError` if the folder is not empty. `trust` allows code of a run folder that was made elsewhere.
    """
    models = RunModels(run, trust=trust)
    names = list(models.numbers) if client is None else [client_name(client, models.numbers, str(run))]
    if onnx:
        onnx_file.check_installed()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder, nothing was written")
    for name in names:
        trained = models.load(name)
        target = folder / quote(name, safe="")
        try:
            write_model(trained, target)
        except OSError as error:
            raise InputError(f"{target} cannot be written: {error.strerror}") from None
        failure = onnx_file.write_onnx(trained, target) if onnx else None
        yield Exported(name, trained.architecture, target, failure)

"""`polyfed.load_client`: a client's trained model from a run folder or from an exported folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from polyfed.errors import InputError
from polyfed.trained.client import TrainedClient
from polyfed.trained.model_folder import SITE_MODEL, described_client, is_model_folder, read_model
from polyfed.trained.run_models import RunModels, client_name


def load_client(path: str | Path, client: int | str | None = None, *, trust: bool = False) -> TrainedClient:
    """Load the trained model of a client.

    `path` is a run folder (also that of a site), a folder that `polyfed export` wrote, or the folder of one exported
    model. `client` is the client's number or name; a folder of one model needs none. A run folder needs the run's
    dataset; an exported folder needs nothing else. `trust` imports the code that a run folder or an exported model of
    another user names.

    The object has `predict(x)`, `predict_proba(x)`, `model` (a `torch.nn.Module`), `classes` and `architecture`.

    Examples:
        >>> import numpy as np
        >>> client = polyfed.load_client("runs/digits", 0)
        >>> pictures = np.zeros((3, 8, 8), dtype=np.uint8)
        >>> client.architecture, client.predict(pictures).shape, client.predict_proba(pictures).shape
        ('tiny-cnn', (3,), (3, 10))
    """
    folder = Path(path)
    if is_model_folder(folder / SITE_MODEL):  # a site's run folder
        folder = folder / SITE_MODEL
    if is_model_folder(folder):
        trained = read_model(folder, trust=trust)
        if client is not None and str(client) != trained.name:
            raise InputError(f"{folder} holds the model of client {trained.name}, not of {client}")
        return trained
    numbers = exported_clients(folder)
    if numbers:
        return read_model(folder / quote(_chosen(client, numbers, folder), safe=""), trust=trust)
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is neither a run folder nor a folder that polyfed export wrote")
    run = RunModels(folder, trust=trust)
    return run.load(_chosen(client, run.numbers, folder))


def exported_clients(folder: Path) -> dict[str, int]:
    """Return the numbers of the clients in a folder that `polyfed export` wrote, by name; empty for other folders."""
    if not folder.is_dir():
        return {}
    found = [described_client(path) for path in folder.iterdir() if is_model_folder(path)]
    return {name: number for number, name in sorted(found)}


def _chosen(client: int | str | None, numbers: Mapping[str, int], folder: Path) -> str:
    """Return the name of the requested client, or of the only one."""
    if client is not None:
        return client_name(client, numbers, str(folder))
    if len(numbers) == 1:
        return next(iter(numbers))
    names = list(numbers)
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    raise InputError(f"{folder} holds the models of {len(names)} clients ({shown}); say which one")

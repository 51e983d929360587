"""Details of one run that the page reads on demand: clients, data partition, uploads, projections of features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError
from polyfed.report import run_record
from polyfed.report.clean_text import clean
from polyfed.report.run_record import RunRecord
from polyfed.report.uploads import describe_privacy_cost, describe_protection

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_POINTS = 600  # of a projection
PROJECTIONS = ("pca", "tsne")


def run_details(folder: Path) -> dict[str, Any]:
    """Read the details of a run folder. Raise InputError if its files are damaged."""
    record = run_record.read(folder)
    names = list(dict.fromkeys(client for upload in record.uploads for client in upload.bytes_by_client))
    return {
        "class_names": record.class_names,
        "clients": [
            {
                "name": client.name,
                "model": client.model,
                "parameters": client.parameters,
                "train": {str(label): count for label, count in client.train_counts.items()},
            }
            for client in record.clients
        ],
        "uploads": [
            {
                "step": clean(upload.step),
                "name": clean(upload.name),
                "shape": clean(upload.shape),
                "messages": upload.messages,
                "bytes": upload.bytes,
                "protection": describe_protection(record.config, upload.name),
            }
            for upload in record.uploads
        ],
        "upload_clients": [_uploads_of(record, name) for name in names],
        "privacy": describe_privacy_cost(record.privacy, names) if isinstance(record.privacy, dict) else [],
        "features": [number for number, _ in record.artifacts("features")],
    }


def _uploads_of(record: RunRecord, client: str) -> dict[str, Any]:
    """Sum the uploads of one client."""
    sent = [upload for upload in record.uploads if client in upload.bytes_by_client]
    return {
        "name": clean(client),
        "fields": list(dict.fromkeys(clean(upload.name) for upload in sent)),
        "messages": sum(upload.messages_by_client[client] for upload in sent),
        "bytes": sum(upload.bytes_by_client[client] for upload in sent),
    }


def project_features(folder: Path, number: int, projection: str) -> list[tuple[float, float, int, int]]:
    """Project the features of a round to the unit square. Return x, y, client and class of each feature.

    Raise InputError if the round has no features, or if they cannot be projected.
    """
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if projection not in PROJECTIONS:
        raise InputError(f"there is no projection '{projection}'; allowed are {' and '.join(PROJECTIONS)}")
    path = folder / "artifacts" / f"features-{number:06d}.safetensors"
    if not path.is_file():
        raise InputError(f"this run has no features of round {number}")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from None
    vectors, classes, clients = (tensors.get(name) for name in ("vectors", "classes", "clients"))
    invalid = InputError(f"{path.name} does not hold finite vectors with a class and a client each")
    if vectors is None or classes is None or clients is None:
        raise invalid
    if not 0 < len(vectors) == len(classes) == len(clients) or not np.isfinite(vectors).all():
        raise invalid
    chosen = np.unique(np.linspace(0, len(vectors) - 1, min(MAX_POINTS, len(vectors))).round().astype(int))
    flat = vectors[chosen].reshape(len(chosen), -1).astype(np.float64)
    if projection == "tsne":
        from polyfed.analysis.tsne import tsne_embedding

        points = tsne_embedding(flat)
    else:
        points = _principal_components(flat)
    return [
        (round(float(x), 4), round(float(y), 4), int(client), int(label))
        for (x, y), client, label in zip(_unit_square(points), clients[chosen], classes[chosen], strict=True)
    ]


def _principal_components(vectors: Array) -> Array:
    """Return the coordinates of vectors along their first two principal components."""
    import numpy as np

    centred = vectors - vectors.mean(0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : min(2, len(scale))] = left[:, :2] * scale[:2]
    return points


def _unit_square(points: Array) -> Sequence[Any]:
    """Shift and scale points to the unit square, with one scale for both axes."""
    low, high = points.min(0), points.max(0)
    span = float((high - low).max()) or 1.0
    return ((points - (low + high) / 2) / span + 0.5).tolist()  # type: ignore[no-any-return]

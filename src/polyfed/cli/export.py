"""`polyfed export` and `polyfed predict`: use the trained models of a run."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.arguments import TRUST
from polyfed.cli.output import format_percent, print_message, print_text
from polyfed.errors import InputError


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to. It must be new or empty.")
    ],
    client: Annotated[
        str | None, typer.Option(help="Number or name of the client to export.", show_default="all clients")
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx where the model allows it. Needs the extra onnx.")
    ] = False,
    trust: TRUST = False,
) -> None:
    """Export the trained models of a run: safetensors weights and a JSON description for each client.

    `polyfed.load_client` loads the exported models, without the run folder and without the data.

    Example: polyfed export runs/my-run --client 3 -o models/
    """
    from polyfed.trained.export import export_models

    count = 0
    for model in export_models(run, out, client=client, onnx=onnx, trust=trust):
        count += 1
        print_text(f"{model.folder}: client {model.client}, {model.architecture}")
        if model.onnx_error is not None:
            print_message(f"client {model.client} has no model.onnx: {model.onnx_error}")
    print_text(
        f"Exported {count} model{'' if count == 1 else 's'}. Load one with polyfed.load_client('{out}', NAME)."
    )


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or a folder that `polyfed export` wrote.")
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="PATH", help="Samples: a folder of pictures, a csv or .npz file, or a dataset folder."),
    ],
    client: Annotated[
        str | None, typer.Option(help="Number or name of the client.", show_default="the only client")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="CSV file to write.", show_default="stdout")
    ] = None,
    trust: TRUST = False,
) -> None:
    """Predict the classes of samples with a trained model, and write them as csv.

    If the samples have labels, the table has them as well, and the accuracy is printed to stderr.

    Example: polyfed predict runs/my-run --client 3 --data scans/ -o predictions.csv
    """
    from polyfed.trained.load import load_client
    from polyfed.trained.predictions import predict_folder

    predictions = predict_folder(load_client(model, client, trust=trust), data)
    text = io.StringIO()
    predictions.write(text)
    if out is None:
        print_text(text.getvalue())
    else:
        try:
            out.write_text(text.getvalue())
        except OSError as error:
            raise InputError(f"{out} cannot be written: {error.strerror}") from None
        print_message(f"{out}: {len(predictions.samples)} predictions")
    if predictions.labels is not None:
        correct, total = predictions.correct, len(predictions.labels)
        print_message(f"accuracy: {format_percent(correct / total)} ({correct} of {total})")


COMMANDS: dict[str, Callable[..., None]] = {"export": export, "predict": predict}

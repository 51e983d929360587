"""`polyfed export` and `polyfed predict`: use the trained models of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_message, print_text


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to. It must be new or empty.")
    ],
    client: Annotated[
        str | None, typer.Option(help="Number or name of the client to export.", show_default="all clients")
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx where the model allows it. Needs polyfed[onnx].")
    ] = False,
) -> None:
    """Export the trained models of a run: safetensors weights and a JSON description for each client.

    `polyfed.load_client` loads the exported models, without the run folder and without the data.

    Example: polyfed export runs/my-run --client 3 -o models/
    """
    from polyfed.trained.export import export_models

    count = 0
    for model in export_models(run, out, client=client, onnx=onnx):
        count += 1
        print_text(f"{model.folder}: client {model.client}, {model.architecture}")
        if model.onnx_error is not None:
            print_message(f"client {model.client} has no model.onnx: {model.onnx_error}")
    print_text(
        f"Exported {count} model{'' if count == 1 else 's'}. Load one with polyfed.load_client('{out}', NAME)."
    )


COMMANDS = {"export": export}

"""`polyfed attack`: what an attacker gets back from what left a client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_json, print_table, print_text


def attack(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder with evaluate.record_uploads.")],
    client: Annotated[str | None, typer.Option(help="Whose replies.", show_default="the first kept")] = None,
    field: Annotated[str | None, typer.Option(help="Which field.", show_default="the last with rows")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that the attacker trains.")] = 1000,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The picture.", show_default="DIR/attack-CLIENT-FIELD.png"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Try to get a client's pictures back from what it sent, and say how well that went."""
    from polyfed.attack.reconstruction import attack as run_attack
    from polyfed.attack.reconstruction import draw
    from polyfed.core.rounds import one_torch_thread

    with one_torch_thread():
        result = run_attack(folder, client, field, steps)
    report = result.report
    picture = out or folder / f"attack-{report['client']}-{report['field']}.png"
    draw(result, picture)
    if json:
        print_json({**report, "picture": str(picture)})
        return
    few, many = report["samples_per_row"]
    behind = f"{few}" if few == many else f"{few} to {many}"
    print_text(
        f"Client {report['client']}, field '{report['field']}' of round {report['round']}: {report['rows']} rows, "
        f"each from {behind} samples. {report['threat_model']}"
    )
    print_table(
        ["reconstruction from", "PSNR, dB", "SSIM"],
        [[name, f"{score['psnr']:.2f}", f"{score['ssim']:.3f}"] for name, score in report["scores"].items()],
        right=(1, 2),
    )
    print_text(
        "Higher values mean more similar images. The first two lines need no attack: they are the mean of the "
        "attacker's own images, over all classes or over the class. Values above them come from the uploaded rows; a "
        "stronger attack may recover more."
    )
    if not report["protected"]:
        print_text(f"The field '{report['field']}' was uploaded without clipping and noise.")
    print_text(f"Mean cosine similarity of the uploaded rows to the rows without protection: {report['cosine']:.2f}.")
    print_text(f"Picture: {picture}")


COMMANDS = {"attack": attack}

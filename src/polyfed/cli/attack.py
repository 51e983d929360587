"""`polyfed attack`: what an attacker gets back from what left a client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import put, put_json, put_table


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
    from polyfed.attack.reconstruction import attack as tried
    from polyfed.attack.reconstruction import draw
    from polyfed.core.rounds import one_torch_thread

    with one_torch_thread():
        outcome = tried(folder, client, field, steps)
    facts = outcome.facts
    picture = out or folder / f"attack-{facts['client']}-{facts['field']}.png"
    draw(outcome, picture)
    if json:
        put_json({**facts, "picture": str(picture)})
        return
    few, many = facts["samples_behind_a_row"]
    behind = f"{few}" if few == many else f"{few} to {many}"
    put(
        f"Client {facts['client']}, field '{facts['field']}' of round {facts['round']}: {facts['rows']} rows, each "
        f"from {behind} samples. {facts['threat']}"
    )
    put_table(
        ["what the attacker sees", "PSNR, dB", "SSIM"],
        [[name, f"{score['psnr']:.2f}", f"{score['ssim']:.3f}"] for name, score in facts["scores"].items()],
        right=(1, 2),
    )
    put(
        "Higher is closer to the client's pictures. The first two lines need no attack: they are the mean of the "
        "attacker's own pictures, of all or of the class. What comes back above them, the rows gave away; a better "
        "attack may get more."
    )
    if not facts["protected"]:
        put(f"The field '{facts['field']}' left without clipping and noise.")
    put(f"What left points, on average, {facts['cosine']:.2f} (cosine) the way of the model's clean rows.")
    put(f"Picture: {picture}")


COMMANDS = {"attack": attack}

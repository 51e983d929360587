"""`polyfed attack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.arguments import JSON, TRUST
from polyfed.cli.output import print_json, print_table, print_text


def attack(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder whose config sets evaluate.record_uploads.")
    ],
    client: Annotated[
        str | None, typer.Option(help="Client to attack.", show_default="the first recorded client")
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Uploaded field to attack.", show_default="the last field with rows")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of the attacker's model.")] = 1000,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Image file to write.", show_default="DIR/attack-CLIENT-FIELD.png"
        ),
    ] = None,
    membership: Annotated[
        bool,
        typer.Option("--membership", help="Tell training samples from held-out ones instead."),
    ] = False,
    trust: TRUST = False,
    json: JSON = False,
) -> None:
    """Run a reconstruction attack on a client's uploads, or a membership-inference attack, and report how much it
    recovers.

    Example: polyfed attack runs/guarded --client 0
    """
    from polyfed.runs.atomic_files import check_file_writable
    from polyfed.runs.folder import RunFolder

    RunFolder(folder).config()  # raises an error if it is not a run folder
    if membership:
        _infer_membership(folder, client, json, trust)
        return
    check_file_writable(out or folder / "attack.png")
    from polyfed.attack.reconstruction import attack as run_attack
    from polyfed.attack.reconstruction import draw
    from polyfed.core.rounds import one_torch_thread

    with one_torch_thread():
        result = run_attack(folder, client, field, steps, trust=trust)
    report = result.report
    picture = out or folder / f"attack-{report['client']}-{report['field']}.png"
    draw(result, picture)
    if json:
        print_json({**report, "picture": str(picture)})
        return
    fewest, most = report["samples_per_row"]
    per_row = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    print_text(
        f"Client {report['client']}, field '{report['field']}' of round {report['round']}: {report['rows']} rows, "
        f"each from {per_row} samples. {report['threat_model']}"
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


def _infer_membership(folder: Path, client: str | None, json: bool, trust: bool) -> None:
    from polyfed.attack.membership import infer_membership
    from polyfed.core.rounds import one_torch_thread

    with one_torch_thread():
        report = infer_membership(folder, client, trust=trust)
    if json:
        print_json(report)
        return
    print_text(
        f"Client {report['client']}: {report['members']} training samples and {report['others']} held-out samples. "
        f"{report['threat_model']}"
    )
    print_table(
        ["membership from", "AUC", "advantage"],
        [[name, f"{score['auc']:.3f}", f"{score['advantage']:+.3f}"] for name, score in report["scores"].items()],
        right=(1, 2),
    )
    print_text(
        "An AUC of 0.5 and an advantage of 0 are guessing. The initial model has seen no sample, so the first line "
        "shows how much the two groups differ anyway. A stronger attack may separate them better."
    )


COMMANDS = {"attack": attack}

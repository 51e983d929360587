"""`polyfed advise`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.arguments import JSON, OVERRIDES
from polyfed.cli.output import print_json, print_message, print_table, print_text
from polyfed.errors import InputError

if TYPE_CHECKING:
    from polyfed.advice import Advice
    from polyfed.leaderboard.records import Gain

SHOWN = 8  # methods in the table; JSON has all


def advise(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML file or the name of a preset. Options replace what it says.",
            show_default=False,
        ),
    ] = None,
    overrides: OVERRIDES = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Models of the clients: same, sizes (of one family) or different.", show_default="different"
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data: images, tables, series or tokens.", show_default="images")
    ] = None,
    care: Annotated[
        str | None, typer.Option(help="Accuracy that counts: common, personal or both.", show_default="both")
    ] = None,
    may_send: Annotated[
        str | None,
        typer.Option(help="Kinds of information that clients may upload, separated by commas.", show_default="all"),
    ] = None,
    never: Annotated[
        str | None, typer.Option(help="Kinds that clients must not upload, separated by commas.", show_default="none")
    ] = None,
    mib_per_round: Annotated[
        float | None,
        typer.Option(help="MiB that one client may send and receive in a round.", show_default="unlimited"),
    ] = None,
    compute: Annotated[
        str | None, typer.Option(help="Computing power of clients: low or high.", show_default="high")
    ] = None,
    skew: Annotated[
        str | None, typer.Option(help="Differences of label distributions: strong or mild.", show_default="strong")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.", show_default="that of the config")] = None,
    differential_privacy: Annotated[
        bool, typer.Option("--differential-privacy", help="Uploads must be protected by differential privacy.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Write the config to start from to this new file.", show_default="print it")
    ] = None,
    leaderboard: Annotated[
        Path | None, typer.Option(help="Data file of `polyfed leaderboard`.", show_default="that of the package")
    ] = None,
    json: JSON = False,
) -> None:
    """Propose methods: which ones fit, what gain to expect, what they cost, and the config to start from.

    Proposals come from what methods declare and from what the leaderboard measured. `polyfed list uploads` lists the
    kinds of information.

    Example: polyfed advise --models different --never weights --care common
    """
    from polyfed import advice
    from polyfed.advice.start_config import write_config
    from polyfed.leaderboard.records import DATA_FILE

    if config is None and overrides:
        raise InputError(f"'{overrides[0]}' overrides a config, but no config is given")
    wishes: dict[str, Any] = {
        "models": models,
        "data": data,
        "care": care,
        "may_send": _kinds(may_send),
        "never": _kinds(never),
        "mib_per_round": mib_per_round,
        "compute": compute,
        "skew": skew,
        "clients": clients,
        "differential_privacy": differential_privacy or None,
    }
    proposed = advice.advise(config, overrides or [], leaderboard=leaderboard or DATA_FILE, **wishes)
    if write is not None:
        if proposed.config is None:
            raise InputError(f"{write} is not written: no method fits that the leaderboard has measured")
        write_config(write, proposed.config_text)
    if json:
        print_json(proposed.to_dict())
    else:
        _print(proposed, write)


def _kinds(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(kind.strip() for kind in text.split(",") if kind.strip())


def _print(advice: Advice, written: Path | None) -> None:
    wishes = advice.situation
    source = (
        "The leaderboard has no measurements yet, so the methods that fit are in alphabetical order."
        if advice.scenario is None
        else "Gains over local training, in points, and MiB per client and round are those of the scenario "
        f"'{advice.scenario}' of the leaderboard."
    )
    care = _CARE[wishes.care]
    print_text(f"Clients have {_MODELS[wishes.models]} and {wishes.data}; {care} counts.\n{source}")
    shown = len(advice.methods) if advice.scenario is None else SHOWN
    if advice.methods:
        print_table(
            ["method", "gain, common", "gain, personal", "MiB up", "MiB down", "clients upload"],
            [
                [
                    one.method,
                    _gain(one.common),
                    _gain(one.personal),
                    _mib(one.mib_up),
                    _mib(one.mib_down),
                    ", ".join(one.uploads) or "nothing",
                ]
                for one in advice.methods[:shown]
            ],
            right=range(1, 5),
        )
        best = advice.methods[0].score(wishes.care)
        if best is not None and best <= 0:
            print_text("No method that fits has a gain: local training (method local) is the better choice.")
        if len(advice.methods) > shown:
            print_text(f"Also possible: {', '.join(one.method for one in advice.methods[shown:])}.")
    else:
        print_text("No method fits. Train locally (method local), or relax a wish.")
    reasons: dict[str, list[str]] = {}
    for method, reason in advice.excluded.items():
        reasons.setdefault(reason, []).append(method)
    print_table(["left out", "reason"], [[", ".join(methods), reason] for reason, methods in reasons.items()])
    if written is not None:
        print_message(f"wrote {written}; next: polyfed check {written}")
    elif advice.config is not None:
        print_text(advice.config_text)


_MODELS = {"same": "one model", "sizes": "sizes of one model family", "different": "different models"}
_CARE = {
    "common": "accuracy on the common test set",
    "personal": "accuracy on the clients' own data",
    "both": "accuracy on the common test set and on the clients' own data",
}


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return "-"
    if gain.low is None or gain.high is None:
        return f"{gain.mean:+.1f}"
    return f"{gain.mean:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]"


def _mib(size: float | None) -> str:
    return "-" if size is None else f"{size:.3f}"


COMMANDS = {"advise": advise}

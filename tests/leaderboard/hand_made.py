"""A leaderboard with numbers made by hand, for tests of advice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polyfed.leaderboard.records import Gain, Leaderboard, Measured, Row, ScenarioRecord

MIB = 1 << 20


def row(
    method: str,
    common: float,
    personal: float,
    *,
    models: str = "",
    mib: float = 0.0,
    work: float = 1.0,
    overrides: tuple[str, ...] = (),
) -> Row:
    """Return a row with gains of one point to each side, and `mib` up and down per client and round."""
    sent = round(mib * MIB * 5 * 10)  # 5 clients, 10 rounds
    gains = {"global": Gain(common, common - 1, common + 1), "personal": Gain(personal, personal - 1, personal + 1)}
    runs = (Measured(0, "0" * 64, 50 + common, 90 + personal, sent, sent),)
    return Row(method, models, overrides or (f"method={method}",), 0.02, runs, gains, work)


ROWS = (
    Row("local", "", ("method=local",), 0.01, (Measured(0, "0" * 64, 50.0, 90.0, 0, 0),)),
    row("fedlatent", 30.0, -2.0, mib=0.1, work=3.0),
    row("fedproto", 1.0, 0.5, mib=0.001),
    row("fedgh", 4.0, 0.0, mib=0.001),
    row("fml", 2.0, 3.0, mib=0.05),
    row("dffke", 20.0, -1.0, mib=1.0),
    row("fedavg", 35.0, -6.0, mib=0.2, models="all tiny-cnn", overrides=("method=fedavg", "models.group=[tiny-cnn]")),
)
SIZES = (ROWS[0], row("heterofl", 9.0, 1.0), row("fedavg", 12.0, 0.0, overrides=("method=fedavg", "splitting=width")))
PERSONS = (ROWS[0], row("fedgh", -2.0, 1.0), row("fedproto", -1.0, -3.0))


def record(name: str, rows: tuple[Row, ...], excluded: Mapping[str, str] | None = None) -> ScenarioRecord:
    needs_generator = {"fedktl": "needs a pretrained image generator"}
    return ScenarioRecord(name, rows, needs_generator | dict(excluded or {}), {}, clients_per_round=5, rounds=10)


BOARD = Leaderboard(
    {
        "few-skewed": record("few-skewed", ROWS),
        "model-sizes": record("model-sizes", SIZES),
        "har-persons": record("har-persons", PERSONS),
    },
    "polyfed leaderboard --seeds 0",
    {"polyfed": "0.1.0"},
)


def write_board(folder: Path) -> Path:
    """Write the leaderboard to a file."""
    path = folder / "leaderboard.json"
    path.write_text(BOARD.to_json())
    return path

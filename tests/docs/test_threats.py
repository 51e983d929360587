"""The table of docs/threats.md follows the declared messages of the methods."""

from __future__ import annotations

from scripts import threats


def test_the_table_of_methods_is_current() -> None:
    assert threats.PAGE.read_text() == threats.page(), "run: python scripts/threats.py"
    rows = {line.split("]")[0].removeprefix("| ["): line for line in threats.table().splitlines()[2:]}
    assert rows["fedproto"].endswith("| `prototypes` | - | - | yes |")
    assert rows["dffke"].endswith("| `model`, `pixels`, `targets`, `memory` | `labels`, `epochs`, `accuracy` | no |")

"""What must hold of the default of every paper's method, read from the result pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "results"
NUMBER = r"[+-]?\d+\.\d+"


def section(page: str, title: str) -> str:
    """Return the text below the first heading that starts with a title."""
    parts = re.split(r"^## ", (PAGES / f"{page}.md").read_text(), flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(title))


def row(page: str, title: str, name: str, pattern: str) -> list[tuple[float, ...]]:
    """Return the numbers of a row in the first table whose cells have a pattern."""
    for line in section(page, title).splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        found = [re.match(pattern, cell) for cell in cells[1:]]
        if cells[0] == name and found and all(found):
            return [tuple(float(number) for number in match.groups()) for match in found if match]
    raise AssertionError(f"{page}: no row '{name}' in '{title}'")


def mean_and_deviation(page: str, title: str, name: str) -> list[tuple[float, ...]]:
    return row(page, title, name, rf"({NUMBER}) ± ({NUMBER})")


def differences(page: str, title: str, name: str) -> list[float]:
    return [values[0] for values in row(page, title, name, rf"({NUMBER}) \\\[({NUMBER}), ({NUMBER})\\\]")]


@pytest.mark.parametrize(
    ("page", "table", "default"),
    [
        ("fedfree", "Table 1", "FedFree"),
        ("fedl2g", "Table 1", "FedL2G-f (features)"),
        ("inco", "Table 2", "InCoAvg"),
        ("dffke", "Table 2", "DFFKE"),
        ("dffke", "Table 3", "DFFKE"),
        ("fedvtc", "Table 1", "FedVTC"),
    ],
)
def test_a_default_is_at_most_one_deviation_below_local_training(page: str, table: str, default: str) -> None:
    ((local, deviation),) = mean_and_deviation(page, table, "local training")
    ((accuracy, _),) = mean_and_deviation(page, table, default)
    assert accuracy >= local - deviation


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        ("dffke", "DFFKE is far ahead of all other methods"),
        ("fedvtc", "FedVTC is more accurate on the common"),
    ],
)
def test_the_main_claim_of_a_method_for_the_common_test_set_is_shown(page: str, claim: str) -> None:
    """A claim is shown if the intervals of all its comparisons exclude 0."""
    rows = [line.strip("|").split(" | ") for line in section(page, "Claims").splitlines() if line.startswith("| 1 |")]
    ((_, says, _, verdict, _),) = rows
    assert says.startswith(claim) and verdict == "shown"


def test_fedlatent_gains_forty_points_and_keeps_its_personal_accuracy() -> None:
    gains = differences("fedlatent", "Accuracy on the common test set", "FedLatent")
    losses = differences("fedlatent", "Accuracy on the clients' own data", "FedLatent")
    assert len(gains) == len(losses) == 2  # after 20 and after 60 rounds
    assert min(gains) >= 40 and min(losses) > -2.5


@pytest.mark.parametrize("page", ["dffke", "fedfree", "fedl2g", "fedlatent", "fedvtc", "inco"])
def test_every_run_of_a_page_has_its_state_hash(page: str) -> None:
    runs = [line for line in section(page, "Runs").splitlines() if line.startswith("| ")][2:]
    assert len(runs) >= 30
    assert all(re.search(r"\| \d+ \| [0-9a-f]{16} \|$", line) for line in runs)

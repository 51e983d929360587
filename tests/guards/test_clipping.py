"""Clipping and noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core.class_tables import Bound, ClassTable, class_means
from polyfed.core.payload import Value
from polyfed.guards.clipping import PrivacyError, as_rows, clip_rows, from_rows
from polyfed.guards.noise import digest, gaussian


@given(seed=st.integers(0, 10**6), rows=st.integers(0, 6), width=st.integers(1, 5), clip=st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_clipped_rows(seed: int, rows: int, width: int, clip: float) -> None:
    stream = torch.Generator().manual_seed(seed)
    values = 10 * torch.randn(rows, width, generator=stream, dtype=torch.float64)
    clipped = clip_rows(values, clip)
    before, after = values.norm(dim=1), clipped.norm(dim=1)
    assert bool((after <= clip * (1 + 1e-12)).all())
    short = before <= clip
    assert torch.equal(clipped[short], values[short])  # what is short enough stays to the bit
    assert torch.allclose(after[~short], torch.full_like(after[~short], clip))
    assert torch.allclose(clipped * before[:, None], values * after[:, None])  # and the direction stays


def test_a_row_of_zeros_does_not_change() -> None:
    assert torch.equal(clip_rows(torch.zeros(1, 3), 0.5), torch.zeros(1, 3))


def test_two_clipped_values_are_at_most_two_clips_apart() -> None:
    far = clip_rows(torch.tensor([[9.0, 0.0], [-9.0, 0.0]], dtype=torch.float64), 1.5)
    assert float((far[0] - far[1]).norm()) == pytest.approx(3.0)


def test_sensitivity_of_a_mean_of_clipped_samples() -> None:
    """The bound of min_count is reached if one of four samples is replaced by its opposite."""
    x = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 9.0], [0.0, 9.0]])
    y = torch.zeros(4, dtype=torch.int64)
    other = x.clone()
    other[0] *= -1
    tables = [class_means([(batch, y)], lambda rows: rows, 1, 2, bound=Bound(1.5, 2)) for batch in (x, other)]
    assert float((tables[0].values - tables[1].values).norm()) == pytest.approx(2 * 1.5 / 4)
    assert tables[0].bound == tables[0].without_counts().bound == Bound(1.5, 2)
    assert len(class_means([(x, y)], lambda rows: rows, 1, 2, bound=Bound(1.5, 5))) == 0  # too few
    assert class_means([(x, y)], lambda rows: rows, 1, 2).bound is None


def tree() -> Value:
    return {
        "b": {"running_var": torch.tensor([0.5]), "num_batches_tracked": torch.tensor(7)},
        "a": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16),
    }


def test_a_tree_is_one_row() -> None:
    rows = as_rows("model", tree(), "message")
    assert rows.tolist() == [[1.0, 2.0, 3.0, 4.0, 0.5]]
    back = from_rows("model", tree(), rows * 2 - 3)
    assert isinstance(back, dict)
    assert back["a"].dtype == torch.float16 and back["a"].tolist() == [[-1.0, 1.0], [3.0, 5.0]]
    assert back["b"]["running_var"].tolist() == [0.0]  # 2 * 0.5 - 3 is no variance
    assert int(back["b"]["num_batches_tracked"]) == 7


def test_rows_of_tensors_and_tables() -> None:
    pictures = torch.arange(12.0).reshape(3, 2, 2)
    assert as_rows("x", pictures, "row").shape == (3, 4)
    assert as_rows("x", pictures, "message").shape == (1, 12)
    assert torch.equal(from_rows("x", pictures, as_rows("x", pictures, "row")), pictures)  # type: ignore[arg-type]
    table = ClassTable(torch.tensor([1, 4]), torch.ones(2, 3), torch.tensor([5, 6]))
    assert as_rows("t", table, "row").shape == (2, 3) and as_rows("t", table, "message").shape == (1, 6)
    back = from_rows("t", table, as_rows("t", table, "message") * 2)
    assert isinstance(back, ClassTable) and back.values.tolist() == [[2.0] * 3] * 2
    assert back.classes.tolist() == [1, 4] and back.counted().tolist() == [5, 6]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"labels": torch.tensor([1, 2])}, "field 'x/labels' is of type torch.int64, which noise cannot protect"),
        ({"loss": 0.5}, "field 'x/loss' is of type float"),
        (torch.tensor([1.0, float("nan")]), "field 'x' holds values that are not finite"),
    ],
)
def test_unprotectable_values_are_refused(value: Value, said: str) -> None:
    with pytest.raises(PrivacyError, match=said):
        as_rows("x", value, "message")


@pytest.mark.parametrize("value", [torch.ones(4), torch.ones(2, 3, dtype=torch.int64)])
def test_values_without_rows_are_refused(value: Value) -> None:
    with pytest.raises(PrivacyError, match="which has no rows"):
        as_rows("x", value, "row")


def test_noise_is_standard_normal() -> None:
    from scipy.stats import kstest  # here: it takes a second to import

    drawn = gaussian(200_000, "a name", 3).numpy()
    assert kstest(drawn, "norm").pvalue > 0.01
    assert abs(drawn.std() - 1) < 0.005 and abs(drawn.mean()) < 0.008
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01


def test_noise_depends_on_its_name_only() -> None:
    drawn = gaussian(8, "secret", 1, "field")
    assert torch.equal(drawn, gaussian(8, "secret", 1, "field"))
    for name in (("other", 1, "field"), ("secret", 2, "field"), ("secret", "1", "field"), ("secret1", "field")):
        assert not bool((drawn == gaussian(8, *name)).any())
    assert digest(torch.tensor([1.0])) != digest(torch.tensor([1.0 + 1e-7]))

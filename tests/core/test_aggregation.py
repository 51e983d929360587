"""Aggregation rules: worked examples, breakdown points, order of clients, and agreement with the mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.core import rng
from polyfed.core.aggregation import Aggregation, combine_rows
from polyfed.core.averaging import WeightedMean
from polyfed.core.class_tables import ClassTable, mean_over_clients
from polyfed.core.robust_mean import RobustOwnerMean, RobustStatistics
from polyfed.errors import RunError
from polyfed.models.slicing import OwnerMean, PooledStatistics

ROBUST = ("median", "trimmed-mean", "norm-clipped", "krum", "geometric-median")


def combined(rule: str, rows: Any, weights: list[float] | None = None, **options: Any) -> Tensor:
    values = torch.as_tensor(rows, dtype=torch.float64)
    weight = torch.ones(len(values)) if weights is None else torch.tensor(weights)
    return combine_rows(Aggregation(rule, **options), values, weight.double(), bound=1.0)


def test_median_by_hand() -> None:
    assert combined("median", [[1, 9], [100, 2], [2, -500]]).tolist() == [2, 2]
    # of an even number the mean of the two middle values; sample counts do not matter
    assert combined("median", [[1], [2], [4], [100]], weights=[1, 1, 1, 1000]).tolist() == [3]


def test_trimmed_mean_by_hand() -> None:
    rows = [[-1e6], [1], [2], [6], [1e6]]  # a fifth of five values is removed at each end
    assert combined("trimmed-mean", rows).tolist() == [3]
    assert combined("trimmed-mean", rows, share=0.4).tolist() == [2]
    # at least the share is removed: one of three, which leaves the median
    assert combined("trimmed-mean", [[1], [2], [30]]).tolist() == [2]
    # 0.2 of 15 clients are 3, although 0.2 * 15 is above 3 in floating point
    assert combined("trimmed-mean", [[float(k)] for k in (*range(12), 99, 98, 97)]).tolist() == [
        sum(range(3, 12)) / 9
    ]


def test_norm_clipping_by_hand() -> None:
    # norms 5, 1 and 2: the median is 2, so (3, 4) becomes (1.2, 1.6)
    rows = [[3, 4], [0, 1], [0, 2]]
    assert combined("norm-clipped", rows).tolist() == pytest.approx([1.2 / 3, 4.6 / 3])
    assert combined("norm-clipped", rows, weights=[2, 1, 1]).tolist() == pytest.approx([2.4 / 4, 6.2 / 4])
    # a bound of 1: (0.6, 0.8), (0, 1) and (0, 1)
    assert combined("norm-clipped", rows, norm=1.0).tolist() == pytest.approx([0.2, 2.8 / 3])


def test_krum_by_hand() -> None:
    # five clients, one liar: squared distances to the two nearest neighbours are, for 1, 0.25 + 1 = 1.25; for 1.5,
    # 0.25 + 2.25 = 2.5; for 0, 1 + 2.25 = 3.25; for 3, 2.25 + 4 = 6.25; for 100, more than 9,000
    rows = [[100], [3], [0], [1], [1.5]]
    assert combined("krum", rows).tolist() == [1]
    assert combined("krum", rows, keep=2).tolist() == [1.25]
    assert combined("krum", rows, keep=9).tolist() == pytest.approx([5.5 / 4])  # all but the liar


def test_geometric_median_by_hand() -> None:
    assert combined("geometric-median", [[0.0], [1], [50]]).tolist() == pytest.approx([1], abs=1e-3)  # in 1-D: median
    square = [[0, 0], [2, 0], [0, 2], [2, 2]]
    assert combined("geometric-median", square).tolist() == pytest.approx([1, 1])
    # a point that more than half of the clients send is the geometric median
    assert combined("geometric-median", [[1, 2]] * 3 + [[1e6, -1e6]] * 2).tolist() == pytest.approx([1, 2], abs=1e-3)


@pytest.mark.parametrize("rule", ROBUST)
@given(clients=st.integers(3, 12), width=st.integers(1, 5), seed=st.integers(0, 999))
@settings(max_examples=15, deadline=None)
def test_equal_replies_are_returned_and_order_does_not_matter(rule: str, clients: int, width: int, seed: int) -> None:
    stream = rng.generator("aggregation", seed)
    row = torch.randn(width, generator=stream, dtype=torch.float64)
    assert torch.allclose(combined(rule, row.repeat(clients, 1)), row, rtol=1e-12)
    rows = torch.randn(clients, width, generator=stream, dtype=torch.float64)
    order = torch.randperm(clients, generator=stream)
    if rule != "krum" or clients > 4:  # with fewer, both clients of the closest pair have the best score
        assert torch.allclose(combined(rule, rows), combined(rule, rows[order]), atol=1e-9)


@pytest.mark.parametrize("rule", ROBUST)
@given(liars=st.integers(1, 4), seed=st.integers(0, 999), scale=st.sampled_from([-1e6, -10.0, 1e3, 1e6]))
@settings(max_examples=15, deadline=None)
def test_a_fifth_of_liars_cannot_move_the_result_far(rule: str, liars: int, seed: int, scale: float) -> None:
    stream = rng.generator("liars", seed)
    honest = torch.rand(4 * liars, 3, generator=stream, dtype=torch.float64) + 1  # each number is in [1, 2]
    lies = scale * (torch.rand(liars, 3, generator=stream, dtype=torch.float64) + 1)
    rows = torch.cat([lies, honest])
    result = combined(rule, rows)
    if rule in ("median", "trimmed-mean", "krum"):
        assert bool((result >= 1).all()) and bool((result <= 2).all())  # within the honest values
    elif rule == "norm-clipped":
        assert result.norm() <= honest.norm(dim=1).max()
    else:  # at most 2 (n - f) / (n - 2 f) = 8 / 3 times the honest diameter from honest values
        assert (result - honest.mean(0)).norm() <= 8 / 3 * 3**0.5
    assert rows.mean(0).norm() > 20 or abs(scale) == 10  # the plain mean is far away


def test_half_of_the_clients_break_the_median() -> None:
    assert combined("median", [[1], [1], [1], [1e6], [1e6]]).tolist() == [1]
    assert combined("median", [[1], [1], [1e6], [1e6], [1e6]]).tolist() == [1e6]


@pytest.mark.parametrize("rule", ROBUST)
def test_rows_of_few_holders_are_clipped(rule: str) -> None:
    def table(**rows: float) -> ClassTable:
        return ClassTable.of({int(c[1:]): torch.tensor([v, 0.0]) for c, v in rows.items()}, 2)

    honest = [table(c0=2.0), table(c0=2.0), table(c0=2.0), table(c0=2.0, c1=3.0)]
    liar = table(c0=-2e6, c1=-3e6, c2=5e6)
    means = mean_over_clients([*honest, liar], width=2, rule=Aggregation(rule))
    # norms of all rows: 2, 2, 2, 2, 3 and three huge ones. The median, the lower of two, is 2.
    assert means.classes.tolist() == [0, 1, 2]
    assert means.row(2).tolist() == [2.0, 0.0]  # type: ignore[union-attr]  # the liar alone: limited
    assert means.row(1).tolist() == [0.0, 0.0]  # type: ignore[union-attr]  # one against one: both limited
    expected = 2 * 3 / 5 if rule == "norm-clipped" else 2.0
    assert means.row(0).tolist() == pytest.approx([expected, 0.0], rel=1e-5)  # type: ignore[union-attr]
    assert means.values.dtype == torch.float32
    halved = mean_over_clients([*honest, liar], width=2, out_of=16, rule=Aggregation(rule))
    assert torch.allclose(halved.values, means.values * torch.tensor([[5 / 16], [2 / 16], [1 / 16]]))


def test_robust_means_of_variances_are_not_negative() -> None:
    """Clients can agree on a change that takes a variance below zero."""
    old = {"n.running_var": torch.tensor([0.5, 0.5]), "w": torch.tensor([0.5])}
    mean = WeightedMean(Aggregation("median"))
    for _ in range(3):
        mean.add({"n.running_var": torch.tensor([-2.0, 0.25]), "w": torch.tensor([-2.0])}, 1.0)
    assert {name: tensor.tolist() for name, tensor in mean.result(old).items()} == {
        "n.running_var": [0.0, 0.25],
        "w": [-2.0],
    }


@pytest.mark.parametrize("rule", ROBUST)
def test_weights_are_combined_around_the_old_ones(rule: str) -> None:
    old = {"w": torch.tensor([10.0, 10.0]), "steps": torch.tensor(3), "n.running_var": torch.tensor([1.0])}

    def client(*change: float, steps: int = 7, variance: float = 1.5) -> dict[str, Tensor]:
        weights = torch.tensor([10.0 + change[0], 10.0 + change[1]])
        return {"w": weights, "steps": torch.tensor(steps), "n.running_var": torch.tensor([variance])}

    mean = WeightedMean(Aggregation(rule))
    for _ in range(4):
        mean.add(client(0.5, -0.25), 1.0)
    mean.add(client(-5e6, 5e6, steps=1 << 40, variance=-9e6), 1.0)
    mean.add(client(1e9, 1e9), 0.0)  # a client without samples does not count
    result = mean.result(old)
    factor = 3 / 5 if rule == "norm-clipped" else 1.0
    if rule != "norm-clipped":
        assert result["w"].tolist() == pytest.approx([10.5, 9.75])
        assert result["n.running_var"].tolist() == pytest.approx([1.5])
    else:  # the lie is as long as the other changes: |(0.5, -0.25)| / sqrt(2) in each number
        length = (0.3125 / 2) ** 0.5
        assert result["w"].tolist() == pytest.approx([10 + (2 - length) / 5, 10 + (length - 1) / 5])
        assert result["n.running_var"].tolist() == pytest.approx([1 + 0.5 * factor])
    assert int(result["steps"]) == 7  # integers take the median
    assert {name: t.dtype for name, t in result.items()} == {name: t.dtype for name, t in old.items()}
    empty = WeightedMean(Aggregation(rule))
    empty.add(client(1, 1), 0.0)
    assert empty.result(old) is old


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "norm-clipped"])
def test_positions_are_combined_over_their_owners(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.core.robust_mean.NUMBERS", 8)  # two positions at a time
    like = {"w": torch.zeros(5)}
    mean = RobustOwnerMean(like, Aggregation(rule))
    for value in (1.0, 1.0, 1.0, -1e6):  # three honest clients and a liar hold the first three positions
        mean.add({"w": torch.full((3,), value)}, {"w": (torch.arange(3),)}, 2.0, minus=like)
    mean.add({"w": torch.full((4,), 1.0)}, {"w": (torch.arange(4),)}, 1.0, minus=like)
    change, weights = mean.mean_difference()["w"].tolist(), mean.weights()["w"].tolist()
    # clipping weights clients by samples: (3 * 2 + 1 - 2) / 9 = 5 / 9
    expected = 5 / 9 if rule == "norm-clipped" else 1.0
    assert change == pytest.approx([expected] * 3 + [1.0, 0.0])  # one owner: its clipped change; no owner: none
    assert weights == [9.0] * 3 + [1.0, 0.0]
    kept = mean.mean({"w": torch.full((5,), 7.0)})["w"]
    assert kept[4] == 7.0


def test_krum_compares_the_positions_that_two_clients_share() -> None:
    like = {"w": torch.zeros(5)}
    mean = RobustOwnerMean(like, Aggregation("krum", share=0.2, keep=8))
    for size, value in ((2, 1.0), (2, 1.2), (2, -10.0), (4, 1.1), (4, 1.3)):
        mean.add({"w": torch.full((size,), value)}, {"w": (torch.arange(size),)}, minus=like)
    # 1 of 5 may lie, so 2 neighbours count: the third client is 11 away from all, and the other four are averaged
    change = mean.mean_difference()["w"].tolist()
    assert change == pytest.approx([1.15, 1.15, 1.2, 1.2, 0.0])
    apart = RobustOwnerMean(like, Aggregation("krum"))
    for place, value in ((0, 1.0), (0, 1.2), (0, 1.3), (3, 9.0)):  # the last one shares nothing with the others
        apart.add({"w": torch.full((1,), value)}, {"w": (torch.tensor([place]),)}, minus=like)
    assert apart.mean_difference()["w"].tolist() == pytest.approx([1.2, 0.0, 0.0, 0.0, 0.0])


def test_geometric_medians_need_replies_of_the_same_positions() -> None:
    mean = RobustOwnerMean({"w": torch.zeros(3)}, Aggregation("geometric-median"))
    for size in (3, 3, 2):
        mean.add({"w": torch.ones(size)}, {"w": (torch.arange(size),)})
    with pytest.raises(RunError, match="compares whole replies, but tensor 'w' is not in all of them"):
        mean.mean_difference()


def test_equal_updates_give_the_bits_of_the_mean() -> None:
    stream = rng.generator("equal updates")
    model = {"w": torch.randn(4, 3, generator=stream)}
    trained = {"w": model["w"] + torch.randn(4, 3, generator=stream)}
    cut = {"w": (None, None)}
    for rule in ROBUST:
        plain, robust = OwnerMean(model), RobustOwnerMean(model, Aggregation(rule))
        for mean in (plain, robust):
            for _ in range(5):
                mean.add(trained, cut, minus=model)
        assert torch.allclose(robust.mean_difference()["w"], plain.mean_difference()["w"], rtol=1e-14)
        assert torch.equal(robust.weights()["w"], plain.weights()["w"])


def test_statistics_have_no_negative_variance() -> None:
    before = {"n.running_mean": torch.zeros(1), "n.running_var": torch.ones(1)}
    cut = dict.fromkeys(before, (None,))
    robust, plain = RobustStatistics(before, Aggregation("median")), PooledStatistics(before)
    for mean, variance in ((-4.0, 1.0), (0.0, 1.0), (4.0, 1.0)):
        for statistics in (robust, plain):
            statistics.add(
                {"n.running_mean": torch.tensor([mean]), "n.running_var": torch.tensor([variance])}, cut, 5
            )
    # squared distances to the median 0, plus the variances: 17, 1 and 17
    assert robust.result()["n.running_mean"].tolist() == [0.0] and robust.result()["n.running_var"].tolist() == [17.0]
    assert plain.result()["n.running_var"].tolist() == pytest.approx([(17 + 1 + 17) / 3])

"""Partition schemes: sizes, label distributions, reproducibility and error messages."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.data.arrays import Ints
from polyfed.data.partition import SCHEMES, Partition, make
from polyfed.errors import InputError

TEN = np.repeat(np.arange(10), 60)


def shared(
    options: dict[str, object],
    labels: Ints = TEN,
    classes: int = 10,
    clients: int = 5,
    test_fraction: float = 0.0,
    seed: int = 0,
) -> Partition:
    rng = np.random.default_rng(seed)
    return make(labels, classes, clients, options, test_fraction=test_fraction, rng=rng)


def class_table(partition: Partition, labels: Ints, classes: int) -> Ints:
    """Samples of each class at each client, (clients, classes)."""
    both = [np.concatenate(pair) for pair in zip(partition.train, partition.test, strict=True)]
    return np.stack([np.bincount(labels[mine], minlength=classes) for mine in both])


def everything(partition: Partition) -> Ints:
    return np.concatenate([*partition.train, *partition.test, *partition.validation])


COMPLETE: list[dict[str, object]] = [
    {"scheme": "iid"},
    {"scheme": "iid", "stratified": True},
    {"scheme": "dirichlet", "alpha": 1.0, "min_size": 1},
    {"scheme": "dirichlet", "alpha": 0.5, "min_size": 1, "balance": False},
    {"scheme": "pathological", "classes_per_client": 2, "variant": "shards"},
    {"scheme": "pathological", "classes_per_client": 3, "cover_all": True},
    {"scheme": "pathological", "classes_per_client": 3, "cover_all": True, "balance": False},
    {"scheme": "pathological", "classes_per_client": 2, "variant": "first-deterministic", "cover_all": True},
]


@pytest.mark.parametrize("options", COMPLETE, ids=str)
@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 12), seed=st.integers(0, 1000), test_fraction=st.sampled_from([0.0, 0.25, 0.5]))
def test_every_sample_goes_to_exactly_one_client(
    options: dict[str, object], clients: int, seed: int, test_fraction: float
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(10), np.arange(20, 30)))
    partition = shared(options, labels, clients=clients, test_fraction=test_fraction, seed=seed)
    assert np.array_equal(np.sort(everything(partition)), np.arange(len(labels)))
    assert all(len(mine) > 0 for mine in partition.train)


@pytest.mark.parametrize("options", [{"scheme": "pfedhn"}, {"scheme": "ratio"}, {"scheme": "pathological"}], ids=str)
@settings(max_examples=25, deadline=None)
@given(clients=st.integers(2, 12), seed=st.integers(0, 1000))
def test_no_sample_is_given_twice_and_unused_ones_are_reported(
    options: dict[str, object], clients: int, seed: int
) -> None:
    partition = shared(options, clients=clients, test_fraction=0.25, seed=seed)
    used = everything(partition)
    assert len(np.unique(used)) == len(used)
    assert (len(used) == len(TEN)) == (not any("unused" in note for note in partition.notes))


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in ("file", "flower", "column", "given")])
def test_the_seed_decides_everything(scheme: str) -> None:
    first, again, other = (shared({"scheme": scheme}, test_fraction=0.25, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first.train + first.test, again.train + again.test, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.train, other.train, strict=True))


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 40), stratified=st.booleans(), seed=st.integers(0, 1000))
def test_iid_sizes_differ_by_at_most_one(clients: int, stratified: bool, seed: int) -> None:
    labels = np.repeat(np.arange(4), (7, 31, 12, 23))
    table = class_table(shared({"scheme": "iid", "stratified": stratified}, labels, 4, clients, seed=seed), labels, 4)
    assert np.ptp(table.sum(axis=1)) <= 1
    if stratified:
        assert np.ptp(table, axis=0).max() <= 1


def test_dirichlet_with_huge_alpha_shares_every_class_evenly() -> None:
    labels = np.repeat(np.arange(10), 1000)
    table = class_table(shared({"scheme": "dirichlet", "alpha": 1e6, "balance": False}, labels), labels, 10)
    # Chi-square against 200 samples per cell: with 40 degrees of freedom 73 is passed once in a thousand cases.
    assert float(((table - 200.0) ** 2 / 200.0).sum()) < 73


def test_dirichlet_with_small_alpha_gives_few_classes_per_client() -> None:
    labels = np.repeat(np.arange(100), 100)
    options: dict[str, object] = {"scheme": "dirichlet", "alpha": 0.01, "min_size": 1}
    table = class_table(shared(options, labels, 100, 20), labels, 100)
    assert (table > 0).sum(axis=1).mean() < 15


def test_dirichlet_balance_stops_clients_at_their_fair_number() -> None:
    labels = np.repeat(np.arange(50), 40)
    spread = {}
    for balance in (True, False):
        options: dict[str, object] = {"scheme": "dirichlet", "alpha": 0.1, "min_size": 1, "balance": balance}
        spread[balance] = [
            np.std(class_table(shared(options, labels, 50, 10, seed=seed), labels, 50).sum(axis=1))
            for seed in range(5)
        ]
    assert np.mean(spread[True]) < np.mean(spread[False])
    # Capped clients pass 200 by less than the one class (40 samples) that took them there.
    capped = class_table(shared({"scheme": "dirichlet", "alpha": 0.1}, labels, 50, 10), labels, 50)
    assert capped.sum(axis=1).max() < 200 + 40


@pytest.mark.parametrize("seed", range(10))
def test_dirichlet_default_works_for_the_quick_start(seed: int) -> None:
    labels = np.repeat(np.arange(10), 144)
    table = class_table(shared({"scheme": "dirichlet", "alpha": 0.1}, labels, 10, 20, seed=seed), labels, 10)
    assert table.sum(axis=1).min() >= 10


def test_pathological_balanced_by_hand() -> None:
    """Four clients, four classes of 7, two each: blocks of ceil(4/4*2) = 2 clients take two classes together."""
    labels = np.repeat(np.arange(4), 7)
    table = class_table(shared({"scheme": "pathological", "classes_per_client": 2}, labels, 4, 4), labels, 4)
    assert table.tolist() == [[3, 3, 0, 0], [4, 4, 0, 0], [0, 0, 3, 3], [0, 0, 4, 4]]


def literal_holders(classes: int, clients: int, per_client: int) -> list[list[int]]:
    """Assign classes to clients with PFLlib's loop, step by step."""
    quota = [per_client] * clients
    holders = []
    for _ in range(classes):
        taken = [client for client in range(clients) if quota[client] > 0]
        taken = taken[: math.ceil(clients * per_client / classes)]
        for client in taken:
            quota[client] -= 1
        holders.append(taken)
    return holders


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_pathological_gives_classes_as_the_algorithm_says(data: st.DataObject) -> None:
    classes = data.draw(st.integers(1, 12))
    clients = data.draw(st.integers(1, 30))
    per_client = data.draw(st.integers(1, classes))
    labels = np.repeat(np.arange(classes), 40)
    balance = data.draw(st.booleans())
    options: dict[str, object] = {"scheme": "pathological", "classes_per_client": per_client, "balance": balance}
    table = class_table(shared(options, labels, classes, clients), labels, classes)
    expected = literal_holders(classes, clients, per_client)
    assert [np.flatnonzero(table[:, label]).tolist() for label in range(classes)] == expected


@pytest.mark.parametrize(("clients", "per_client"), [(20, 2), (10, 1), (5, 5), (50, 2)])
def test_pathological_gives_exactly_m_classes_when_feasible(clients: int, per_client: int) -> None:
    options: dict[str, object] = {"scheme": "pathological", "classes_per_client": per_client}
    partition = shared(options, clients=clients)
    assert set((class_table(partition, TEN, 10) > 0).sum(axis=1)) == {per_client}


def test_pathological_says_who_got_fewer_classes() -> None:
    """Blocks of two take four classes together, so two are left for the fifth client."""
    partition = shared({"scheme": "pathological", "classes_per_client": 4}, clients=5)
    assert (class_table(partition, TEN, 10) > 0).sum(axis=1).tolist() == [4, 4, 4, 4, 2]
    assert partition.notes == ("client 4 holds fewer than 4 classes: none were left",)


def test_pathological_unbalanced_stays_in_its_interval() -> None:
    labels = np.repeat(np.arange(10), 1000)
    table = class_table(shared({"scheme": "pathological", "balance": False}, labels, 10, 20), labels, 10)
    for label in range(10):
        amounts = table[table[:, label] > 0, label]
        # per = 1000/4; least/C = min(10/1, 10000/40)/10 = 1, so per/10 = 25 is the lower end.
        assert all(25 <= amount < 250 for amount in amounts[:-1])
        assert len(set(amounts)) > 1
    assert table.sum() == len(labels)


def test_pathological_loses_the_classes_it_is_known_to_lose() -> None:
    flowers = np.repeat(np.arange(102), 20)
    lost = shared({"scheme": "pathological", "classes_per_client": 10}, flowers, 102, 20)
    assert "classes 100, 101" in lost.notes[0]
    seven = shared({"scheme": "pathological", "classes_per_client": 2}, clients=7)
    assert "classes 8, 9" in seven.notes[0]
    assert np.flatnonzero(class_table(seven, TEN, 10).sum(axis=0) == 0).tolist() == [8, 9]


def test_pathological_cover_all_gives_unused_classes_to_the_smallest_clients() -> None:
    labels = np.repeat(np.arange(10), 60)
    poor = shared({"scheme": "pathological", "classes_per_client": 2}, labels, clients=7)
    rich = shared({"scheme": "pathological", "classes_per_client": 2, "cover_all": True}, labels, clients=7)
    gained = class_table(rich, labels, 10).sum(axis=1) - class_table(poor, labels, 10).sum(axis=1)
    # Clients 0..5 have 60 each, client 6 has 120: two classes of 60 go to the two smallest clients each.
    assert gained.sum() == 120 and gained[6] == 0
    assert class_table(rich, labels, 10).sum(axis=0).tolist() == [60] * 10


def test_first_deterministic_surely_gives_class_i_to_client_i() -> None:
    options: dict[str, object] = {"scheme": "pathological", "classes_per_client": 3, "variant": "first-deterministic"}
    table = class_table(shared(options, clients=13), TEN, 10)
    assert all(table[client, client % 10] > 0 for client in range(13))
    assert set((table > 0).sum(axis=1)) == {3}
    for label in range(10):
        held = table[table[:, label] > 0, label]
        assert np.ptp(held[:-1]) == 0 if len(held) > 1 else held[0] == 60


def test_shards_hold_at_most_two_classes_each() -> None:
    options: dict[str, object] = {"scheme": "pathological", "classes_per_client": 2, "variant": "shards"}
    table = class_table(shared(options, clients=15), TEN, 10)
    assert table.sum(axis=1).tolist() == [40] * 15  # two shards of 20 out of classes of 60
    assert (table > 0).sum(axis=1).max() <= 2


def test_pfedhn_offers_are_uneven_but_near_each_other() -> None:
    labels = np.repeat(np.arange(10), 1000)
    partition = shared({"scheme": "pfedhn", "classes_per_client": 2, "extra_offer": False}, labels, 10, 20)
    table = class_table(partition, labels, 10)
    assert set((table > 0).sum(axis=1)) == {2}
    assert (table > 0).sum(axis=0).tolist() == [4] * 10 and table.sum() == 10_000
    amounts = table[table > 0]
    # Four weights of U(0.4, 0.6), normalised: between 0.4/(0.4+3*0.6) and 0.6/(0.6+3*0.4).
    assert amounts.min() >= math.floor(1000 * 0.4 / 2.2) and amounts.max() <= math.ceil(1000 * 0.6 / 1.8)
    assert np.ptp(amounts) > 0


@pytest.mark.parametrize(("ratio", "parts"), [("8:1:1", [0.8, 0.1, 0.1]), ([6, 2, 2], [0.6, 0.2, 0.2])])
def test_ratio_is_met_before_a_group_runs_out(ratio: object, parts: list[float]) -> None:
    labels = np.repeat(np.arange(100), 200)
    table = class_table(shared({"scheme": "ratio", "ratio": ratio}, labels, 100, 20), labels, 100)
    # Five clients of 1000 samples take at most 800 + 4 * 100 or 600 + 4 * 200 of the 2000 samples of a group.
    groups = table[:5].reshape(5, 10, 10).sum(axis=2) / 1000
    for client, row in enumerate(groups):
        assert row[client % 10] == pytest.approx(parts[0], abs=0.01)
        assert sorted(row)[-3:] == pytest.approx(sorted(parts), abs=0.01)
    within = table.reshape(20, 10, 10)[0, 0]
    assert np.ptp(within) <= 1  # uniformly over the classes of the main group


def test_ratio_moves_demand_to_the_fullest_group_and_says_so() -> None:
    labels = np.repeat(np.arange(3), (4, 10, 4))
    partition = shared({"scheme": "ratio", "groups": 3}, labels, 3, 1)
    assert partition.notes == ("10 of 18 samples, at 1 of 1 clients, came from other groups because the groups of "
                               "the ratio had no samples left",)  # fmt: skip
    assert len(partition.train[0]) == 18


def test_ratio_read_as_a_split_sets_train_validation_and_test() -> None:
    labels = np.repeat(np.arange(10), 100)
    partition = shared({"scheme": "ratio", "reading": "split"}, labels, 10, 10, test_fraction=0.5)
    sizes = {
        (len(a), len(b), len(c))
        for a, b, c in zip(partition.train, partition.validation, partition.test, strict=True)
    }
    assert sizes == {(80, 10, 10)}
    assert (class_table(partition, labels, 10) > 0).sum(axis=1).tolist() == [1] * 10
    assert "data.test_fraction" in partition.notes[0]


WRONG: list[tuple[dict[str, object], int, str]] = [
    ({"scheme": "diriclet"}, 5, r"did you mean 'dirichlet'"),
    ({}, 5, r"scheme is None"),
    ({"scheme": "dirichlet", "alhpa": 1.0}, 5, r"data\.partition\.alhpa .* did you mean 'alpha'"),
    ({"scheme": "dirichlet", "alpha": "much"}, 5, r"'much', but scheme 'dirichlet' needs a number"),
    ({"scheme": "dirichlet", "alpha": 0}, 5, r"alpha is 0, but it must be a finite number above 0"),
    ({"scheme": "dirichlet", "alpha": float("nan")}, 5, r"alpha is nan"),
    ({"scheme": "dirichlet", "alpha": 1e-3, "min_size": 100}, 6, r"client \d .* min_size"),
    ({"scheme": "dirichlet", "alpha": 1e-3, "min_size": 0}, 100, r"client \d+ empty .* larger alpha, fewer clients"),
    ({"scheme": "dirichlet", "min_size": 200}, 5, r"need 1000 samples, but there are 600"),
    ({"scheme": "iid"}, 601, r"client 600 would be empty"),
    ({"scheme": "iid"}, 0, r"clients is 0"),
    ({"scheme": "pathological", "classes_per_client": 11}, 5, r"classes_per_client is 11, but the dataset has 10"),
    ({"scheme": "pathological", "classes_per_client": True}, 5, r"whole number"),
    (
        {"scheme": "pathological", "classes_per_client": 10},
        61,
        r"class 0 has 60 samples for 61 clients, so client 60",
    ),
    ({"scheme": "pathological", "variant": "shard"}, 5, r"did you mean 'shards'"),
    ({"scheme": "pathological", "variant": "shards", "balance": False}, 5, r"equal shards"),
    ({"scheme": "pathological", "variant": "shards"}, 400, r"need 800 samples, but there are 600"),
    ({"scheme": "pfedhn", "classes_per_client": 11}, 5, r"classes_per_client is 11"),
    ({"scheme": "pfedhn", "extra_offer": False, "classes_per_client": 3}, 5, r"set extra_offer to true"),
    ({"scheme": "pfedhn"}, 500, r"class \d has 60 samples for 101 offers, so client \d+"),
    ({"scheme": "ratio", "ratio": "8:x"}, 5, r"ratio is '8:x'"),
    ({"scheme": "ratio", "ratio": "8:1:1", "groups": 11}, 5, r"groups is 11"),
    ({"scheme": "ratio", "ratio": "8:2", "reading": "split"}, 5, r"needs three"),
    ({"scheme": "file"}, 5, r"data\.partition\.path is missing"),
]


@pytest.mark.parametrize(("options", "clients", "sentence"), WRONG, ids=lambda value: str(value)[:60])
def test_wrong_or_infeasible_settings_are_refused_in_one_sentence(
    options: dict[str, object], clients: int, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        shared(options, clients=clients, test_fraction=0.25)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_impossible_test_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(InputError, match=r"data\.test_fraction is"):
        shared({"scheme": "iid"}, test_fraction=fraction)


def test_labels_must_fit_the_classes() -> None:
    with pytest.raises(InputError, match="labels go from 0 to 9, but with 9 classes"):
        shared({"scheme": "iid"}, classes=9)


def test_a_hopeless_large_draw_still_ends() -> None:
    """The work is bounded because the number of attempts is: this test checks the number of attempts."""
    labels = np.repeat(np.arange(200), 500)
    with pytest.raises(InputError, match="in the best of 50 attempts"):
        shared({"scheme": "dirichlet", "alpha": 0.01, "min_size": 99}, labels, 200, 1000)


class TestFlower:
    """Partitioners of flwr-datasets."""

    def test_a_partitioner_gives_every_row_to_one_client(self) -> None:
        options: dict[str, object] = {
            "scheme": "flower",
            "partitioner": "DirichletPartitioner",
            "arguments": {"alpha": 1.0, "min_partition_size": 1},
        }
        partition, again = (shared(options, test_fraction=0.25, seed=5) for _ in range(2))
        assert np.array_equal(np.sort(everything(partition)), np.arange(len(TEN)))
        assert all(np.array_equal(a, b) for a, b in zip(partition.train, again.train, strict=True))

    def test_its_rules_are_followed(self) -> None:
        options: dict[str, object] = {
            "scheme": "flower",
            "partitioner": "PathologicalPartitioner",
            "arguments": {"num_classes_per_partition": 2, "class_assignment_mode": "first-deterministic"},
        }
        assert set((class_table(shared(options, clients=10), TEN, 10) > 0).sum(axis=1)) == {2}

    @pytest.mark.parametrize(
        ("partitioner", "arguments", "sentence"),
        [
            ("Dirichlet", {}, "did you mean 'DirichletPartitioner'"),
            ("DirichletPartitioner", {}, "failed: .*alpha"),
            ("DirichletPartitioner", {"alpha": 0.001, "min_partition_size": 100}, "failed: .*attempts"),
            ("NaturalIdPartitioner", {}, "creates 10 partitions, but there are 5 clients"),
            ("IidPartitioner", {"partitions": 5}, "failed: .*partitions"),
        ],
    )
    def test_what_it_refuses_is_our_error(
        self, partitioner: str, arguments: dict[str, object], sentence: str
    ) -> None:
        with pytest.raises(InputError, match=sentence):
            shared({"scheme": "flower", "partitioner": partitioner, "arguments": arguments})

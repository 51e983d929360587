"""Data files of papers: wrong entries are reported in one sentence, and overrides are applied in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.papers.toy_paper import SMALL, with_entry

from polyfed.config.loading import apply_overrides, read_source, unshared_copy
from polyfed.config.loading import changed_settings as changed
from polyfed.errors import InputError
from polyfed.papers import SCALES, cell_config, evaluate_claim, load_paper, paper_names, plan_grid, write_tuned
from polyfed.papers.grid import command_overrides
from polyfed.papers.loading import parse_paper


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ("colour", 1, "unknown key 'colour'; known: claims, measured_by, method"),
        ("tables/table1/colums", [], "unknown key 'colums' in 'tables.table1'; known: "),
        ("claims/0/margin", 2.0, "unknown key 'margin' in 'claims.0'; known: better, by"),
        ("claims/0/by", "much", "claims.0.by is 'much': expected a valid number"),
        ("tables/table1/measure", {"of": "speed"}, "tables.table1.measure.of is 'speed': expected 'personal'"),
        ("settings/digits/cpu/preset", "fedvtc-digit", "cpu.preset is 'fedvtc-digit'; did you mean 'fedvtc-digits'?"),
        ("tables/table1/rows", ["fedvtcs"], "tables.table1.rows names 'fedvtcs', but there is no such row; did you"),
        ("tables/table1/settings", ["mnist"], "tables.table1.settings names 'mnist', but there is no such setting"),
        ("tables/table1/baseline", "fedavg", "baseline names 'fedavg', but there is no such row of the table"),
        ("tables/table1/published", {"digits": {"x": 1.0}}, "published.digits names 'x', but there is no such row"),
        ("claims/0/than", ["fedavg"], "claims.0.than names 'fedavg', but there is no such row of the table"),
        ("rows/fedvtc/variant_of", "before", "variant_of leads back to the row"),
        ("settings/digits/tuned_as", "mnist", "settings.digits.tuned_as names 'mnist', but there is no such setting"),
        ("tuned", {"mnist": {}}, "tuned names 'mnist', but there is no such setting; known: digits"),
    ],
)
def test_wrong_entries_are_reported_in_one_sentence(keys: str, value: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_paper(with_entry(keys, value), "toy.yaml")
    assert str(caught.value).startswith("toy.yaml: ")
    assert message in str(caught.value)


def test_an_unknown_paper_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="there is no paper 'fedvct'; did you mean 'fedvtc'"):
        load_paper("fedvct")


def test_overrides_are_applied_in_order_and_variants_have_the_tuned_values() -> None:
    paper = parse_paper(SMALL, "toy")
    config = cell_config(paper, "cpu", ("digits", "few"))
    assert config.method["finetune_lr"] == 0.02  # the preset has 0.001, the setting 0.01, the tuned row 0.02
    assert config.method["samples_per_class"] == 3
    assert (config.train.lr, config.data.partition["alpha"], config.rounds) == (0.5, 1.0, 20)
    local = cell_config(paper, "cpu", ("digits", "local"))  # another method drops the options of FedVTC
    assert (local.method, local.rounds) == ({"name": "local"}, 25)
    assert local.train.lr == read_source("fedvtc-digits")["train"]["lr"]  # tuned values belong to one row


def test_a_setting_may_have_the_tuned_values_of_another() -> None:
    raw = with_entry("settings/same", {**SMALL["settings"]["digits"], "tuned_as": "digits"})
    assert cell_config(parse_paper(raw, "toy"), "cpu", ("same", "fedvtc")).train.lr == 0.5


def test_another_method_class_keeps_the_options() -> None:
    raw = with_entry("rows/few", {"title": "x", "variant_of": "fedvtc", "with_method": "my-fedvtc"})
    config = cell_config(parse_paper(raw, "toy"), "cpu", ("digits", "few"))
    assert config.method["name"] == "my-fedvtc"
    assert config.method["finetune_lr"] == 0.02


def test_cells_with_equal_configs_share_a_run(tmp_path: Path) -> None:
    paper = parse_paper(SMALL, "toy")
    grid = plan_grid(paper, "cpu", ["table1"], [0, 1], tmp_path)
    assert [(one.run.name, one.cells) for one in grid[:2]] == [
        ("digits-local-s0", (("digits", "local"),)),
        ("digits-fedvtc-s0", (("digits", "before"), ("digits", "fedvtc"))),
    ]
    assert [one.seed for one in grid] == [0, 0, 0, 1, 1, 1]


def test_the_printed_command_gives_the_config_of_the_cell() -> None:
    paper = parse_paper(SMALL, "toy")
    preset, overrides = command_overrides(paper, "cpu", ("digits", "few"))
    raw = apply_overrides(read_source(preset), overrides)
    wanted = cell_config(paper, "cpu", ("digits", "few"))
    assert raw["method"]["samples_per_class"] == wanted.method["samples_per_class"] == 3
    _, local = command_overrides(paper, "cpu", ("digits", "local"))
    assert sorted(local) == ["data.partition.alpha=1.0", "method={name: local}", "rounds=25"]


def test_changed_settings_lead_from_one_config_to_the_other() -> None:
    old = {"method": {"name": "a", "x": 1}, "train": {"lr": 1, "steps": 2}, "rounds": 3}
    same_method = {"method": {"name": "a", "x": 2}, "train": {"lr": 1, "steps": 2}, "rounds": 3}
    assert changed(old, same_method) == {"method.x": 2}
    other_method = {**unshared_copy(old), "method": {"name": "b", "x": 1}}
    assert changed(old, other_method) == {"method": {"name": "b", "x": 1}}
    assert changed(old, {**unshared_copy(old), "names": None}) == {"names": None}


def test_tuned_values_are_written_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    text = yaml.safe_dump({key: value for key, value in SMALL.items() if key != "tuned"}, sort_keys=False)
    path.write_text(f"# a comment\n{text}\ntuned: {{}}\n")
    for rate in (0.1, 0.2):
        write_tuned(path, {"digits": {"local": {"train.lr": rate}}})
    assert path.read_text().startswith("# a comment\n")
    assert parse_paper(yaml.safe_load(path.read_text()), "toy").tuned == {"digits": {"local": {"train.lr": 0.2}}}
    before = path.read_text()
    with pytest.raises(InputError, match="tuned names 'mnist'"):
        write_tuned(path, {"mnist": {}})
    assert path.read_text() == before


@pytest.mark.parametrize("name", paper_names())
def test_every_claim_of_a_paper_has_comparisons(name: str) -> None:
    paper = load_paper(name)
    assert any(claim.better == paper.method for claim in paper.claims)
    for claim in paper.claims:
        assert any(evaluate_claim(paper, scale, claim, {}).comparisons for scale in SCALES), claim.says

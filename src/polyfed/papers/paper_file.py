"""The data file of a paper, `src/polyfed/papers/NAME.yaml`.

A file has these keys. Unknown keys are errors.

```yaml
title: FedVTC                     # name of the paper's method, for headings
reference: Authors, title, venue
method: fedvtc                    # row of the paper's own method
measured_by: ...                  # one sentence on what the paper measures
settings:                         # the columns of tables: data, partition, clients, models
  mnist-0.1:
    title: MNIST, Dirichlet 0.1   # as in the paper
    cpu:                          # the setting at CPU size; leave it out if there is none
      title: digits, Dirichlet 0.1
      preset: fedvtc-digits
      set: {data.partition.alpha: 0.1}    # overrides of the preset, as dotted config keys
    paper: {preset: fedvtc/table1-mnist}  # the setting at published size
rows:                             # methods, variants and controls, as overrides of a setting
  local: {title: local training, set: {method: local}, cpu: {rounds: 25}, paper: {rounds: 105}}
  fedvtc: {title: FedVTC}
  untuned: {title: before fine-tuning, variant_of: fedvtc, moment: untuned}
tables:
  table1:
    title: "Table 1: accuracy on the common test set"
    measure: {of: global}
    settings: [mnist-0.1]
    rows: [local, fedvtc, untuned]
    published: {mnist-0.1: {fedvtc: 88.7, untuned: 84.9}}
claims:
  - says: Fine-tuning on synthetic samples raises the accuracy.   # the paper's statement in our words
    where: Table 7
    table: table1
    better: fedvtc
    than: [untuned]
tuned:                            # written by a tuning script; CPU scale only; the last key of the file
  mnist-0.1:
    fedvtc: {train.lr: 0.003}
```

The config of a cell is the preset of its setting with overrides applied in this order: the setting's `set`, the row's
`set`, the row's overrides for the scale (`cpu` or `paper`), and those for a single setting: at CPU scale `tuned`, at
published scale the row's `paper_in`. A setting with `tuned_as` has the tuned values of another one. A row with
`variant_of` first gets everything that the other row gets, so an ablation uses the tuned values of the method;
`with_method` replaces the method by another class and keeps its options, which `set: {method: NAME}` drops. Rows
whose configs are equal share their runs: a row with another `moment` only reads another accuracy of the same run.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from polyfed.config.sections import Section

Scale = Literal["cpu", "paper"]
SCALES: tuple[Scale, ...] = ("cpu", "paper")
Overrides = dict[str, Any]  # dotted config keys with their values


def _all_scales() -> list[Scale]:
    return list(SCALES)


class ScaledSetting(Section):
    """A setting at one scale: a preset with overrides."""

    preset: str
    set: Overrides = Field(default_factory=dict)
    title: str | None = None  # None: the title of the setting


class Setting(Section):
    """A column of a table."""

    title: str
    cpu: ScaledSetting | None = None
    paper: ScaledSetting | None = None
    tuned_as: str | None = None  # another setting, whose tuned values are used

    def at(self, scale: Scale) -> ScaledSetting | None:
        return self.cpu if scale == "cpu" else self.paper


class Row(Section):
    """A row of a table: a method, a variant or a control."""

    title: str
    set: Overrides = Field(default_factory=dict)
    cpu: Overrides = Field(default_factory=dict)
    paper: Overrides = Field(default_factory=dict)
    paper_in: dict[str, Overrides] = Field(default_factory=dict)  # at published scale, in single settings
    variant_of: str | None = None
    with_method: str | None = None  # another method class that has the options of the row it is a variant of
    moment: str | None = None  # another prediction of the same models, such as `untuned`; see the method's page
    not_in: list[str] = Field(default_factory=list)  # settings in which the method cannot run
    scales: list[Scale] = Field(default_factory=_all_scales)


class PaperMeasure(Section):
    """What a table shows.

    `personal` is the accuracy of clients on their own test data, weighted by samples or as the plain mean over
    clients, `global` the mean accuracy of clients on the common test set, both in per cent. `traffic` is the sum of
    all uploads and downloads in MiB, where less is better.
    """

    of: Literal["personal", "global", "traffic"]
    over: Literal["samples", "clients"] = "samples"  # of personal accuracy
    moment: str | None = None
    round: Literal["last", "best"] = "last"  # best: chosen on test data, as some papers do


class PaperTable(Section):
    """A table of a paper."""

    title: str
    measure: PaperMeasure
    settings: list[str] = Field(min_length=1)
    rows: list[str] = Field(min_length=1)
    baseline: str | None = "local"  # the row that gains refer to
    published: dict[str, dict[str, float]] = Field(default_factory=dict)  # by setting and row
    unit: str = "%"  # of the published numbers
    note: str = ""  # what differs from the paper


class Claim(Section):
    """A statement of a paper: one row is better than others, by at least `by`.

    `by` is in the unit of the table; a negative value claims that the row is worse by at most so much.
    """

    says: str
    where: str
    table: str
    better: str
    than: list[str] = Field(min_length=1)
    settings: list[str] | None = None  # None: all settings of the table
    by: float = 0.0
    measure: PaperMeasure | None = None  # None: that of the table


class Paper(Section):
    """The content of a paper's data file."""

    title: str
    reference: str
    method: str
    measured_by: str
    settings: dict[str, Setting]
    rows: dict[str, Row]
    tables: dict[str, PaperTable]
    claims: list[Claim]
    tuned: dict[str, dict[str, Overrides]] = Field(default_factory=dict)

    def rows_of(self, table: str, setting: str, scale: Scale) -> list[str]:
        """Return the rows of a table that exist in a setting at a scale."""
        return [
            name
            for name in self.tables[table].rows
            if scale in (row := self.rows[name]).scales and setting not in row.not_in
        ]

    def settings_of(self, table: str, scale: Scale) -> list[str]:
        """Return the settings of a table that exist at a scale."""
        return [name for name in self.tables[table].settings if self.settings[name].at(scale) is not None]

    def setting_title(self, setting: str, scale: Scale) -> str:
        """Return the title of a setting at a scale."""
        scaled = self.settings[setting].at(scale)
        return self.settings[setting].title if scaled is None or scaled.title is None else scaled.title

    def ancestors(self, row: str) -> list[str]:
        """Return the rows that a row is a variant of, the first one first, and the row itself."""
        parent = self.rows[row].variant_of
        return [*([] if parent is None else self.ancestors(parent)), row]

    def layers(self, setting: str, row: str, scale: Scale) -> list[Overrides]:
        """Return the overrides of a row by itself in a setting, in the order in which they are applied."""
        entry = self.rows[row]
        if scale == "cpu":
            tuned = self.tuned.get(self.settings[setting].tuned_as or setting, {})
            return [entry.set, entry.cpu, tuned.get(row, {})]
        return [entry.set, entry.paper, entry.paper_in.get(setting, {})]

"""The report: valid self-contained HTML about runs in any state, with names escaped."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import html5lib
import numpy as np
import pytest
from tests.report.conftest import MakeRun
from tests.report.test_figures import CONFUSION, INCO, LAYERS, write_all_artifacts

from polyfed import api
from polyfed.benchmarks.report import make_run as make_long_run
from polyfed.cli.app import main
from polyfed.report.drawing import distinct_parts
from polyfed.report.run_record import read
from polyfed.report.run_tables import sections_of, unique_names

NASTY = '<script>alert("x")</script>&"\'{{7*7}}${x}'


def page_of(out: Path) -> tuple[str, ElementTree.Element]:
    """Return the page as text and as a tree. Fail on any syntax error."""
    text = out.read_text(encoding="utf-8")
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    # shorten paths and images, which are most of the page: the parser is slow
    short = re.sub(r'( d=")[MLHVCQSTAZmlhvcqstaz0-9., \n-]+"', r'\1M 0 0"', text)
    short = re.sub(r"base64,\s*[A-Za-z0-9+/=\s]+", "base64,", short)
    return text, parser.parse(short)


def texts(tree: ElementTree.Element, tag: str) -> list[str]:
    return [" ".join("".join(element.itertext()).split()) for element in tree.iter(tag)]


def table_named(tree: ElementTree.Element, label: str) -> ElementTree.Element:
    """Return the table with an accessible name."""
    return next(element for element in tree.iter("div") if element.get("aria-label") == label)


def figures(tree: ElementTree.Element) -> list[str]:
    """Return the titles of figures. Fail if one has no drawing, caption or data."""
    svg = "{http://www.w3.org/2000/svg}"
    titles = []
    for figure in tree.iter("figure"):
        drawing = figure.find(f".//{svg}svg")
        assert drawing is not None and drawing.get("role") == "img" and drawing.get("viewBox")
        title = drawing.find(f"{svg}title")
        assert title is not None and title.get("id") == drawing.get("aria-labelledby")
        caption = figure.find("figcaption/p")
        assert caption is not None and caption.text and caption.text in (title.text or "")
        assert figure.find("figcaption/details") is not None
        titles += texts(figure, "h3")
    return titles


def check_self_contained(text: str, tree: ElementTree.Element) -> None:
    """Check that there are no external resources or scripts, and that ids are unique and references valid."""
    assert len(text) < 6_000_000
    assert list(tree.iter("script")) == [] and list(tree.iter("link")) == []
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for element in tree.iter():
        for key, value in element.attrib.items():
            assert not key.startswith("on")
            if key.endswith(("href", "src")):
                assert value.startswith(("#", "data:image/png;base64,"))
                assert value[0] != "#" or value[1:] in ids
            for name in re.findall(r"url\(([^)]*)\)", value):
                assert name[0] == "#" and name[1:] in ids


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "report.html"


def test_many_runs(make_run: MakeRun, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        make_run(f"p{seed}", seed=seed, personal=[0.5, 0.75 + seed / 8])
        make_run(f"l{seed}", seed=seed, method="local", personal=[0.25, 0.5], sent=10)
    rich = make_run(
        "rich", method="rich", more=[*LAYERS, *INCO, CONFUSION, {"event": "method", "kind": "unheard", "round": 1}]
    )
    write_all_artifacts(rich)
    assert main(["report", str(tmp_path / "runs"), "-o", str(out), "--baseline", "local"]) == 0
    assert "a report on 5 runs" in capsys.readouterr().out
    text, tree = page_of(out)
    check_self_contained(text, tree)
    assert figures(tree) == [
        "Gain over local training, common test set",
        "Global accuracy by method",
        "Personal accuracy by method",
        "Global accuracy by round",
        "Personal accuracy by round",
        "Training loss by round",
        "Gain of each client, common test set",
        "Gain of each client, own held-out data",
        "Personal accuracy by architecture",
        "Global accuracy against bytes",
        "Global accuracy against seconds",
        "Time by phase",
        "Confusion matrix: rich",
        "Label distribution of clients",
        "Synthetic images: rich",
        "Features of test samples: rich",
        "CKA between clients: rich",
        "InCo's theta and beta: rich",
        "Layers sent and received: rich",
        "Guiding vectors: rich",
    ]
    summary = next(element for element in tree.iter("div") if element.get("class") == "summary")
    assert texts(summary, "p") == [
        "fedproto reaches 40.6 % on the common test set, 15.6 points above local (95 % interval over seeds -24.1 to "
        "+55.3); on the clients' own data it is 31.2 points above local. No clear difference from local "
        "(the interval includes 0): rich, fedproto."
    ]
    headline = table_named(tree, "Results over seeds")
    rows = [texts(row, "td") for row in headline.iter("tr")]
    fedproto = next(row for row in rows if row[:1] == ["fedproto"])
    assert fedproto[5] == "81.25 ± 8.84"
    assert fedproto[3].startswith("+31.25 [")  # 25 and 37.5 above local
    assert any("'rich' has one seed in common with it" in note for note in texts(tree, "p"))
    assert "prefers-color-scheme: dark" in text and "width=device-width" in text


def test_report_on_one_run(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    failure = {
        "event": "failure",
        "round": 2,
        "client": "1",
        "kind": "raised",
        "message": "ran out",
        "detail": "Trace",
    }
    folder = make_run("one", more=[failure, failure, {"event": "note", "message": "a client has one class"}])
    assert main(["report", str(folder)]) == 0  # the default path
    text, tree = page_of(folder / "report.html")
    check_self_contained(text, tree)
    paragraphs = texts(tree, "p")
    assert "2 replies were missing or rejected." in paragraphs and "Note: a client has one class" in paragraphs
    sizes = "2 clients sent 3,000 bytes of tensors in total: minimum 750, median 1,500, maximum 2,250 per client."
    assert sizes in paragraphs
    assert "No field was clipped or noised: the receiver of these messages sees the exact values." in paragraphs
    cells = [texts(row, "td") for row in tree.iter("tr")]
    assert ["raised", "ran out", "client 1, round 2", "2"] in cells
    assert ["train", "prototypes", "62 rows of 64 to 187 rows of 64", "no", "6", "2", "3,000"] in cells
    assert ["1", "large", "2,250"] in cells and ["method.name", "fedproto"] in cells
    assert texts(tree, "pre") == ["Trace"]  # equal failures are listed once


def test_protected_fields(make_run: MakeRun) -> None:
    privacy = {"prototypes": {"clip": 1.0, "epsilon": 2.0, "delta": 1e-5}}
    sections = sections_of(read(make_run(config={"privacy": privacy})), {})
    uploads = next(section for section in sections if section.title == "Uploads")
    assert uploads.tables[0].rows[0][3].text == "clipped to norm 1.0 and noise for epsilon 2.0, delta 1e-05"
    assert not any("sees the exact values" in sentence for sentence in uploads.text)


def test_settings_that_only_some_runs_have(make_run: MakeRun, tmp_path: Path, out: Path) -> None:
    make_run("without", config={"privacy": None})
    make_run("with", config={"privacy": {"prototypes": {"clip": 1.0, "epsilon": None}}})
    assert main(["report", str(tmp_path / "runs"), "-o", str(out)]) == 0
    _, tree = page_of(out)
    headings = texts(table_named(tree, "Results over seeds"), "th")
    assert "privacy.prototypes.clip" in headings and "privacy.prototypes.epsilon" not in headings


def test_settings_have_sections_of_their_own(make_run: MakeRun, tmp_path: Path, out: Path) -> None:
    for alpha, value in ((0.1, 0.5), (1.0, 0.75)):
        for method in ("fedproto", "local"):
            data = {"dataset": "digits", "alpha": alpha}
            accuracy = value if method == "fedproto" else 0.25
            make_run(f"{method}-{alpha}", method=method, personal=[accuracy], config={"data": data})
    assert main(["report", str(tmp_path / "runs"), "-o", str(out)]) == 0
    text, tree = page_of(out)
    check_self_contained(text, tree)
    sections = {element.get("id"): element for element in tree.iter("section")}
    assert texts(sections["setting-1"], "h2") == ["Alpha 0.1"] and texts(sections["setting-2"], "h2") == ["Alpha 1.0"]
    assert "12.5 points above local" in texts(sections["setting-1"], "p")[0]  # 25 % and 12.5 % on common data
    assert "25.0 points above local" in texts(sections["setting-2"], "p")[0]
    assert figures(sections["settings-compared"]) == ["Accuracy by data.alpha", "Accuracy by data.alpha"]
    assert figures(sections["setting-1"]) == figures(sections["setting-2"])


def test_metrics_have_a_table(make_run: MakeRun, tmp_path: Path, out: Path) -> None:
    for name, auroc in (("a", 0.75), ("b", 0.5)):
        path = make_run(name, method=name) / "result.json"
        result = json.loads(path.read_text())
        result["metrics"] = {"global": {"auroc": {"final": auroc, "by_client": [], "by_round": [auroc]}}}
        path.write_text(json.dumps(result))
    assert main(["report", str(tmp_path / "runs"), "-o", str(out)]) == 0
    _, tree = page_of(out)
    rows = [texts(row, "td") for row in table_named(tree, "Metrics: Common test set").iter("tr")]
    assert [row[-1] for row in rows if row] == ["75.00", "50.00"]
    assert "AUROC" not in texts(table_named(tree, "Results over seeds"), "th")


def test_runs_in_every_state(
    make_run: MakeRun, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("done")
    make_run("dead", finished=False)
    make_run("wrong", finished=False, more=[{"event": "failed", "message": "the disk is full"}])
    make_run("empty", finished=False, personal=[])
    (make_run("odd") / "config.yaml").write_text("[")
    assert main(["report", str(tmp_path / "runs"), "-o", str(out)]) == 0
    assert "odd" in capsys.readouterr().err
    text, tree = page_of(out)
    check_self_contained(text, tree)
    rows = {row[0]: row for row in (texts(line, "td") for line in tree.iter("tr")) if row}
    assert [rows[name][3] for name in ("done", "dead", "wrong", "empty", "odd")] == [
        "finished",
        "died",
        "failed",
        "died",
        "broken",
    ]
    assert rows["dead"][5] == "3 of 10" and rows["empty"][5] == "0 of 10"
    assert "Failed: 3 of 10 rounds. the disk is full." in texts(tree, "p")


def test_no_rounds_and_only_broken_runs(make_run: MakeRun, tmp_path: Path, out: Path) -> None:
    folder = make_run("empty", finished=False, personal=[])
    assert main(["report", str(folder), "-o", str(out)]) == 0
    _, tree = page_of(out)
    assert "No round has been evaluated yet, so there are no figures of accuracy." in texts(tree, "p")
    (folder / "config.yaml").write_text("[")
    assert main(["report", str(folder), "-o", str(out)]) == 0
    _, tree = page_of(out)
    assert texts(tree, "h1") == ["Report on 1 run"] and "broken" in texts(tree, "td")


def test_names_are_escaped(make_run: MakeRun, tmp_path: Path, out: Path) -> None:
    events: list[dict[str, Any]] = [
        {"event": "failure", "round": 1, "client": NASTY, "kind": NASTY, "message": NASTY, "detail": NASTY},
        {"event": "failed", "message": NASTY},
        {"event": "note", "message": NASTY},
        {"event": "method", "kind": "layers_up", "round": 1, "clients": [NASTY], "layers": [NASTY], "changes": [1]},
        {"event": "method", "kind": "warning", "round": 1, "message": NASTY},
    ]
    settings = {NASTY: {NASTY: NASTY}, "data": {"dataset": NASTY}}
    for at in (0, 1):
        name = f"{NASTY}{at}\x1b[31m\x00"
        folder = make_run(f"bad{at}", method=NASTY, finished=False, more=events, config=settings, client=NASTY)
        config = (folder / "config.yaml").read_text().replace("name: bad", f"name: {yaml_text(name)} #")
        (folder / "config.yaml").write_text(config)
    assert main(["report", str(tmp_path / "runs"), "-o", str(out)]) == 0
    text, tree = page_of(out)
    check_self_contained(text, tree)
    assert "<script" not in text and "49" not in texts(tree, "h1")[0]
    assert html.escape("<script>") in text
    assert any(NASTY in cell for cell in texts(tree, "td"))
    assert "\x1b" not in text and "\x00" not in text


def yaml_text(text: str) -> str:
    import yaml

    return yaml.safe_dump(text, default_style='"', width=10_000).strip()


def test_figures_that_cannot_be_drawn_are_noted(make_run: MakeRun, out: Path) -> None:
    wrong = {"event": "method", "kind": "inco", "round": 1, "layers": ["a"], "theta": []}
    folder = make_run(more=[wrong], personal=[], finished=False)
    write_all_artifacts(folder)
    for path in (folder / "artifacts").glob("cka-*"):
        path.write_bytes(b"x")
    assert main(["report", str(folder), "-o", str(out)]) == 0
    _, tree = page_of(out)
    notes = [note for note in texts(tree, "p") if "cannot be" in note]
    assert len(notes) == 2 and "Synthetic images: fedproto" in figures(tree)


def test_values_that_no_axis_can_show(make_run: MakeRun, out: Path) -> None:
    assert main(["report", str(make_run(personal=[float("inf"), float("nan"), 1e308])), "-o", str(out)]) == 0
    check_self_contained(*page_of(out))


def test_report_on_a_long_run_is_small(tmp_path: Path, out: Path) -> None:
    make_long_run(tmp_path / "runs" / "long", "m", 0, rounds=400)
    assert main(["report", str(tmp_path / "runs"), "-o", str(out)]) == 0
    text, tree = page_of(out)
    check_self_contained(text, tree)
    assert len(text) < 2_000_000
    assert any("400 rows" in sentence for sentence in texts(tree, "p"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "-o", "report.pdf"], "the report's file is 'report.pdf'; expected a name that ends in .html"),
        (["RUN", "-o", "no/report.html"], "there is no folder no"),
        (["RUN", "--by", "train.lrr"], "no run has a setting called 'train.lrr'"),
        (["RUN", "--baseline", "locl"], "the baseline 'locl' is not among the runs"),
        (["nowhere"], "there is no folder nowhere"),
        (["."], "there is no run in ."),
    ],
)
def test_wrong_input_gives_one_sentence(
    arguments: list[str],
    message: str,
    make_run: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = make_run()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["report", *(str(folder) if word == "RUN" else word for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert message in err and len(err.splitlines()) == 1 and out == ""
    assert list(Path().iterdir()) == [] and not (folder / "report.html").exists()


def test_real_run(tmp_path: Path, out: Path) -> None:
    folder = tmp_path / "real"
    result = api.run("quickstart", rounds=1, clients=4, engine={"name": "serial"}, out=folder)
    record = read(folder)
    assert [client.name for client in record.clients] == ["0", "1", "2", "3"]
    assert [client.model for client in record.clients] == ["tiny-cnn", "tiny-resnet", "tiny-mobile", "tiny-mlp"]
    with np.load(folder / "partition.npz") as split:
        sizes = [len(split[f"train_{k}"]) for k in range(4)]
    assert [sum(client.train_counts.values()) for client in record.clients] == sizes
    assert sum(record.upload_bytes) == result["bytes"]["up"] and sum(record.download_bytes) == result["bytes"]["down"]
    assert record.accuracy["personal"] == result["accuracy"]["personal"]["by_round"]
    assert sum(upload.bytes for upload in record.uploads) == result["bytes"]["up"]
    assert main(["report", str(folder), "-o", str(out)]) == 0
    text, tree = page_of(out)
    check_self_contained(text, tree)
    final = f"{100 * result['accuracy']['personal']['final']:.2f}"
    assert final in texts(table_named(tree, "Results over seeds"), "td")
    assert len(figures(tree)) == 9


def test_runs_with_equal_names_are_told_apart_by_their_folders(make_run: MakeRun, tmp_path: Path) -> None:
    one, other = make_run("local-s0"), make_run("other-s0")
    copy = shutil.copytree(one, tmp_path / "three-sizes" / "local-s0")
    names = unique_names([read(one), read(other), read(copy)])
    assert names == ["runs/local-s0", "other-s0", "three-sizes/local-s0"]


def test_a_partition_is_drawn_once_if_only_models_differ(make_run: MakeRun, tmp_path: Path) -> None:
    one, other = make_run("one"), make_run("other", method="local")
    clients = (other / "clients.json").read_text()
    model = read(other).clients[0].model
    (other / "clients.json").write_text(clients.replace(f'"{model}"', '"another-model"'))
    assert read(other).clients[0].model == "another-model"
    assert main(["report", str(one), str(other), "-o", str(tmp_path / "report.html")]) == 0
    assert figures(page_of(tmp_path / "report.html")[1]).count("Label distribution of clients") == 1


def test_layers_are_named_by_the_parts_in_which_they_differ() -> None:
    names = [f"trunk.stages.{stage}.1.layers.{k}.conv.weight" for stage in (0, 1) for k in (0, 1)]
    assert distinct_parts(names) == [f"stages.{stage}.1.layers.{k}" for stage in (0, 1) for k in (0, 1)]
    assert distinct_parts(["a", "a.b"]) == ["a", "a.b"]
    assert distinct_parts(["a.b"]) == ["a.b"]

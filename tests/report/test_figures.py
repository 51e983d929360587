"""Every kind of figure: its data, its files, and errors for runs without the data."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tests.report.conftest import MakeRun, round_event

from polyfed.cli.app import main
from polyfed.comparison.palette import method_colour
from polyfed.errors import InputError
from polyfed.report.cost_figures import pareto
from polyfed.report.figure_kinds import KINDS, figure, make
from polyfed.report.figure_spec import Options
from polyfed.report.rendering import inline_svg, to_csv
from polyfed.report.run_groups import group_runs
from polyfed.report.run_record import read

LAYERS = [
    {
        "event": "method",
        "kind": "layers_up",
        "round": 1,
        "clients": ["0", "1"],
        "layers": ["conv.2", "conv.10"],
        "changes": [1, 3],
    },
    {
        "event": "method",
        "kind": "layers_down",
        "round": 1,
        "clients": ["0"],
        "layers": ["conv.2"],
        "sources": ["1"],
        "gains": [0.5],
    },
    {
        "event": "method",
        "kind": "layers_up",
        "round": 2,
        "clients": ["0"],
        "layers": ["conv.2"],
        "changes": [2],
    },
]
INCO = [
    {"event": "method", "kind": "inco", "round": n, "layers": ["a", "b"], "theta": [0.5, n], "beta": [n, -n]}
    for n in (1, 2, 3)
]

# the last round once more, as a resumed run writes it, with samples of three classes by true and predicted class
CONFUSION = round_event(3, 0.5, 1.5, 1000) | {
    "confusion": {"personal": [[8, 2, 0], [0, 5, 0], [1, 0, 0]], "global": [[1, 0, 0], [0, 1, 0], [0, 3, 1]]}
}


def write_artifact(folder: Path, name: str, **tensors: Any) -> None:
    (folder / "artifacts").mkdir(exist_ok=True)
    save_file(tensors, folder / "artifacts" / f"{name}.safetensors")


def write_all_artifacts(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in (1, 3):
        vectors = rng.normal(size=(4, 6)).astype(np.float32)
        write_artifact(folder, f"guiding_vectors-{number:06d}", vectors=vectors, classes=np.arange(4))
    write_artifact(
        folder, "cka-000003", stage1=np.array([[1, 0.25], [0.75, 1]], np.float32), stage2=np.ones((2, 2), np.float32)
    )
    index = np.arange(6)
    write_artifact(
        folder,
        "features-000003",
        vectors=rng.normal(size=(6, 5)).astype(np.float32),
        classes=index % 3,
        clients=index % 2,
    )
    images = rng.random((5, 3, 4, 4)).astype(np.float32)
    write_artifact(folder, "synthetic-000002", images=images, labels=np.array([0, 0, 2, 2, 2]))


@pytest.fixture
def rich(make_run: MakeRun) -> Path:
    folder = make_run("rich", more=[*LAYERS, *INCO, CONFUSION])
    write_all_artifacts(folder)
    return folder


def rows_of(kind: str, folders: list[Path], **options: Any) -> list[dict[str, str]]:
    spec = make(kind, [read(folder) for folder in folders], Options(**options))
    return list(csv.DictReader(io.StringIO(to_csv(spec))))


def test_curves_show_mean_and_std_over_seeds(make_run: MakeRun) -> None:
    stopped = make_run("a", personal=[0.25, 0.5], config={"rounds": 3})
    folders = [stopped, make_run("b", seed=1, personal=[0.75, 0.5, 1.0])]
    folders.append(make_run("c", method="local", personal=[0.1, 0.2]))
    *local, first, second, third = rows_of("curves", folders, by=("data.dataset",))  # local training comes first
    assert first["runs"] == "fedproto, dataset digits" and local[0]["runs"] == "local, dataset digits"
    assert (float(first["mean"]), first["n"]) == (50.0, "2")
    assert float(first["std"]) == pytest.approx(35.3553391)  # of 25 and 75
    assert (float(second["mean"]), float(second["std"])) == (50.0, 0.0)
    assert (third["round"], float(third["mean"]), third["std"], third["n"]) == ("3", 100.0, "", "1")
    assert [float(row["mean"]) for row in local] == [10.0, 20.0]
    common = rows_of("curves", folders[:1], measure="global")
    assert [float(row["mean"]) for row in common] == [12.5, 25.0]


def test_runs_that_differ_in_a_setting_are_separate_groups(make_run: MakeRun) -> None:
    folders = [make_run(str(alpha), config={"data": {"dataset": "digits", "alpha": alpha}}) for alpha in (10, 0.5)]
    labels = [group.label for group in group_runs([read(folder) for folder in folders])]
    assert labels == ["fedproto, alpha 0.5", "fedproto, alpha 10"]
    by_rounds = group_runs([read(folder) for folder in folders], ["rounds"])  # other settings still count
    assert [group.label for group in by_rounds] == ["fedproto, rounds 3, alpha 0.5", "fedproto, rounds 3, alpha 10"]
    with pytest.raises(InputError, match=r"no run has a setting called 'data.alfa'; did you mean 'data.alpha'"):
        group_runs([read(folder) for folder in folders], ["data.alfa"])


def test_runs_of_earlier_releases_are_in_the_group_of_equal_runs(make_run: MakeRun) -> None:
    rules: list[dict[str, Any]] = [{}, {"name": "mean"}, {"name": "mean", "share": 0.2, "norm": None, "keep": 1}]
    folders = [make_run(str(k), seed=k, config={"aggregation": rule} if rule else {}) for k, rule in enumerate(rules)]
    assert {(row["runs"], row["n"]) for row in rows_of("curves", folders)} == {("fedproto", "3")}


def test_loss_and_loss_increase(make_run: MakeRun) -> None:
    folder = make_run()  # losses 2, 1, 1.5
    assert [float(row["mean"]) for row in rows_of("loss", [folder])] == [2.0, 1.0, 1.5]
    assert [float(row["mean"]) for row in rows_of("loss-increase", [folder])] == [0.0, 0.0, 0.5]


def test_cost_and_pareto_front(make_run: MakeRun) -> None:
    cheap = make_run("cheap", method="a", personal=[0.5], sent=1 << 18)  # up 1/4 MiB and down 3/4
    dear = make_run("dear", method="b", personal=[0.75], sent=1 << 19)
    bad = make_run("bad", method="c", personal=[0.25], sent=1 << 19)
    rows = rows_of("cost", [cheap, dear, bad])
    assert [(float(row["MiB, both directions"]), float(row["accuracy %"])) for row in rows] == [
        (1, 50),
        (2, 75),
        (2, 25),
    ]
    assert [row["on the front"] for row in rows] == ["yes", "yes", "no"]
    (row,) = rows_of("cost", [cheap], against="seconds")
    assert float(row["seconds of training and server work"]) == 1.25


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_front_is_what_nobody_beats(points: list[tuple[int, int]]) -> None:
    front = set(pareto([(float(cost), float(value)) for cost, value in points]))
    assert front
    for at, (cost, value) in enumerate(points):
        better = [(c, v) for c, v in points if c <= cost and v >= value and (c < cost or v > value)]
        assert (at in front) == (not better)


def test_clients_sorted_and_by_architecture(make_run: MakeRun) -> None:
    one = make_run("one", personal=[0.8])  # clients have 40 and 80 %
    assert [(row["client"], row["model"], float(row["accuracy %"])) for row in rows_of("clients", [one])] == [
        ("0", "small", 40.0),
        ("1", "large", 80.0),
    ]
    two = make_run("two", seed=1, personal=[0.4])
    assert [float(row["accuracy %"]) for row in rows_of("clients", [one, two])] == [30.0, 60.0]
    by_model = rows_of("architectures", [one, two])
    assert [(row["model"], float(row["accuracy %"]), row["clients"]) for row in by_model] == [
        ("small", 30.0, "2"),
        ("large", 60.0, "2"),
    ]


def test_methods_and_gain_have_intervals(make_run: MakeRun) -> None:
    folders = [make_run(f"p{seed}", seed=seed, personal=[0.5 + seed / 10]) for seed in (0, 1)]
    folders += [make_run(f"l{seed}", seed=seed, method="local", personal=[0.4]) for seed in (0, 1)]
    local, fedproto = rows_of("methods", folders)
    assert local["runs"] == "local" and float(local["accuracy %"]) == 40.0
    # mean 55 and half the width of the t interval with one degree of freedom: 12.7062 * 7.0711 / sqrt(2) = 63.53
    assert float(fedproto["interval low"]) == pytest.approx(55 - 63.531, abs=1e-3)
    assert fedproto["n"] == "2"
    (gain,) = rows_of("gain", folders)
    assert float(gain["gain, points"]) == pytest.approx(15.0)  # of 10 and 20
    assert float(gain["interval high"]) == pytest.approx(15 + 63.531, abs=1e-3) and gain["interval over"] == "seeds"
    by_client = rows_of("client-gain", folders)  # the second client has the accuracy of the run, the first one half
    assert [row["client"] for row in by_client] == ["0 · small", "1 · large"]
    assert [float(row["gain, points"]) for row in by_client] == pytest.approx([7.5, 15.0])
    (against,) = rows_of("gain", folders, baseline="fedproto", measure="global")
    assert against["runs"] == "local" and float(against["gain, points"]) == pytest.approx(-7.5)


def test_clients_of_different_partitions_are_not_averaged(make_run: MakeRun) -> None:
    folders = [make_run(f"{m}{s}", method=m, seed=s) for m in ("fedproto", "local") for s in (0, 1)]
    for folder in (folders[1], folders[3]):
        path = folder / "clients.json"
        path.write_text(path.read_text().replace('"2": 1', '"2": 7'))
    assert [row["runs of"] for row in rows_of("client-gain", folders)] == ["seed 0", "seed 0", "seed 1", "seed 1"]


def test_a_method_has_the_same_style_in_every_figure(make_run: MakeRun) -> None:
    records = [read(make_run(name, method=name)) for name in ("local", "fedavg", "fedproto", "of-a-user")]
    together = {group.method: group.style for group in group_runs(records)}
    for record in records:
        (alone,) = group_runs([record])
        assert alone.style == together[record.method] and alone.style.color == method_colour(record.method)
    lines = [make_run(f"lr{lr}", config={"train": {"lr": lr}}) for lr in (0.1, 0.2, 0.3)]
    styles = [group.style for group in group_runs([read(folder) for folder in lines])]
    assert len(set(styles)) == 3 and styles[0] == together["fedproto"]


def test_confusion_matrices_are_summed_over_runs(rich: Path, make_run: MakeRun) -> None:
    again = make_run("again", seed=1, more=[CONFUSION])
    rows = rows_of("confusion", [rich, again])
    counts = {(row["true class"], row["predicted class"]): int(row["samples"]) for row in rows}
    assert counts["zero", "zero"] == 16 and counts["zero", "one"] == 4 and counts["two", "two"] == 0
    assert len(rows_of("confusion", [rich], measure="global")) == 9


def test_sensitivity_never_mixes_other_settings(make_run: MakeRun) -> None:
    folders = [
        make_run(f"{lr}-{epochs}", personal=[epochs / 10], config={"train": {"lr": lr, "epochs": epochs}})
        for lr in (0.1, 0.2)
        for epochs in (1, 2)
    ]
    rows = rows_of("sensitivity", folders, by=("train.lr",))
    assert [(row["runs"], row["train.lr"], float(row["accuracy %"])) for row in rows] == [
        ("fedproto, epochs 1", "0.1", 10.0),
        ("fedproto, epochs 1", "0.2", 10.0),
        ("fedproto, epochs 2", "0.1", 20.0),
        ("fedproto, epochs 2", "0.2", 20.0),
    ]


def test_partition_phases_and_sensitivity(make_run: MakeRun) -> None:
    one = make_run("one", config={"train": {"lr": 0.1}})
    two = make_run("two", personal=[0.25], config={"train": {"lr": 0.01}})
    assert [tuple(row.values()) for row in rows_of("partition", [one])] == [
        ("0", "small", "zero", "5"),
        ("0", "small", "two", "1"),
        ("1", "large", "one", "20"),
    ]
    (row, _) = rows_of("phases", [one, two])
    assert [float(row[part]) for part in ("client steps", "evaluation", "server")] == [1.0, 0.5, 0.25]
    swept = rows_of("sensitivity", [one, two], by=("train.lr",))
    assert [(row["train.lr"], float(row["accuracy %"])) for row in swept] == [("0.01", 25.0), ("0.1", 50.0)]


def test_layers_and_coefficients(rich: Path) -> None:
    first, second = rows_of("layers", [rich])
    assert list(first.values()) == ["0", "conv.2", "2", "1.5", "1", "0.5", "1"]
    assert list(second.values()) == ["1", "conv.10", "1", "3.0", "0", "", ""]
    rows = rows_of("inco", [rich])
    assert [float(row["theta"]) for row in rows if row["layer"] == "b"] == [1.0, 2.0, 3.0]
    assert "beta is positive in 50 % of cases" in make("inco", [read(rich)], Options()).caption


def test_figures_of_artifacts(rich: Path) -> None:
    cka = make("cka", [read(rich)], Options())
    assert "after round 3" in cka.caption and len(cka.rows) == 8
    assert [tuple(row.values()) for row in rows_of("synthetic", [rich])] == [("0", "2"), ("2", "3")]
    moves = rows_of("tsne", [rich])
    assert [(row["round"], row["class"]) for row in moves] == [(str(n), str(c)) for n in (1, 3) for c in range(4)]
    assert moves == rows_of("tsne", [rich])  # deterministic
    assert {row["round"] for row in rows_of("tsne", [rich], round=1)} == {"1"}
    points = rows_of("features", [rich])
    assert [(row["client"], row["class"]) for row in points] == [(str(k % 2), str(k % 3)) for k in range(6)]
    with pytest.raises(InputError, match=r"--round is 2, but .* has cka of rounds 3"):
        make("cka", [read(rich)], Options(round=2))


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_is_drawn_to_a_file_and_a_page(kind: str, rich: Path, make_run: MakeRun, tmp_path: Path) -> None:
    others = [] if KINDS[kind].one_run else [make_run("base", method="local")]
    options = Options(by=("seed",)) if kind == "sensitivity" else Options()
    spec, broken = figure(kind, [rich, *others], tmp_path / "f.svg", options=options)
    assert broken == []
    written = (tmp_path / "f.svg").read_text()
    assert written.startswith("<?xml") and "<text" not in written  # letters are paths, so no font is needed
    inside = inline_svg(spec, "one")
    assert inside.startswith("<svg") and 'role="img"' in inside and spec.caption.split(".")[0][:20] in inside
    assert spec.rows and all(len(row) == len(spec.columns) for row in spec.rows)


def test_files_have_the_requested_size_and_embedded_fonts(rich: Path, tmp_path: Path) -> None:
    from PIL import Image

    arguments = ["figure", "curves", str(rich), "--width", "2", "--height", "1.5", "-o"]
    assert main([*arguments, str(tmp_path / "f.png")]) == 0
    with Image.open(tmp_path / "f.png") as image:
        assert image.size == (600, 450)  # 300 dots an inch
    assert main([*arguments, str(tmp_path / "f.pdf")]) == 0
    pdf = (tmp_path / "f.pdf").read_bytes()
    assert b"/MediaBox [ 0 0 144 108 ]" in pdf and b"/FontFile2" in pdf and b"/Type3" not in pdf
    again = [tmp_path / "one.svg", tmp_path / "two.svg"]
    assert [main([*arguments, str(path)]) for path in again] == [0, 0]
    assert again[0].read_text() == again[1].read_text()  # equal figures give equal files
    assert main([*arguments, str(tmp_path / "f.csv")]) == 0
    assert (tmp_path / "f.csv").read_text().startswith("runs,round,mean,std,n\n")


def test_many_clients_are_rasterised(make_run: MakeRun) -> None:
    record = read(make_run())
    client = record.clients[0]
    record.clients = [client.__class__(str(k), f"m{k % 3}", 1, dict.fromkeys(range(30), 1 + k)) for k in range(150)]
    record.class_names = [str(c) for c in range(30)]
    record.accuracy_by_client["personal"] = [k / 150 for k in range(150)]
    bubbles = make("partition", [record], Options())
    assert len(bubbles.rows) == 100 * 30 and "Only the first 100" in bubbles.caption
    assert "<image" in inline_svg(bubbles, "a") and len(inline_svg(bubbles, "a")) < 300_000
    assert len(make("clients", [record], Options()).rows) == 150


def test_names_are_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    names = ["$\\frac{$", "<script>alert(1)</script>", "a\x00\x1b[31mb\n\ud800", "名前 & 'x'"]
    folders = [make_run(f"n{at}", method=name.replace("\ud800", "")) for at, name in enumerate(names)]
    spec, _ = figure("curves", folders, tmp_path / "f.pdf")
    text = inline_svg(spec, "x")
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text
    assert "\x1b" not in text and "\x00" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curvs", "RUN", "-o", "f.png"], "there is no figure called 'curvs'; did you mean 'curves'?"),
        (["curves", "RUN", "-o", "f.gif"], "expected a name that ends in .png, .svg, .pdf, .csv"),
        (["curves", "RUN", "-o", "f"], "expected a name that ends in"),
        (["curves", "RUN", "-o", "no/f.png"], "no/f.png cannot be written: there is no folder no"),
        (["curves", "RUN", "-o", "f.png", "--measure", "globl"], "--measure is 'globl'; did you mean 'global'?"),
        (["cost", "RUN", "-o", "f.png", "--against", "money"], "--against is 'money'; known: bytes, seconds"),
        (["curves", "RUN", "-o", "f.png", "--width", "0"], "--width is 0; expected inches between 0.5 and 50"),
        (["sensitivity", "RUN", "-o", "f.png"], "name it with --by"),
        (["layers", "RUN", "-o", "f.png"], "has no record of layers that were sent"),
        (["inco", "RUN", "-o", "f.png"], "has no record of theta and beta"),
        (["gain", "RUN", "-o", "f.png"], "no run of the baseline 'local' has finished"),
        (["confusion", "RUN", "-o", "f.png"], "evaluate.metrics=[confusion] records it"),
        (["cka", "RUN", "-o", "f.png"], "has no cka-*.safetensors in its artifacts"),
        (["tsne", "RUN", "-o", "f.png"], "has no guiding_vectors-*.safetensors"),
        (["synthetic", "RUN", "-o", "f.png"], "has no synthetic-*.safetensors"),
        (["partition", "RUN", "OTHER", "-o", "f.png"], "a figure 'partition' shows one run, but there are 2"),
        (["curves", "nowhere", "-o", "f.png"], "there is no folder nowhere"),
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
    places = {"RUN": str(make_run("one")), "OTHER": str(make_run("two"))}
    monkeypatch.chdir(tmp_path)
    assert main(["figure", *(places.get(word, word) for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert message in err and len(err.splitlines()) == 1 and out == ""
    assert not (tmp_path / "f.png").exists()


@pytest.mark.parametrize(
    ("kind", "tensors"),
    [
        ("cka", {"stage": np.ones((2, 3), np.float32)}),
        ("synthetic", {"images": np.ones((2, 3), np.float32), "labels": np.zeros(2, np.int64)}),
        ("features", {"vectors": np.ones((3, 2), np.float32), "classes": np.zeros(3, np.int64)}),
        ("tsne", {"vectors": np.ones((3, 2), np.float32), "classes": np.zeros(2, np.int64)}),
        ("tsne", {"vectors": np.ones((2, 2), np.float32), "classes": np.zeros(2, np.int64)}),
    ],
)
def test_invalid_artifacts(make_run: MakeRun, kind: str, tensors: dict[str, Any]) -> None:
    folder = make_run()
    write_artifact(folder, f"{'guiding_vectors' if kind == 'tsne' else kind}-000001", **tensors)
    with pytest.raises(InputError):
        make(kind, [read(folder)], Options())
    for path in (folder / "artifacts").iterdir():
        path.write_bytes(b"no safetensors")
    with pytest.raises(InputError, match="cannot be read"):
        make(kind, [read(folder)], Options())


def test_invalid_events(make_run: MakeRun) -> None:
    record = read(make_run(more=[{"event": "method", "kind": "inco", "round": 1, "layers": ["a"], "theta": []}]))
    with pytest.raises(InputError, match="the figure 'inco' cannot be drawn from"):
        make("inco", [record], Options())


def test_drawing_needs_no_torch(make_run: MakeRun) -> None:
    code = (
        "import sys\nfrom polyfed.cli.app import main\n"
        "code = main(['report', sys.argv[1]])\nassert 'torch' not in sys.modules\nsys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code, str(make_run(finished=False, personal=[0.5]))], check=True)

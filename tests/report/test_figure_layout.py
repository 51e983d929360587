"""Figures as pictures: no text overlaps other text or is cut off at an edge, and the page fits a phone."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from tests.report.conftest import MakeRun
from tests.report.test_figures import CONFUSION, INCO, LAYERS, write_all_artifacts, write_artifact
from tests.ui.browser import Browser

from polyfed.report.client_data import ClientData
from polyfed.report.figure_kinds import KINDS, make
from polyfed.report.figure_spec import FigureSpec, Options
from polyfed.report.page import render
from polyfed.report.rendering import IN_FILE, draw, styled
from polyfed.report.run_record import RunRecord, read

ALPHA = "data.partition.alpha"
LONG = "a-method-with-a-rather-long-name"


class Box(NamedTuple):
    """Text that was drawn, and its bounding box in pixels, from the lower left corner."""

    text: str
    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Return whether two boxes overlap by more than a pixel."""
        across = min(self.right, other.right) - max(self.left, other.left)
        along = min(self.top, other.top) - max(self.bottom, other.bottom)
        return across > 1 and along > 1


class RecordingRenderer(RendererAgg):
    """Draws a figure and records where its text is."""

    def __init__(self, width: float, height: float, dpi: float) -> None:
        super().__init__(width, height, dpi)  # type: ignore[no-untyped-call]
        self.boxes: list[Box] = []

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None
    ) -> None:
        width, height, descent = self.get_text_width_height_descent(s, prop, ismath)  # type: ignore[no-untyped-call]
        up = self.height - y
        if angle == 90:
            self.boxes.append(Box(s, x - height + descent, up, x + descent, up + width))
        else:
            assert angle == 0  # slanted text has no useful box
            self.boxes.append(Box(s, x, up - descent, x + width, up - descent + height))
        super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)  # type: ignore[no-untyped-call]


def faults_of(spec: FigureSpec) -> list[str]:
    """Draw a figure and describe text that overlaps or leaves the picture."""
    with styled(IN_FILE):
        figure = draw(spec, spec.size)
        width, height = figure.bbox.size
        renderer = RecordingRenderer(width, height, figure.dpi)
        FigureCanvasAgg(figure)
        figure.draw(renderer)
    boxes = [box for box in renderer.boxes if box.text.strip()]
    assert boxes
    faults = [
        f"'{box.text}' is cut off"
        for box in boxes
        if box.left < -1 or box.bottom < -1 or box.right > width + 1 or box.top > height + 1
    ]
    pairs = itertools.combinations(boxes, 2)
    return faults + [f"'{one.text}' overlaps '{other.text}'" for one, other in pairs if one.overlaps(other)]


@pytest.fixture(scope="module")
def crowded(make_module_run: MakeRun) -> list[RunRecord]:
    """Runs with long names, two settings, accuracies near 0 and 100 %, and costs from nothing to gigabytes."""
    folders = []
    costs = {"local": 0, "fedproto": 1 << 10, "fedavg": 1 << 21, LONG: 1 << 29}
    for (method, sent), seed, alpha in itertools.product(costs.items(), (0, 1), (0.1, 1.0)):
        personal = [0.01, 0.5, 0.99 - seed / 2]
        config = {"data": {"dataset": "digits", "partition": {"alpha": alpha}}}
        name = f"{method}-{alpha}-{seed}"
        folders.append(
            make_module_run(
                name, method=method, seed=seed, personal=personal, sent=sent, config=config, more=[CONFUSION]
            )
        )
    return [read(folder) for folder in folders]


@pytest.fixture(scope="module")
def detailed(make_module_run: MakeRun) -> RunRecord:
    """One run with many clients, long class names, deep layers and every artifact."""
    clients, classes, layers = 30, 12, 14
    names = [f"stage{n}.blocks.{n}.convolution.weight" for n in range(layers)]
    layers_up = LAYERS[0] | {"clients": [str(n) for n in range(layers)], "layers": names, "changes": [1.0] * layers}
    inco = [event | {"layers": names, "theta": [0.5] * layers, "beta": [-0.1] * layers} for event in INCO]
    folder = make_module_run("detailed", more=[layers_up, *inco])
    write_all_artifacts(folder)
    rng = np.random.default_rng(0)
    for number in range(4):
        write_artifact(
            folder, f"cka-{number:06d}", **{f"stage{n}.blocks": rng.random((clients, clients)) for n in range(4)}
        )
    labels = np.arange(3 * classes) % classes
    write_artifact(folder, "synthetic-000003", images=rng.random((3 * classes, 1, 8, 8), np.float32), labels=labels)
    vectors = rng.normal(size=(3 * classes, 5)).astype(np.float32)
    write_artifact(folder, "features-000003", vectors=vectors, classes=labels, clients=labels)
    record = read(folder)
    record.class_names = [f"class number {n}" for n in range(classes)]
    record.clients = [
        ClientData(f"hospital {n}", f"model{n % 5}", 1, dict.fromkeys(range(classes), 1 + n)) for n in range(clients)
    ]
    record.accuracy_by_client["personal"] = [n / clients for n in range(clients)]
    record.confusion["personal"] = rng.integers(0, 99, (classes, classes)).tolist()
    return record


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.one_run])
def test_text_of_figures_of_several_runs(kind: str, crowded: list[RunRecord]) -> None:
    by = (ALPHA,) if kind == "sensitivity" else ()
    one_setting = [record for record in crowded if record.setting(ALPHA) == "1.0"]
    assert faults_of(make(kind, one_setting, Options("global", by=by))) == []
    assert faults_of(make(kind, crowded, Options(by=by))) == []


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in {"gain", "client-gain", "sensitivity"}])
def test_text_of_figures_of_one_run(kind: str, detailed: RunRecord) -> None:
    assert faults_of(make(kind, [detailed], Options())) == []


def test_the_page_fits_a_phone(crowded: list[RunRecord], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    one_setting = [record for record in crowded if record.setting(ALPHA) == "1.0"]
    out.write_text(render(one_setting, {}), encoding="utf-8")
    browser = Browser()
    try:
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        browser.goto(out.as_uri())
        assert browser.js("innerWidth") == 390  # a page that is too wide is shown smaller on a phone
        assert browser.js("document.documentElement.scrollWidth") == 390
        # elements may be wider than the screen inside an area that scrolls
        inside = "!e.closest('.scroll, nav, pre, svg, details:not([open])')"
        wide = (
            f"[...document.querySelectorAll('body *')].filter(e => {inside} && e.getBoundingClientRect().right > 391)"
        )
        assert browser.js(f"{wide}.map(e => e.outerHTML.slice(0, 200))") == []
        assert browser.js("document.querySelectorAll('figure svg').length") > 10
        assert browser.errors == []
    finally:
        browser.close()

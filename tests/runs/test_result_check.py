"""Results whose metrics are damaged."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.runs.result_check import check_result

RESULT: dict[str, Any] = {
    "method": "fedavg",
    "seed": 0,
    "accuracy": {"personal": {"final": 0.5, "best": 0.6}, "global": None},
    "bytes": {"up": 1, "down": 2},
    "seconds": {"total": 1.5},
}


def test_metrics_need_a_final_value() -> None:
    check_result({**RESULT, "metrics": {"personal": {"macro_f1": {"final": None}, "confusion": []}}}, 1)
    check_result({**RESULT, "metrics": {"personal": {"macro_f1": {"final": 0.25}}}}, 1)
    wrong: list[Any] = [{}, {"final": "x"}, []]
    for damaged in wrong:
        with pytest.raises(ValueError, match="holds no result that polyfed wrote"):
            check_result({**RESULT, "metrics": {"personal": {"x": damaged}}}, 1)

"""Tiers of tests by file: which are slow and why, which run together, and which run first."""

from __future__ import annotations

import pytest

# The marks of slow tests, from the file or folder of a test. `pytest -m sites` runs one tier. Slow tiers run first,
# so that no long test is left for the end, and files with the longest tests come first in a tier.
SLOW: dict[str, tuple[str, ...]] = {
    "sites": (
        "tests/deploy/test_flower_recovery.py",
        "tests/deploy/test_no_telemetry.py",
        "tests/deploy/test_flower_federation.py",
        "tests/deploy/test_supernode_tasks.py",
        "tests/deploy/test_join_errors.py",
        "tests/deploy/test_site_federation.py",
        "tests/deploy/test_flower_export.py",
        "tests/deploy/test_gateway.py",
        "tests/deploy/test_gateway_timeouts.py",
    ),
    "ray": ("tests/on_ray/", "tests/engines/test_ray_nodes.py"),
    "browser": ("tests/ui/",),
    "kills": ("tests/faults/",),
    "processes": (
        "tests/engines/test_user_code.py",
        "tests/cli/test_cli_new_package.py",
        "tests/cli/test_cli_runs.py",
        "tests/cli/test_cli_startup.py",
        "tests/cli/test_cli_new_method.py",
        "tests/cli/test_cli_progress.py",
        "tests/cli/test_cli_reproduce.py",
        "tests/docs/",
        "tests/test_core_install.py",
        "tests/test_same_bits.py",
        "tests/trackers/",
    ),
    "battery": ("tests/methods/test_battery.py",),
    "slow": (
        "tests/models/",
        "tests/report/",
        "tests/papers/test_cpu_grids.py",
        "tests/test_published_presets.py",
        "tests/devices/test_device_methods.py",
        "tests/devices/test_device_engines.py",
        "tests/engines/test_engines_agree.py",
        "tests/engines/test_concurrent_evaluation.py",
        "tests/engines/test_pool.py",
        "tests/trained/",
        "tests/api/",
        "tests/attack/",
        "tests/methods/",
        "tests/filters/test_inco_runs.py",
        "tests/guards/test_privacy_runs.py",
        "tests/guards/test_privacy_sites.py",
        "tests/runs/test_code_changes.py",
        "tests/profiling/",
        "tests/cli/test_cli_alternatives.py",
        "tests/cli/test_cli_compare.py",
        "tests/cli/test_cli_overrides_and_sweeps.py",
        "tests/test_metrics.py",
        "tests/test_probes.py",
    ),
}

# With several processes, the tests of a file run in one of them, one after the other, and so share what they begin
# with. (pytest-xdist's own mark for this, `xdist_group`, has no effect with pytest 9.2.)
WHOLE_FOLDERS = ("tests/ui/", "tests/on_ray/")  # they share a browser, a Ray
BY_METHOD = ("tests/methods/test_battery.py", "tests/engines/test_engines_agree.py")  # `[method-what is tested]`
EACH_ALONE = ("tests/cli/test_cli_runs.py", "tests/models/", "tests/deploy/test_no_telemetry.py")


def always_if(chosen: bool) -> list[pytest.MarkDecorator]:
    """Return the marks of a case that always runs if it was chosen, and otherwise with `--all-methods` only."""
    return [] if chosen else [pytest.mark.all_methods]


def marks(test: str) -> list[str]:
    """Return the marks of a test from its id."""
    return [mark for mark, files in SLOW.items() if test.startswith(files)]


def priority(test: str) -> int:
    """Return a number by which tests are sorted: slow tiers first."""
    files = [file for group in SLOW.values() for file in group]
    return next((place for place, file in enumerate(files) if test.startswith(file)), len(files))


def together(test: str) -> str:
    """Return what a test runs together with, from its id."""
    file, _, name = test.partition("::")
    for folder in WHOLE_FOLDERS:
        if file.startswith(folder):
            return folder
    if file in BY_METHOD and "-" in name:
        return f"{file}::{name.rpartition('-')[0]}"
    return test if file.startswith(EACH_ALONE) else file

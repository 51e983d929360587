"""Deployments need Flower, which is an extra. Without it, most of these tests are not collected."""

from __future__ import annotations

import importlib.util
from pathlib import Path

WITHOUT_FLOWER = {"test_site_federation.py"}
TESTS = {file.name for file in Path(__file__).parent.glob("test_*.py")}

collect_ignore = [] if importlib.util.find_spec("flwr") else sorted(TESTS - WITHOUT_FLOWER)

"""Deployments need Flower, which is an extra: without it these tests are left out."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]

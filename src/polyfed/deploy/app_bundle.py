"""The app that a Flower run must bring: a file that only points at the installed polyfed, the same at every site.

Sites compare its hash with that of their own and run nothing else. It is written without compression, so that its
bytes depend on nothing but the version of polyfed.
"""

from __future__ import annotations

import hashlib
import io
import zipfile

import polyfed

DESCRIPTION = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "polyfed-app"
version = "{version}"
description = "Points at the installed polyfed; holds no code."
license = "Apache-2.0"
dependencies = ["polyfed=={version}"]

[tool.flwr.app]
publisher = "polyfed"

[tool.flwr.app.components]
serverapp = "polyfed.deploy.server_app:app"
clientapp = "polyfed.deploy.client_app:app"

[tool.flwr.app.config]
{config}"""


def description(config: str = "") -> str:
    """The app's pyproject.toml."""
    return DESCRIPTION.format(version=polyfed.__version__, config=config)


def bundle() -> bytes:
    """What Flower calls a FAB: a zip file with the description and a list of what is in it."""
    text = description().encode()
    listed = f"pyproject.toml,{hashlib.sha256(text).hexdigest()},{len(text) * 8}".encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("pyproject.toml", text), (".info/CONTENT", listed)):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return made.getvalue()


def bundle_hash() -> str:
    """By which sites know it."""
    return hashlib.sha256(bundle()).hexdigest()

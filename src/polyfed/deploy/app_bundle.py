"""The Flower app bundle (FAB) of polyfed: it only points at the installed package, and is the same at every site.

Sites compare its hash with that of their own and run nothing else. The archive is not compressed, so that its bytes
depend only on the version of polyfed.
"""

from __future__ import annotations

import hashlib
import io
import zipfile

import polyfed

PYPROJECT = """[build-system]
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


def app_pyproject(config: str = "") -> str:
    """Return the app's pyproject.toml, with lines of TOML for the app's config."""
    return PYPROJECT.format(version=polyfed.__version__, config=config)


def build_app() -> bytes:
    """Return the app bundle: a zip file with the pyproject.toml and a list of contents."""
    text = app_pyproject().encode()
    contents = f"pyproject.toml,{hashlib.sha256(text).hexdigest()},{len(text) * 8}".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("pyproject.toml", text), (".info/CONTENT", contents)):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def app_hash() -> str:
    """Return the hash by which sites recognise the bundle."""
    return hashlib.sha256(build_app()).hexdigest()

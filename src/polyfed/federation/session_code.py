"""Code of this session that a run needs: collected for a new run, and imported again for an old one."""

from __future__ import annotations

import sys

from polyfed.config import Config, code_digest
from polyfed.errors import InputError
from polyfed.federation.resumed_objects import check_objects_exist
from polyfed.runs.folder import RunFolder


def with_user_code(config: Config) -> Config:
    """Return the config with the code that workers need to know its models and method."""
    if "torch" not in sys.modules:
        return config  # nothing can have been registered
    from polyfed.federation.user_code import collect_user_code, fingerprints_as_code
    from polyfed.federation.user_imports import check_current

    try:
        config = config.with_user_code(collect_user_code(config))
    except InputError:
        if config.engine.name != "serial":
            raise
        return config.with_user_code(fingerprints_as_code(config))  # everything is in this process
    check_current({*code_digest.code_digests(config)} - {*code_digest.file_digests(config.imports)})
    return config


def import_user_code(config: Config, folder: RunFolder) -> None:
    """Import the user code of a run that is resumed, unless this process has the same code."""
    from polyfed.federation.user_code import collect_user_code, fingerprints_as_code
    from polyfed.federation.user_imports import import_user_modules

    import_user_modules(config.imports)
    if config.user_code:
        try:
            present = collect_user_code(config)
        except InputError:
            present = fingerprints_as_code(config)
        if present != config.user_code:
            import_user_modules([str(folder.user_code_file.resolve())], again=True)
    check_objects_exist(config, folder.path)

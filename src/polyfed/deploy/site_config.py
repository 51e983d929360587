"""Configs between coordinator and site: a coordinator sends only what is public, a site trusts none of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from polyfed.config import Config, parse
from polyfed.errors import InputError

FILE_OPTIONS = ("source", "checkpoint")  # options of methods that name files, which only the server opens
AT_COORDINATOR = "at-the-coordinator"  # in place of the name of such a file
LOCAL_KEYS = ("imports", "track", "versions")  # of a config, which concern one machine
MAX_PIXELS = 3 * 1024 * 1024  # values of one image, to which a site resizes its own images


def public_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without what concerns one machine: imports, trackers, and paths of files."""
    public = {key: value for key, value in settings.items() if key not in LOCAL_KEYS}
    if isinstance(method := public.get("method"), Mapping):
        public["method"] = {
            key: AT_COORDINATOR if key in FILE_OPTIONS and value else value for key, value in method.items()
        }
    models = public.get("models")
    if isinstance(models, Mapping):
        public["models"] = {**models, "start": None}  # sites choose their own (`polyfed join --start`)
    engine = public.get("engine")
    if isinstance(engine, Mapping):  # sites choose their own device (`polyfed join --device`)
        public["engine"] = {**engine, "device": "auto", "device_memory": "auto"}
    return {**public, "data": {**public.get("data", {}), "root": None, "tokenizer": None}}


def parse_received_config(settings: Mapping[str, Any]) -> Config:
    """Parse a config from a coordinator. Nothing in it makes this machine import a module or open a file."""
    config = parse(public_config(settings), "the coordinator's config")
    if "path" in config.data.partition:
        raise InputError("the config names a partition file; a site opens no file that a coordinator names")
    if config.data.shape is not None and math.prod(config.data.shape) > MAX_PIXELS:
        raise InputError(f"data.shape is {config.data.shape}; a site makes no images of over {MAX_PIXELS} values")
    return config

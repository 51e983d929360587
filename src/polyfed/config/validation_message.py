"""Turn a pydantic validation error into one sentence that names the key, the value and what is expected."""

from __future__ import annotations

from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError

from polyfed.config.key_names import all_keys, meant_key
from polyfed.errors import nearest


def validation_message(error: ValidationError, root: type[BaseModel]) -> str:
    """Describe the first problem in a config; `root` is the model that was validated."""
    problem = error.errors()[0]
    keys = _config_keys(problem["loc"], root)
    if problem["type"] == "extra_forbidden":
        section = _section_at(keys[:-1], root)
        known = [field.alias or name for name, field in section.model_fields.items()]
        inside = f" in '{'.'.join(keys[:-1])}'" if keys[:-1] else ""
        meant = meant_key(".".join(keys), all_keys(root))
        hint = nearest(keys[-1], known) if meant is None else f"did you mean '{meant}'?"
        if meant == keys[-1] and "." in meant:  # a dotted key, which only command lines have
            first, _, rest = meant.partition(".")
            hint = f"write a mapping: {first}: {{{rest}: ...}}"
        return f"unknown key '{keys[-1]}'{inside}; {hint}"
    reason = problem["msg"].removeprefix("Value error, ")
    reason = (reason[0].lower() + reason[1:]).replace("input should be", "expected")
    return f"{'.'.join(keys)} is {problem['input']!r}: {reason}"


def _config_keys(location: tuple[int | str, ...], root: type[BaseModel]) -> list[str]:
    """Return the config keys in an error's location, without the names of union members that pydantic adds."""
    section: type[BaseModel] | None = root
    user_key = (
        False  # whether the next key is chosen by the user, such as a field name under `privacy`, or a position
    )
    keys: list[str] = []
    for part in location:
        if user_key:
            keys.append(str(part))
            user_key = False
            continue
        if section is None:
            if keys[-1:] != [str(part)] and isinstance(part, int):
                keys.append(str(part))
            continue
        keys.append(str(part))
        section, user_key = _subsection(section, part)
    return keys


def _section_at(keys: list[str], root: type[BaseModel]) -> type[BaseModel]:
    section = root
    user_key = False
    for key in keys:
        if user_key:
            user_key = False
            continue
        inner, user_key = _subsection(section, key)
        if inner is None:
            break
        section = inner
    return section


def _subsection(section: type[BaseModel], key: int | str) -> tuple[type[BaseModel] | None, bool]:
    """Return the section under a key, and whether the key holds a dict or list of such sections."""
    field = next((f for n, f in section.model_fields.items() if (f.alias or n) == key), None)
    annotation = field.annotation if field is not None else None
    for part in (annotation, *get_args(annotation)):
        inner = get_args(part)[-1] if get_origin(part) in (dict, list) else part
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return inner, inner is not part
    return None, False

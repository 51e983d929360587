"""Messages about a wrong command line: one sentence with the right spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from polyfed.errors import closest


def usage_message(error: click.ClickException, arguments: Sequence[str]) -> str:
    """Return the message of a wrong command line."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else "polyfed"
    if isinstance(error, click.NoSuchOption) and context is not None:
        return f"{command}: {_unknown_option(error.option_name, context.command, arguments)}"
    unknown = re.match(r"No such command '(.*?)'\.", error.message)
    if unknown is not None:
        return f"{command}: {_unknown_command(unknown[1], context)}"
    return f"{command}: {error.format_message()}"


def _unknown_option(option: str, command: click.Command, arguments: Sequence[str]) -> str:
    """Suggest an option of the command, or the config key that the user meant."""
    name = option.lstrip("-")
    options = [text.lstrip("-") for p in command.params for text in p.opts if text.startswith("--")] + ["help"]
    if name + "s" in options:  # --seed for --seeds: a sweep takes no override of the seed
        return f"there is no option {option}; did you mean --{name}s?"
    key = _config_key(name) if any(p.name in ("overrides", "axes") for p in command.params) else None
    if key is not None:
        value = _value_of(option, arguments)
        return f"there is no option {option}; to set the config key, write {key}={value}"
    match = closest(name, options)
    hint = f"did you mean --{match}?" if match is not None else f"see polyfed {command.name} --help"
    return f"there is no option {option}; {hint}"


def _config_key(name: str) -> str | None:
    from polyfed.config.config import Config
    from polyfed.config.key_names import all_keys, meant_key

    keys = all_keys(Config)
    key = name.replace("-", "_")
    if key in keys or name in keys:
        return key if key in keys else name
    return meant_key(key, keys)


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """Return the value that the user gave to an option, as `--option=value` or as the next argument."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option and equals:
            return value
        if argument == option and position + 1 < len(arguments) and not arguments[position + 1].startswith("--"):
            return arguments[position + 1]
    return "VALUE"


def _unknown_command(name: str, context: click.Context | None) -> str:
    known = context.command.list_commands(context) if context and isinstance(context.command, click.Group) else []
    match = closest(name, known)
    hint = f"did you mean '{match}'?" if match is not None else f"known: {', '.join(known)}"
    return f"there is no command '{name}'; {hint}"

"""Trained weights that clients start from (`models.start`), also in workers that cannot read the user's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from polyfed.core.method import Method
from polyfed.errors import InputError
from polyfed.models.weight_files import check_weights, load_weights, read_tensors, split_names

START_FILE = "start.safetensors"  # the weights of all clients, for workers


class StartWeights:
    """Weights by client name. The main process reads the user's files; workers read the file of `write`."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)
        self._positions = {file: number for number, file in enumerate(dict.fromkeys(files.values()))}
        self._shipped: dict[int, dict[str, Tensor]] = {}  # in workers: by position of the file

    def __bool__(self) -> bool:
        return bool(self._files)

    def load_into(self, model: nn.Module, client: str) -> None:
        """Load the weights of a client into its model. Without weights the model stays as it is."""
        if client in self._files:
            weights = self._weights(client)
            load_weights(model, split_names(weights, model.state_dict()), self._title(client))

    def check(self, client: str, model: nn.Module) -> None:
        """Raise `InputError` if the weights of a client do not fit its model, which may be on the meta device."""
        if client in self._files:
            expected = model.state_dict()
            check_weights(expected, split_names(self._weights(client), expected), self._title(client))

    def check_method(self, method: Method) -> None:
        """Raise `InputError` for methods whose clients do not start from models of their own."""
        if self._files and method.one_model:
            raise InputError(
                f"models.start gives clients weights to start from, but the clients of {type(method).__name__} start "
                "from the server's model; remove models.start, or choose a method for different architectures"
            )

    def write(self, file: Path) -> dict[str, int]:
        """Write the weights of all clients to one file. Return the position of each client's weights in it."""
        from safetensors.torch import save_file

        tensors = {
            f"{position}/{name}": tensor
            for path, position in self._positions.items()
            for name, tensor in read_tensors(path).items()
        }
        save_file(tensors, file) if tensors else file.write_bytes(b"")
        return {client: self._positions[path] for client, path in self._files.items()}

    @classmethod
    def from_workers_file(cls, file: Path, positions: Mapping[str, int]) -> StartWeights:
        """Read what `write` wrote. The tensors are memory-mapped, also after the file is deleted."""
        from safetensors import safe_open

        weights = cls({})
        if positions:
            weights._files = {client: Path(str(position)) for client, position in positions.items()}
            with safe_open(file, "pt") as opened:
                for key in opened.keys():  # noqa: SIM118 - not a mapping
                    position, _, name = key.partition("/")
                    weights._shipped.setdefault(int(position), {})[name] = opened.get_tensor(key)
        return weights

    def _weights(self, client: str) -> Mapping[str, Tensor]:
        file = self._files[client]
        return self._shipped[int(file.name)] if self._shipped else read_tensors(file)

    def _title(self, client: str) -> str:
        return f"models.start of client {client} ({self._files[client]})"

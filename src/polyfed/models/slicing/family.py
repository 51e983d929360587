"""A server model and the sub-models that clients train, with cached positions of each sub-model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from polyfed.models.slicing.cutting import cut, skeleton
from polyfed.models.slicing.index import Cut, Index, Rule, extract, prefix
from polyfed.models.split import SplitModel


class Family:
    """The architectures of a federation by spec. The largest one, `whole`, is the server model.

    With `apart`, nothing is cut: the server holds one copy of every architecture, and tensor names start with the
    architecture's number. Clients then share weights only with clients of the same architecture.
    """

    def __init__(
        self, whole: str, members: Iterable[str], *, shape: tuple[int, ...], classes: int, apart: bool = False
    ) -> None:
        self.whole = whole
        self.members = tuple(sorted({*members}))
        self.apart = apart
        self._shape, self._classes = shape, classes
        self._skeletons: dict[str, SplitModel] = {}
        self._cuts: dict[str, dict[str, Index]] = {}

    @property
    def split(self) -> bool:
        """Whether any member is smaller than the server model."""
        return self.apart or any(spec != self.whole for spec in self.members)

    def skeleton(self, spec: str | None = None) -> SplitModel:
        """Return a model on the meta device: the server model, or that of `spec`."""
        spec = spec or self.whole
        if spec not in self._skeletons:
            self._skeletons[spec] = skeleton(spec, shape=self._shape, classes=self._classes)
        return self._skeletons[spec]

    def name(self, spec: str, tensor: str) -> str:
        """Return the server's name of a member's tensor."""
        return f"{self.members.index(spec)}.{tensor}" if self.apart else tensor

    def cut(self, spec: str, rule: Rule = prefix) -> Cut:
        """Return the positions of a member's tensors in the server model, by the server's tensor names.

        Raises InputError if the member is not a slice of the server model.
        """
        if self.apart:
            return {self.name(spec, n): (None,) * t.ndim for n, t in self.skeleton(spec).state_dict().items()}
        if rule is not prefix:
            return cut(self.skeleton(), self.skeleton(spec), rule)
        if spec not in self._cuts:
            self._cuts[spec] = cut(self.skeleton(), self.skeleton(spec), rule)
        return self._cuts[spec]

    def take(self, weights: Mapping[str, Tensor], spec: str, rule: Rule = prefix) -> dict[str, Tensor]:
        """Copy a member's weights out of the server's. Tensors that are missing from `weights` are skipped."""
        prefix_length = len(self.name(spec, ""))
        indices = {name: index for name, index in self.cut(spec, rule).items() if name in weights}
        return {name[prefix_length:]: part for name, part in extract(weights, indices).items()}

    def put(self, weights: Mapping[str, Tensor], spec: str) -> dict[str, Tensor]:
        """Return a member's weights under the server's tensor names."""
        return {self.name(spec, name): tensor for name, tensor in weights.items()}

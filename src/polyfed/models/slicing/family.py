"""One server model and the sub-models that clients hold of it: where each lies, worked out once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from polyfed.models.slicing.cutting import cut, skeleton
from polyfed.models.slicing.index import Cut, Index, Rule, extract, prefix
from polyfed.models.split import SplitModel


class Family:
    """Architectures by their specs, the largest of which is the server's model.

    With `apart`, nothing is cut: the server's model is one copy of every architecture, side by side, under names
    that begin with the architecture's number, so that equal architectures share and others do not.
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
        """Whether any member holds less than the server's model."""
        return self.apart or any(spec != self.whole for spec in self.members)

    def skeleton(self, spec: str | None = None) -> SplitModel:
        """An architecture without memory for its weights; without a spec, the server's."""
        spec = spec or self.whole
        if spec not in self._skeletons:
            self._skeletons[spec] = skeleton(spec, shape=self._shape, classes=self._classes)
        return self._skeletons[spec]

    def name(self, spec: str, tensor: str) -> str:
        """What a member's tensor is called at the server."""
        return f"{self.members.index(spec)}.{tensor}" if self.apart else tensor

    def cut(self, spec: str, rule: Rule = prefix) -> Cut:
        """Where a member's tensors lie in the server's model, by their names there; refused if it is no slice."""
        if self.apart:
            return {self.name(spec, n): (None,) * t.ndim for n, t in self.skeleton(spec).state_dict().items()}
        if rule is not prefix:
            return cut(self.skeleton(), self.skeleton(spec), rule)
        if spec not in self._cuts:
            self._cuts[spec] = cut(self.skeleton(), self.skeleton(spec), rule)
        return self._cuts[spec]

    def take(self, weights: Mapping[str, Tensor], spec: str, rule: Rule = prefix) -> dict[str, Tensor]:
        """A member's weights, copied out of the server's; of what is laid out alike but holds less, what there is."""
        start = len(self.name(spec, ""))
        places = {name: index for name, index in self.cut(spec, rule).items() if name in weights}
        return {name[start:]: part for name, part in extract(weights, places).items()}

    def put(self, weights: Mapping[str, Tensor], spec: str) -> dict[str, Tensor]:
        """A member's weights under the names that they have at the server."""
        return {self.name(spec, name): tensor for name, tensor in weights.items()}

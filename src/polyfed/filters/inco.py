"""InCo Aggregation: internal cross-layer gradients for extending homogeneity to heterogeneity in federated learning.

Chan, Zhou, Zhao, Jiang, Ngai; ICLR 2024, Algorithm 1 and Theorem 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from polyfed.core.filter import ServerFilter, Update, register
from polyfed.core.payload import Weights
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.filters.pairing import Pairs, pairs, refuse

TINY = 1e-12  # norms below carry nothing (5)


@register("inco")
@dataclass(frozen=True)
class InCo(ServerFilter):
    """InCo: mixes the update of a stage's first layer into those of its deeper layers of the same shape.

    The theorem, the algorithm box and the released code are three rules, which differ where the two updates point the
    same way: `theorem` leaves the deep update alone, `algorithm1` takes the shallow direction out of it, `abs_ref`
    (the released code, with its hidden limits of 5 on the coefficient and 0.1 on entries) adds more of it.
    """

    rule: Literal["abs_ref", "abs", "theorem", "algorithm1", "sum", "off"] = "abs_ref"  # 3.1; sum: no optimisation
    normalise: bool = True  # mix directions and give the result the mean of both lengths
    granularity: Literal["auto", "kernel", "tensor"] = "auto"  # auto: kernel for abs_ref, tensor for the others
    pairing: Literal["auto", "resnet_ref", "resnet_paper", "vit_norm", "generic"] = "auto"  # who receives from whom
    max_theta: Annotated[float, Gt(0)] = 5.0  # abs_ref: largest coefficient
    max_entry: Annotated[float, Gt(0)] = 0.1  # abs_ref, normalised: largest entry of the result
    allow_injection: bool = False  # sum: let an update of length zero receive the shallow one all the same
    control: Literal["none", "permuted", "gaussian", "other_stage", "length"] = "none"  # meaningless anchors

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.control == "length" and not (self.rule == "off" and self.normalise):
            raise InputError(
                f"server_filter.control is 'length', which changes the length of updates alone, with rule: "
                f"{self.rule} and normalise: {str(self.normalise).lower()}; it needs rule: off and normalise: true"
            )

    def check(self, server: Server) -> None:
        self._pairs(server)

    def apply(self, server: Server, update: Update) -> Weights:
        change = dict(update.change)
        facts: list[tuple[str, Tensor, Tensor]] = []
        matched = self._pairs(server)
        anchors = list(dict.fromkeys(anchor for _, anchor in matched if anchor in change))
        for target, anchor in matched:
            if target not in update.change:
                continue  # nobody in this round owns it
            # Anchors are as shallow as their targets or shallower, so that whoever owns a target owns its anchor (5).
            assert anchor in update.change, f"'{target}' was trained in this round, but its anchor '{anchor}' was not"
            g_k, g_0 = update.change[target], update.change[anchor]  # as they were before any replacement
            owned = update.weight[target] > 0
            if self.control not in ("none", "length"):
                other = anchors[(anchors.index(anchor) + 1) % len(anchors)]
                g_0 = self._meaningless(server.stream(f"inco {target}"), g_0, owned, update.change[other])
            change[target], theta, beta = self.mix(g_k, g_0, owned=None if bool(owned.all()) else owned)
            facts.append((target, theta, beta))
        if facts:
            server.record(
                "inco",
                layers=[name for name, _, _ in facts],
                theta=[float(theta) for _, theta, _ in facts],
                beta=[float(beta.mean()) for _, _, beta in facts],
                positive=[float((beta > 0).double().mean()) for _, _, beta in facts],
            )
        return change

    def mix(self, g_k: Tensor, g_0: Tensor, owned: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """What becomes of g_k, the mean coefficient on g_0, and every beta. Only owned positions take part."""
        deep, shallow = self._slices(g_k.double()), self._slices(g_0.double())
        mask = None if owned is None else self._slices(owned.expand(g_k.shape))
        if mask is not None:
            deep, shallow = deep * mask, shallow * mask
        alpha, beta = (shallow * shallow).sum(1, keepdim=True), (shallow * deep).sum(1, keepdim=True)  # Eq. (2)
        n_0, n_k = alpha.sqrt(), deep.norm(dim=1, keepdim=True)
        has_0, has_k = n_0 >= TINY, n_k >= TINY
        both = has_0 & has_k
        cosine = _divided(beta, n_0 * n_k, both)
        raw = _divided(beta, alpha, both)
        theta = self._coefficient(cosine if self.normalise else raw, raw)
        if not (self.rule == "sum" and self.allow_injection):
            theta = theta * has_k  # what has no update of its own receives none (5)
        if not self.normalise:
            mixed = deep + theta * shallow
        elif self.rule == "off" and self.control != "length":
            mixed = deep
        else:
            length = (n_0 + n_k) / 2  # of before normalisation
            mixed = (_divided(deep, n_k, has_k) + theta * _divided(shallow, n_0, has_0)) * length
        if self.rule == "abs_ref" and self.normalise:
            mixed = mixed.clamp(-self.max_entry, self.max_entry)
        untouched = ~has_0 | (theta == 0) if not self.normalise else ~has_0
        result = torch.where(untouched, deep, mixed)  # bit for bit where there is nothing to do
        if mask is not None:
            result = torch.where(mask, result, self._slices(g_k.double()))
        return result.reshape(g_k.shape).to(g_k.dtype), theta.mean(), beta

    def _coefficient(self, theta: Tensor, raw: Tensor) -> Tensor:
        """What g_0 is multiplied by before it is added (3.1); theta is c of normalised tensors, else beta/alpha."""
        if self.rule == "abs_ref":
            return raw.abs().clamp(max=self.max_theta)  # from raw tensors, whatever is normalised (C2)
        if self.rule == "abs":
            return theta.abs()
        if self.rule == "theorem":
            return -theta.clamp(max=0)
        if self.rule == "algorithm1":
            return -theta
        return torch.ones_like(theta) if self.rule == "sum" else torch.zeros_like(theta)

    def _slices(self, tensor: Tensor) -> Tensor:
        """One row for all that shares its inner products: a kernel of a convolution, or the whole tensor."""
        by_kernel = self.granularity == "kernel" or (self.granularity == "auto" and self.rule == "abs_ref")
        if by_kernel and tensor.ndim > 2:
            return tensor.reshape(tensor.shape[0] * tensor.shape[1], -1)
        return tensor.reshape(1, -1)

    def _meaningless(self, stream: torch.Generator, g_0: Tensor, owned: Tensor, elsewhere: Tensor) -> Tensor:
        """Controls of the anchor's length: its entries in another order, noise, or another stage's anchor."""
        entries, replaced = g_0[owned], torch.zeros_like(g_0)
        if self.control == "permuted":
            replaced[owned] = entries[torch.randperm(len(entries), generator=stream)]
            return replaced
        if self.control == "gaussian":
            drawn = torch.randn(entries.shape, generator=stream, dtype=g_0.dtype)
        else:  # of another shape, so that its entries are taken over and over
            others = elsewhere.reshape(-1)
            drawn = others.repeat(-(-len(entries) // len(others)))[: len(entries)]
        length = drawn.norm()
        replaced[owned] = drawn * (entries.norm() / length if length >= TINY else 0.0)
        return replaced

    def _pairs(self, server: Server) -> Pairs:
        family = server.family
        if family is None:
            raise InputError("server_filter inco needs a server model that can be taken apart; this one is not known")
        members = family.members if family.apart else (family.whole,)
        found = tuple(
            (family.name(spec, target), family.name(spec, anchor))
            for spec in members
            for target, anchor in pairs(family.skeleton(spec), self.pairing)
        )
        if not found:
            refuse(self.pairing, members)
        if self.control == "other_stage" and len({anchor for _, anchor in found}) < 2:
            raise InputError(
                "server_filter.control is 'other_stage', but all layers of this model have the same anchor; use "
                "control: permuted or gaussian"
            )
        return found


def _divided(value: Tensor, by: Tensor, where: Tensor) -> Tensor:
    """A quotient, and zero where there is nothing to divide by."""
    return torch.where(where, value / torch.where(where, by, torch.ones_like(by)), torch.zeros_like(value))

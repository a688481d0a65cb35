"""Settings of the one-shot mechanisms, of `pay_what_you_get` and of `meta`.

`k` is the most items shown at a tick, `kbar` the number of candidates, the largest items.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, cast

from msgspec import Meta

from workers.mechanisms.config.histogram import Domain, HistogramConfig
from workers.mechanisms.one_shot.algorithms import (
    KNOWN,
    LIMITED,
    PICKING,
    Name,
    Parameters,
)

_COUNT = "a whole number from 1 to 100,000"
_EVERY = 'a whole number of ticks from 1 to 100,000, or a duration such as "1h"'
Count = Annotated[int, Meta(ge=1, le=100_000, description=_COUNT)]
Kbar = Annotated[
    Count | Literal["private"],
    Meta(description=f'{_COUNT}, or "private": chosen from k to kbar_max'),
]
KBAR_MAX = 1000


class ReleasingConfig(HistogramConfig, frozen=True, kw_only=True):
    def parameters(self) -> Parameters:
        """Return the algorithm's parameters; k and kbar are 0 where this mechanism lacks them."""
        kbar = getattr(self, "kbar", None) or 0
        private = kbar == "private"
        return Parameters(
            max_items=self.max_items,
            max_count=self.max_count,
            k=getattr(self, "k", None) or 0,
            kbar=(getattr(self, "kbar_max", None) or KBAR_MAX) if private else kbar,
            private=private,
            domain=len(self.declared),
        )

    def _parameter_complaints(self, name: str) -> Iterator[str]:
        p = self.parameters()
        kbar_max = getattr(self, "kbar_max", None)
        if name == "limit_dom" and p.k > p.kbar:
            yield f"k = {p.k}: at most {'kbar_max' if p.private else 'kbar'} = {p.kbar}"
        if name == "known_gumbel" and p.k > p.domain:
            yield f"k = {p.k}: at most the {p.domain} labels of the domain"
        if kbar_max is not None and not p.private:
            yield f'kbar_max = {kbar_max}: only with kbar = "private"'


class OneShotConfig(ReleasingConfig, frozen=True, kw_only=True):
    @property
    def algorithm(self) -> Name:
        return cast(Name, self.mechanism)

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        yield from self._parameter_complaints(self.mechanism)


class KnownGaussConfig(OneShotConfig, frozen=True, kw_only=True, tag="known_gauss"):
    domain: Domain


class KnownGumbelConfig(OneShotConfig, frozen=True, kw_only=True, tag="known_gumbel"):
    domain: Domain
    k: Count


class PositiveLaplaceConfig(
    OneShotConfig, frozen=True, kw_only=True, tag="positive_laplace"
):
    """Items that occur and whose count with Laplace noise exceeds a threshold."""


class PositiveGaussConfig(
    OneShotConfig, frozen=True, kw_only=True, tag="positive_gauss"
):
    """Items that occur and whose count with Gaussian noise exceeds a threshold."""


class UnkGaussConfig(OneShotConfig, frozen=True, kw_only=True, tag="unk_gauss"):
    kbar: Count


class LimitDomLaplaceConfig(
    OneShotConfig, frozen=True, kw_only=True, tag="limit_dom_laplace"
):
    kbar: Count


class LimitDomConfig(OneShotConfig, frozen=True, kw_only=True, tag="limit_dom"):
    k: Count
    kbar: Kbar
    kbar_max: Count | None = None


class PayWhatYouGetConfig(
    ReleasingConfig, frozen=True, kw_only=True, tag="pay_what_you_get"
):
    """An epoch has at most l* `queries` and k* `labels`, BOTTOM included; an answer, `k` labels."""

    k: Count
    kbar: Kbar
    kbar_max: Count | None = None
    labels: Count
    queries: Count
    every: Annotated[int, Meta(ge=1, le=100_000, description=_EVERY)] = 1

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        yield from self._parameter_complaints("limit_dom")
        if self.k > self.labels:
            yield f"k = {self.k}: at most labels = {self.labels}"
        if self.kbar == "private" and self.labels == 1:
            yield 'labels = 1: at least 2 with kbar = "private", since each choice of kbar is charged as one'
        if self.horizon_ticks is not None and self.every > self.horizon_ticks:
            yield f"every = {self.every}: nothing would ever be asked within horizon = {self.horizon_ticks}"


class MetaConfig(ReleasingConfig, frozen=True, kw_only=True, tag="meta"):
    algorithm: Name
    counter: Literal["tree"] = "tree"
    domain: Domain | None = None
    k: Count | None = None
    kbar: Count | None = None

    def complaints(self) -> Iterator[str]:
        if self.horizon == "unbounded":
            yield 'horizon = "unbounded": mechanism = "meta" needs a number of ticks'
        yield from super().complaints()
        for field, value, users in (
            (self.domain_from, self.domain, KNOWN),
            ("k", self.k, PICKING),
            ("kbar", self.kbar, LIMITED),
        ):
            if (value is None) is (self.algorithm in users):
                state, need = (
                    ("missing", "needs it") if value is None else ("set", "has none")
                )
                yield f'{field} is {state}: algorithm = "{self.algorithm}" {need}'
        yield from self._parameter_complaints(self.algorithm)

"""What the settings of the one-shot mechanisms, of `pay_what_you_get` and of `meta` share.

`k` is the most items shown at a tick, `kbar` the number of candidates, the largest items.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.one_shot.algorithms import Parameters

_COUNT = "a whole number from 1 to 100,000"
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

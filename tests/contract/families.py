"""Which adapter belongs to which mechanism name."""

from __future__ import annotations

from tests.contract.adapters import Counting, OneShots, Paying, Sketches, Sparse
from tests.contract.adapters_max import Maxima
from tests.contract.coupling import Adapter
from tests.contract.variants import Variant, built
from workers.mechanisms.mechanism import Mechanism

ADAPTERS: dict[str, type[Adapter]] = {
    "known_base": Counting,
    "unk_base": Counting,
    "meta": OneShots,
    "sparse_gumb": Sparse,
    "bounded_max": Maxima,
    "doubling": Maxima,
    "two_level": Maxima,
    "two_level_k": Maxima,
    "misra_gries": Sketches,
    "known_gauss": OneShots,
    "known_gumbel": OneShots,
    "unk_gauss": OneShots,
    "limit_dom": OneShots,
    "limit_dom_laplace": OneShots,
    "positive_laplace": OneShots,
    "positive_gauss": OneShots,
    "pay_what_you_get": Paying,
}


def adapter_of(variant: Variant, mechanism: Mechanism | None = None) -> Adapter:
    """The adapter of a variant, around its mechanism or another one of the same kind."""
    return ADAPTERS[variant.mechanism](variant, mechanism or built(variant))

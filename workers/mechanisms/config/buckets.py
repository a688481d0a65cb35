"""Buckets: a declared domain of half-open intervals, for numeric items.

Of n edges, bucket 0 is below the first, bucket n at or above the last, and bucket k is [edge k - 1,
edge k).

    buckets = [0, 10, 50, 100]                          "<0" "[0,10)" "[10,50)" "[50,100)" ">=100"
    buckets = { from = 0, to = 500, count = 20 }        20 intervals of one width
    buckets = { from = 1, to = 1000, count = 9, scale = "log" }   of one ratio

Edges are public, and decimal arithmetic gives the same ones on every machine. Inner edges between
`from` and `to` are rounded: of one width to 6 significant digits of it, of one ratio to the fewest
digits, from 2 to 6, that move no edge by more than a tenth of a bucket.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal, localcontext

import msgspec

# Their buckets are as many as the noise of ranks takes at most.
EDGES_MAX = 4_095
QUANTILES_MAX = 20
SCALES = ("linear", "log")
ALLOWED = (
    "a list of 2 to 4,095 numbers, each above the one before, such as [0, 10, 50], "
    'or { from = 0, to = 500, count = 20, scale = "linear" }'
)
_EXACT = Context(prec=60)
_DIGITS = tuple(Context(prec=digits) for digits in range(2, 7))


class Buckets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The 2 to 4,095 edges of a histogram's buckets: finite and strictly ascending."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        """Convert the edges to floats, and raise ValueError for the first fault."""
        # 1 and 1.0 are the same edge: all are floats, in names of labels and in ids.
        msgspec.structs.force_setattr(self, "edges", tuple(map(float, self.edges)))
        for complaint in _complaints(self.edges):
            raise ValueError(complaint)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the buckets' labels, such as "<0", "[0,10)", ">=10": the declared domain."""
        texts = [short(edge) for edge in self.edges]
        between = (f"[{low},{high})" for low, high in itertools.pairwise(texts))
        return (f"<{texts[0]}", *between, f">={texts[-1]}")


def short(number: float) -> str:
    """Return the shortest text that reads back as this number, whole numbers without a point."""
    return repr(number).removesuffix(".0")


def parse_buckets(value: object) -> Buckets:
    """Return the buckets of a settings file, or raise `ValueError` with the allowed values."""
    if isinstance(value, list):
        edges = enumerate(value, 1)
        return Buckets(
            tuple(_number(edge, f"the edge at place {place}") for place, edge in edges)
        )
    if isinstance(value, dict):
        return Buckets(_between(value))
    raise ValueError(ALLOWED)


def _complaints(edges: tuple[float, ...]) -> Iterator[str]:
    """Yield what is wrong with edges, as the end of an error about the setting `buckets`."""
    if not 2 <= len(edges) <= EDGES_MAX:
        yield f"{len(edges):,} given: {ALLOWED}"
    for edge in edges:
        if not math.isfinite(edge):
            yield f"{edge} is not an edge: edges are finite; values below the first or above the last have their own buckets"
        if edge == 0 and math.copysign(1, edge) < 0:
            yield "-0.0 is no edge: write 0"
    for place, (low, high) in enumerate(itertools.pairwise(edges), 2):
        if low >= high:
            yield f"{short(high)} at place {place} is not above {short(low)} before it: each edge above the one before"


def _number(value: object, what: str) -> float:
    """Return an edge as a float; refuse a number that no float is equal to.

    `what` names it in the error.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} is no number: {ALLOWED}")  # noqa: TRY004 - of a settings file
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} is too large: numbers below 1.8e308") from None
    if isinstance(value, int) and int(number) != value:
        raise ValueError(
            f"{what} has too many digits: whole numbers up to 2^53 are exact"
        )
    return number or 0.0  # 0 for -0.0


def _between(values: Mapping[str, object]) -> tuple[float, ...]:
    """Return the edges of a table: `from`, `to`, and `count` - 1 inner ones of a `scale`."""
    for name in values:
        if name not in ("from", "to", "count", "scale"):
            raise ValueError(f"{name}: unknown name; one of from, to, count, scale")
    for name in ("from", "to", "count"):
        if name not in values:
            raise ValueError(f"{name} is missing: {ALLOWED}")
    first, last = (_number(values[name], name) for name in ("from", "to"))
    count = values["count"]
    scale = values.get("scale", "linear")
    if (
        isinstance(count, bool)
        or not isinstance(count, int)
        or not 1 <= count < EDGES_MAX
    ):
        raise ValueError(f"count: a whole number from 1 to {EDGES_MAX - 1:,}")
    if scale not in SCALES:
        raise ValueError('scale: "linear" or "log"')
    if not (math.isfinite(first) and math.isfinite(last) and first < last):
        ends = f"from = {short(first)} and to = {short(last)}"
        raise ValueError(f"{ends}: finite numbers, from below to")
    if scale == "log" and first <= 0:
        raise ValueError(f'from = {short(first)}: above 0 with scale = "log"')
    between = _log if scale == "log" else _linear
    with localcontext(_EXACT):
        # As written: 0.1 is a tenth here, not the nearest double.
        inner = between(Decimal(repr(first)), Decimal(repr(last)), count)
    # `or 0.0`: 0 for -0.0.
    edges = (first, *(float(edge) or 0.0 for edge in inner), last)
    if any(low >= high for low, high in itertools.pairwise(edges)):
        why = "fewer, or edges that lie next to each other become the same"
        raise ValueError(f"count = {count}: {why}")
    return edges


def _linear(low: Decimal, high: Decimal, count: int) -> list[Decimal]:
    """Return the inner edges of `count` intervals of one width, rounded to its sixth digit."""
    span = high - low
    # One unit of the width's sixth digit; edges are multiples of it.
    unit = Decimal((0, (1,), (span / count).adjusted() - 5))
    edges = (low + span * i / count for i in range(1, count))
    return [(edge / unit).to_integral_value() * unit for edge in edges]


def _log(low: Decimal, high: Decimal, count: int) -> list[Decimal]:
    """Return the inner edges of `count` intervals of one ratio, with as few digits as will do."""
    step = (high / low).ln() / count
    edges = [low * (step * i).exp() for i in range(1, count)]
    rounded = edges
    for context in _DIGITS:
        rounded = [context.plus(edge) for edge in edges]
        # A bucket is `step` wide in logarithms, in which a small share of an edge is about itself.
        pairs = zip(rounded, edges, strict=True)
        if all(abs(near - edge) <= edge * (step / 10) for near, edge in pairs):
            break
    return rounded

"""Immutability of objects shared by threads, checked when their constructor returns.

The threads of all owner partitions step one mechanism and share its tables and counters. (Two
threads once appended to a table that grew on first use, and every later pick read wrong weights.)

    Frozen     base of shared objects: the outermost constructor checks and freezes attributes
    memoized   replaces functools.cache and lru_cache: the shared results are checked
    shared     `class Own(Base, shared=False)`: one thread owns it; shared objects may not hold it
    thawed     a mutable copy, owned by one thread: it has no *seal*, the mark of a checked object
    ready      records that msgspec may validate in any thread

Allowed are numbers, texts, bytes, dates, classes; tuples and frozensets of allowed objects;
read-only mappings (`MappingProxyType` over a copy) and arrays; frozen dataclasses and msgspec
records; other `Frozen`; and `threading.local`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from threading import local
from types import BuiltinFunctionType, MappingProxyType, ModuleType, NoneType
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A", bound=np.generic)

_ATOMS = frozenset((int, float, bool, str, bytes, NoneType, Fraction))
_VALUES = (
    Decimal,
    date,
    timedelta,
    tzinfo,
    PurePath,
    np.generic,
    np.dtype,
    type,
    local,
)
# Their methods keep no state between calls (msgspec #402, in 0.16; `pyproject.toml` requires 0.20).
_JSON = msgspec.json
_MSGPACK = msgspec.msgpack
_CODECS = (_JSON.Decoder, _JSON.Encoder, _MSGPACK.Decoder, _MSGPACK.Encoder)
_MUTABLE = (list, dict, set, bytearray)


class _Sealing(type):
    """Metaclass of `Frozen`: checks classes when they are made, and objects after construction.

    It refuses lazy caches and mutable class attributes.
    """

    # `shared` of the class statement.
    _shared: bool

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        members: dict[str, Any],
        *,
        shared: bool = True,
    ) -> _Sealing:
        """Make a class from its `members`, which are checked if its objects are `shared`."""
        for member, value in members.items() if shared else ():
            # A cached_property, and a method with functools.cache, bypass __setattr__.
            is_lazy = isinstance(value, functools.cached_property)
            if is_lazy or hasattr(value, "cache_clear"):
                raise TypeError(
                    f"{name}.{member} is a lazy cache, and threads share {name}: make it in the constructor"
                )
            # Python itself keeps a class's annotations in a dict. Functions are not checked.
            is_data = isinstance(value, (*_MUTABLE, np.ndarray))
            if is_data and member != "__annotations__":
                check_frozen(value, f"{name}.{member}")
        made = super().__new__(cls, name, bases, members)
        made._shared = shared
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Construct an object; if its class is shared, check that it is immutable, and seal it."""
        made = super().__call__(*args, **kwargs)
        if cls._shared:
            for name, value in vars(made).items():
                check_frozen(value, f"{cls.__name__}.{name}")
            object.__setattr__(made, "_sealed", True)
        return made


class Frozen(metaclass=_Sealing):
    """Base of objects that threads share: once constructed, no attribute can be set."""

    # `_sealed` is not in `__dict__`, which `thawed` copies.
    __slots__ = ("__dict__", "__weakref__", "_sealed")
    _sealed: bool

    def __setattr__(self, name: str, value: object) -> None:
        self.__refuse_if_sealed(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__refuse_if_sealed(name)
        object.__delattr__(self, name)

    # Two underscores, so that no subclass overrides it.
    def __refuse_if_sealed(self, name: str) -> None:
        """Raise TypeError about attribute `name` once the constructor has returned."""
        if getattr(self, "_sealed", False):
            raise TypeError(
                f"{type(self).__name__}.{name}: threads share it, so it is immutable"
            )


def check_frozen(value: object, where: str) -> None:
    """Raise TypeError if anything reachable from a value can change.

    `where` is what the message calls it: the value itself may hold personal data.
    """
    kind = type(value)
    if kind in _ATOMS or isinstance(value, _VALUES):
        return
    if isinstance(value, (tuple, frozenset)):
        # A table has many numbers: not a call for each.
        if not _ATOMS.issuperset(map(type, value)):
            for i, part in enumerate(value):
                check_frozen(part, f"{where}[{i}]")
    elif isinstance(value, MappingProxyType):
        check_frozen(tuple(value), f"{where} (its keys)")
        check_frozen(tuple(value.values()), f"{where} (its values)")
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{where}: an array of objects can change")
        # A read-only view still changes with the array, or buffer, that it is a view of.
        base: object = value
        while isinstance(base, np.ndarray):
            if base.flags.writeable:
                raise TypeError(f"{where}: a writeable array, and threads share it")
            base = base.base
        if base is not None and not isinstance(base, bytes):
            raise TypeError(
                f"{where}: an array over a {type(base).__name__}, which can change"
            )
    elif isinstance(value, BuiltinFunctionType):
        # The object of a built-in method; of a function it is its module, or None.
        owner = getattr(value, "__self__", None)
        what = f"{where}: a method of a {type(owner).__name__}"
        if isinstance(owner, _MUTABLE):
            raise TypeError(f"{what}, which can change")
        if not isinstance(owner, (*_CODECS, ModuleType, NoneType)):
            raise TypeError(f"{what}; it is not declared safe to share between threads")
    elif isinstance(value, Frozen):
        if not getattr(value, "_sealed", False):
            raise TypeError(
                f"{where}: a {kind.__name__} that is not complete, or a thawed one"
            )
    elif (names := _fields_of_frozen(value)) is not None:
        for name in names:
            check_frozen(getattr(value, name), f"{where}.{name}")
    else:
        raise TypeError(f"{where}: a {kind.__name__} can change, and threads share it")


class Memoized(Protocol[P, T_co]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    def cache_clear(self) -> None: ...


def memoized(maxsize: int | None) -> Callable[[Callable[P, T]], Memoized[P, T]]:
    """Cache a pure function's last `maxsize` results (None: all); threads may compute one twice."""

    def decorate(function: Callable[P, T]) -> Memoized[P, T]:
        """Return `function` with a cache of checked results."""

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            """Call the function, and refuse a result that can change: threads share it."""
            result = function(*args, **kwargs)
            check_frozen(result, f"{function.__name__}()")
            return result

        return functools.lru_cache(maxsize)(checked)

    return decorate


def read_only(array: NDArray[A]) -> NDArray[A]:
    """Make an array itself, not a copy, read-only, and return it."""
    array.flags.writeable = False
    return array


def ready(*records: type[msgspec.Struct]) -> None:
    """Have msgspec build now what it needs to validate these, before threads use them.

    Else it does so at their first use, and two threads at once may end the process (SIGSEGV, 0.22).
    """
    for record in records:
        msgspec.json.Decoder(record)


def thawed(value: T) -> T:
    """Return a copy of a `Frozen` whose attributes can be set, since it is not sealed."""
    # The constructor would seal it.
    made = object.__new__(type(value))
    made.__dict__.update(vars(value))
    return made


def _fields_of_frozen(value: Any) -> Sequence[str] | None:
    """Return the names of a frozen record's or dataclass's fields; None for any other object."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__ if value.__struct_config__.frozen else None
    if not is_dataclass(value):
        return None
    names = [field.name for field in fields(value)]
    # Attributes beside the fields, such as a cached_property's, would not be checked: refuse it.
    has_more = not set(names).issuperset(getattr(value, "__dict__", ()))
    kind: Any = type(value)  # typeshed does not declare __dataclass_params__
    return None if has_more or not kind.__dataclass_params__.frozen else names

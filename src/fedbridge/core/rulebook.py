"""What a rule is, and the book of all of them: built in, registered, or from another package."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from fedbridge.base.errors import OptionError, UnknownOptionError, nearest
from fedbridge.base.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fedbridge.core.geometry import Geometry, Reads

NoiseNeed = Literal["none", "size", "directions"]


@dataclass(frozen=True)
class Mix:
    """The update a rule decides on: per block ``target · ḡ + Σ_i sources_i · g_i``.

    Attributes:
        target: (K,) coefficient of the target's update.
        sources: (K, N) coefficient of every source's update.
        beta: (K, N) how far each source is trusted, 0 to 1; what a person wants to read.
    """

    target: Tensor
    sources: Tensor
    beta: Tensor


@dataclass(frozen=True)
class _Named:
    """What a federation has to know of a rule.

    Attributes:
        name: what users call it.
        function: the rule itself.
        noise: what it must know of the target's noise: nothing, its ``size``, or also its
            ``directions``. A federation measures no more than that.
        reads: what it reads of the geometry (``geometry.Reads``); by default all of it. A rule that
            weighs each source against the target says so, and costs N m instead of N² m.
        own_unit: whether updates are mixed as they are, instead of in the target's unit: right
            for plain averages, wrong for whatever compares updates.
        by_samples: whether clients always count by their samples.
        alone: whether it needs no source at all, so that none has to train.
        without_target: whether nothing of the target may enter the model, statistics of BatchNorm
            included.
    """

    name: str
    function: Callable[..., Any]
    noise: NoiseNeed = "none"
    own_unit: bool = False
    by_samples: bool = False
    alone: bool = False
    without_target: bool = False
    reads: Reads = "all"

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the keyword options that the rule takes."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def _apply(self, *seen: object, **options: object) -> Any:
        known = self.options
        for option in options:
            if option not in known:
                has = "its options are " + ", ".join(known) if known else "it has no options"
                raise UnknownOptionError(
                    f"Expected an option that rule {self.name!r} has, but got {option!r}; {has}."
                    f"{nearest(option, known)}"
                )
        return self.function(*seen, **options)


@dataclass(frozen=True)
class Rule(_Named):
    """A named rule with its options: a pure function ``(Geometry, **options) -> Mix``.

    For one that weighs each source on its own, ``fixed`` is the same rule with given weights
    ``beta``; used when weights are kept over rounds.
    """

    fixed: Callable[..., Mix] | None = None

    def __call__(self, geometry: Geometry, **options: object) -> Mix:
        """Decide on the mixture; an option that the rule does not have is an error."""
        return cast("Mix", self._apply(geometry, **options))


@dataclass(frozen=True)
class CoordinateRule(_Named):
    """The second form of a rule, for what is no mixture: entry by entry over the clients.

    A pure function ``(target (c,), sources (N, c), **options) -> (c,)`` whose result in one entry
    depends on that entry alone, such as a median, so that it may be applied slice by slice.
    """

    own_unit: bool = True
    reads: Reads = "shares"

    def __call__(self, target: Tensor, sources: Tensor, **options: object) -> Tensor:
        """Apply the rule to a slice; an option that the rule does not have is an error."""
        return cast("Tensor", self._apply(target, sources, **options))


AnyRule = Rule | CoordinateRule


def _adapt(name: str, entry: object) -> AnyRule:
    """What an entry point or a caller brings: a rule of either form, or a plain function.

    A function that a decorator registered stands for its rule, with all that was said of it.
    """
    if isinstance(entry, Rule | CoordinateRule):
        return entry
    for known in registry.so_far():
        if known.function is entry:
            return known
    if not callable(entry):
        raise OptionError(f"Expected rule {name!r} to be a function, but got {entry!r}.")
    return Rule(name, entry, noise="size")


registry: Registry[AnyRule] = Registry("rule", "fedbridge.rules", _adapt)
names = registry.names
get = registry.get


def rule(
    name: str,
    *,
    noise: NoiseNeed = "size",
    own_unit: bool = False,
    by_samples: bool = False,
    alone: bool = False,
    without_target: bool = False,
    reads: Reads = "all",
    fixed: Callable[..., Mix] | None = None,
) -> Callable[[Callable[..., Mix]], Callable[..., Mix]]:
    """Register a function ``(geometry, *, option=default, ...) -> Mix`` as a rule.

    What a federation has to know of it is said here: see ``Rule``.
    """

    def register(function: Callable[..., Mix]) -> Callable[..., Mix]:
        named = Rule(
            name, function, noise, own_unit, by_samples, alone, without_target, reads, fixed
        )
        registry.add(name, named)
        return function

    return register


def coordinate_rule(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function ``(target, sources, *, option=default, ...) -> update`` by entries."""

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        registry.add(name, CoordinateRule(name, function))
        return function

    return register


def resolve(rule: str | AnyRule | Callable[..., Mix]) -> AnyRule:
    """A rule by name, or any function of a geometry taken as one."""
    if isinstance(rule, str):
        return get(rule)
    return _adapt(getattr(rule, "__name__", "rule"), rule)

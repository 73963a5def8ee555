"""Names for things that a user picks by name, built in or brought by another package."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from fedbridge.base.errors import FedbridgeError, UnknownNameError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to objects; another package adds its own through an entry point.

    An entry point of the group is loaded the first time somebody asks for a name that is not
    built in, or for all names. One that cannot be loaded is left out with a warning: a broken
    extension must not take the library down.
    """

    def __init__(
        self, kind: str, group: str, adapt: Callable[[str, object], T] | None = None
    ) -> None:
        """Names of a ``kind``; ``adapt`` makes one of an entry point, by default any function."""
        self._kind, self._group = kind, group
        self._adapt = adapt or self._function
        self._entries: dict[str, T] = {}
        self._extensions_loaded = False

    def add(self, name: str, entry: T) -> None:
        """Register under a new name."""
        if name in self._entries:
            raise FedbridgeError(
                f"Expected a new name for a {self._kind}, but {name!r} is taken: choose another."
            )
        self._entries[name] = entry

    def replace(self, name: str, entry: T) -> None:
        """Register under a name that an earlier form of the same thing may have."""
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """The entry of this name, or an error that suggests the nearest name."""
        if name not in self._entries:
            self._load_extensions()
        if name not in self._entries:
            raise UnknownNameError(
                f"Expected the name of a {self._kind}, but got {name!r}."
                f"{nearest(str(name), self._entries)} Known: {', '.join(self._entries)}."
            )
        return self._entries[name]

    def so_far(self) -> list[T]:
        """All entries, without a look at other packages."""
        return list(self._entries.values())

    def names(self) -> list[str]:
        """All names, built-in ones first."""
        self._load_extensions()
        return list(self._entries)

    def _function(self, name: str, entry: object) -> T:
        if not callable(entry):
            raise FedbridgeError(
                f"Expected {self._kind} {name!r} to be a function, but got {entry!r}."
            )
        return cast("T", entry)

    def _load_extensions(self) -> None:
        if self._extensions_loaded:
            return
        self._extensions_loaded = True
        for point in entry_points(group=self._group):
            try:
                entry = self._adapt(point.name, point.load())
                if self._entries.get(point.name) != entry:  # else a decorator registered it
                    self.add(point.name, entry)
            except Exception as error:
                warnings.warn(
                    f"The {self._kind} {point.name!r} from {point.value!r} is left out: {error}",
                    stacklevel=2,
                )

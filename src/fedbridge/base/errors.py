"""Errors a user can act on: one sentence with what was wrong, what was expected, what to do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class FedbridgeError(ValueError):
    """Base of every error that fedbridge raises on purpose.

    Attributes:
        in_words: what kind of error it is. Others may hear it where the message, which may quote
            rows, stays at home; so it belongs to the class and never to one error.
    """

    in_words: ClassVar[str] = "something is not as it should be"


class ShapeError(FedbridgeError):
    """Vectors, matrices or blocks whose sizes do not fit together."""


class NonFiniteError(FedbridgeError):
    """NaN or Inf where a number is needed; the message names the client and the block."""


class NoiseUndefinedError(FedbridgeError):
    """A rule needs the target's noise, and nothing says how large it is."""


class DataError(FedbridgeError):
    """Data that cannot be used as they are; the message names the site, file, column or row."""

    in_words = "the data cannot be used as they are"


class UnreadableError(DataError):
    """A file that is not there, or that is no table."""

    in_words = "the data file cannot be read"


class MissingColumnError(DataError):
    """A table without a column that is needed."""

    in_words = "a column is missing in the data file"


class EmptyColumnError(DataError):
    """A column, or a label, that no row has a value of."""

    in_words = "a column has no values"


class NotANumberError(DataError):
    """A cell that is no number, or one in another format, in a column of numbers.

    Attributes:
        column: which.
        remedy: the options that read such numbers, if there are any.
    """

    in_words = "a column of numbers holds something else"

    def __init__(self, message: str, column: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.column, self.remedy = column, remedy


class NotAgreedError(DataError):
    """A category or label that a site did not have when the sites agreed."""

    in_words = "a category or label is none of those agreed on"


class OneClassError(DataError):
    """A target whose labelled rows all have the same label."""

    in_words = "the labelled rows all have one class"


class DisagreementError(DataError):
    """Sites whose columns, types or labels do not fit together, listed site by site."""


class LabelsDisagreeError(DisagreementError):
    """Sites that spell the same labels differently."""


class SeveralError(DisagreementError):
    """Everything that is wrong with some tables, in one answer.

    Attributes:
        errors: each of them.
    """

    def __init__(self, message: str, errors: Iterable[FedbridgeError] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


def joined(errors: Sequence[FedbridgeError]) -> FedbridgeError:
    """The only error, or several as one."""
    if len(errors) == 1:
        return errors[0]
    return SeveralError("\n".join(map(str, errors)), errors)


class ModelError(FedbridgeError):
    """A model that cannot be built, or that does not fit the task."""


class ReportError(FedbridgeError):
    """A folder that no page or table can be made of, or a page that cannot be made."""


class OptionError(FedbridgeError):
    """An option has a value outside its range."""

    in_words = "a setting cannot be used"


class TargetNeededError(OptionError):
    """Nobody said which of the ``sites`` adapts, and the task has no target of its own."""

    def __init__(self, message: str, sites: Iterable[str]) -> None:
        super().__init__(message)
        self.sites = tuple(sites)


class UnknownOptionError(OptionError, TypeError):
    """A rule was given an option that it does not have."""


class UnknownNameError(FedbridgeError, KeyError):
    """No rule (method, task, ...) has this name; the message suggests the nearest one."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class UnknownTargetError(UnknownNameError, OptionError):
    """The task has no site of the name that ``target`` gives; the message lists those it has."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``" Did you mean 'fedgp'?"``, or nothing when no known name is near.

    Near is also an abbreviation: ``lr`` for ``learning_rate``.
    """
    listed, plain = list(known), name.lower().replace("_", "-")
    initials = "".join(word[:1] for word in plain.split("-"))
    close = get_close_matches(plain, listed, n=1, cutoff=0.5) or [
        k for k in listed if k == initials
    ]
    return f" Did you mean {close[0]!r}?" if close else ""

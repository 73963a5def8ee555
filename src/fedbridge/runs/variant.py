"""A row of a comparison: a method with options of its own, and the one way to spell it.

On a command line it is ``fedgp[beta=0.5,filter=false]``, in Python ``("fedgp", {"beta": 0.5})``.
Options are sorted and numbers are in one form, so that ``fedgp[beta=.5]`` and ``fedgp[beta=0.50]``
are one variant. ``rounds`` may be among the options, and ``label`` is another name for the row::

    fedrep[head_epochs=5,rounds=150]
    fedgp[beta=1,label=sources only]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fedbridge.base.errors import OptionError
from fedbridge.base.files import file_name, parse_json
from fedbridge.base.options import check_known
from fedbridge.base.values import canonical, for_file, spelt, value_of

ROUNDS, LABEL = "rounds", "label"
ENTRY = ("method", "options", LABEL)
"""What a record of a variant holds, in a file as in Python."""
OPENING, CLOSING = "[{", "]}"


@dataclass(frozen=True)
class Variant:
    """A method with options of its own, which go before those of its comparison.

    Attributes:
        method: what is run.
        options: of the run and of the method, sorted and in canonical form; ``rounds`` too.
        label: what the row is called; None for the method and its options.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None

    def __post_init__(self) -> None:
        kept = {name: canonical(self.options[name]) for name in sorted(self.options)}
        object.__setattr__(self, "options", kept)
        if self.label in (self.method, self._spelt()):
            object.__setattr__(self, "label", None)

    @property
    def name(self) -> str:
        """What the row is called in tables, charts and files."""
        return self._spelt() if self.label is None else self.label

    @property
    def text(self) -> str:
        """All of it as a command line says it."""
        return self._spelt(**({} if self.label is None else {LABEL: self.label}))

    @property
    def folder(self) -> str:
        """The name as part of the name of a folder."""
        return file_name(self.name)

    @property
    def of_run(self) -> dict[str, Any]:
        """The options without the number of rounds, which every run has anyway."""
        return {name: value for name, value in self.options.items() if name != ROUNDS}

    def to_json(self) -> dict[str, Any]:
        """A record for a file."""
        return {"method": self.method, "options": for_file(self.options)}

    def _spelt(self, **more: str) -> str:
        said = {**self.options, **more}
        listed = ",".join(f"{name}={spelt(name, said[name])}" for name in said)
        return f"{self.method}[{listed}]" if listed else self.method


Entry: TypeAlias = "str | Variant | tuple[str, Mapping[str, Any]] | Mapping[str, Any]"
"""A variant as a user says it: text, or a pair, or a record with ``method`` and ``options``."""


def variants_of(methods: str | Iterable[Entry] | Mapping[str, Entry]) -> list[Variant]:
    """The variants that a user means; a mapping gives each its label."""
    if isinstance(methods, str):
        return parse_variants(methods)
    if isinstance(methods, Mapping):
        return [_variant_of(entry, label) for label, entry in methods.items()]
    if not isinstance(methods, Iterable):
        raise OptionError(
            f"Expected `methods` to be names or pairs (name, options), but got {methods!r}."
        )
    return [_variant_of(entry) for entry in methods]


def _variant_of(entry: Entry, label: str | None = None) -> Variant:
    if isinstance(entry, str):
        found = parse_variants(entry)
        if len(found) != 1:
            raise OptionError(f"Expected the name of one method, but got {entry!r}.")
        entry = found[0]
    if isinstance(entry, Variant):
        return entry if label is None else Variant(entry.method, entry.options, label)
    if isinstance(entry, Mapping):
        check_known(entry, ENTRY, f"an entry of `methods` ({dict(entry)})")
        parts = (entry.get("method"), entry.get("options", {}), entry.get(LABEL))
    else:
        pair = tuple(entry) if isinstance(entry, tuple | list) else ()
        parts = (*pair, None) if len(pair) == 2 else (None, None, None)
    method, options, own = parts
    if not isinstance(method, str) or not isinstance(options, Mapping):
        raise OptionError(
            f"Expected a method as its name, as a pair (name, options) or as a record with `method`"
            f" and `options`, but got {entry!r}."
        )
    return _made(method, dict(options), own if label is None else label)


def parse_variants(text: str) -> list[Variant]:
    """``name[option=value,...]``, several of them separated by commas."""
    return [_parsed(piece) for piece in _pieces(text, text)]


def _parsed(text: str) -> Variant:
    name, _, rest = text.partition("[")
    try:
        listed = _pieces(rest.removesuffix("]"), text)
    except OptionError:  # the whole has brackets in pairs, so the first one closes too early
        raise OptionError(
            f"Expected the options of a method in one pair of brackets, as in fedgp[beta=0.5], but "
            f"there is more after them in {text!r}: separate methods by commas."
        ) from None
    method = name.strip()
    if not method or set(method) & set("={}]\"'"):
        raise OptionError(
            f"Expected the name of a method, as in fedgp[beta=0.5], but got {text!r}: options stand"
            f" in brackets after the name, lists in brackets of their own, as in beta=[0.1,0.2]."
        )
    options: dict[str, Any] = {}
    for piece in listed:
        option, equals, value = (part.strip() for part in piece.partition("="))
        option = option.replace("-", "_")
        if not equals or not option or not value:
            raise OptionError(
                f"Expected `option=value` in the brackets of {method!r}, but got {piece!r}: write a"
                f" list in brackets of its own, as in beta=[0.1,0.2]."
            )
        if option in options:
            raise OptionError(
                f"Expected every option of {method!r} once, but got {option!r} twice."
            )
        options[option] = _value(method, option, value)
    return _made(method, options, options.pop(LABEL, None))


def _value(method: str, option: str, text: str) -> Any:
    if not text.startswith('"'):
        return text if option == LABEL else value_of(option, text)
    try:
        return parse_json(text)
    except ValueError as error:
        raise OptionError(
            f"Expected text in one pair of quotes as {option!r} of {method!r}, but got {text}."
        ) from error


def _made(method: str, options: dict[str, Any], label: object) -> Variant:
    if label is not None and not (isinstance(label, str) and label.strip() and label.isprintable()):
        raise OptionError(
            f"Expected the `label` of {method!r} to be a line of text, but got {label!r}."
        )
    if not all(isinstance(option, str) for option in options):
        raise OptionError(f"Expected names of options of {method!r}, but got {list(options)}.")
    return Variant(method, options, label)


def _pieces(text: str, whole: str) -> list[str]:
    """The parts between commas that stand in no brackets and no quotes."""
    pieces, opened, quoted, skipped = [""], [], False, False
    for character in text:
        if quoted:
            quoted = skipped or character != '"'
            skipped = character == "\\" and not skipped
        elif character == '"':
            quoted = True
        elif character in OPENING:
            opened.append(CLOSING[OPENING.index(character)])
        elif character in CLOSING and (not opened or opened.pop() != character):
            raise _unbalanced(character, "that nothing opened", whole)
        elif character == "," and not opened:
            pieces.append("")
            continue
        pieces[-1] += character
    if quoted or opened:
        raise _unbalanced('"' if quoted else opened[-1], "missing", whole)
    return [piece.strip() for piece in pieces if piece.strip()]


def _unbalanced(character: str, problem: str, whole: str) -> OptionError:
    found = f"a {character} {problem}" if problem != "missing" else f"a missing {character}"
    return OptionError(
        f"Expected brackets and quotes in pairs, as in fedgp[beta=0.5], but got {found} in "
        f"{whole!r}."
    )

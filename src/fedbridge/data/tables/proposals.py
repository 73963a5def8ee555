"""What sites may mean by other names and other words: proposals, which nobody applies unasked.

They are made of what is known anyway: names, whether a column holds numbers, which categories there
are and, where all rows are on one machine, from where to where its numbers go. A proposal is a line
for the settings of one site, to be read by somebody who knows the data.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from fedbridge.base.errors import LabelsDisagreeError, SeveralError
from fedbridge.data.tables.schema import ColumnSummary, TableSummary

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from fedbridge.base.errors import DisagreementError
    from fedbridge.data.tables.schema import Reading, Summaries

ALIKE, MAYBE, SAME_RANGE = 0.75, 0.5, 0.8
MOST_CODES = 5.0
"""A range of numbers up to which columns of codes and scores all look the same."""
"""From how like each other two names are taken for one, alone and where their values fit too."""
SHORTEST = 3
"""Fewer letters abbreviate anything."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
BARE = re.compile(r"[A-Za-z0-9_-]+")
YES = frozenset(
    {"ja", "j", "yes", "y", "true", "wahr", "oui", "si", "sí", "sim", "pos", "positive"}
)
NO = frozenset({"nein", "n", "no", "false", "falsch", "non", "não", "neg", "negative"})


@dataclass(frozen=True)
class Proposal:
    """What one site may mean.

    Attributes:
        site: Whose settings it is for.
        said: What looks like what.
        line: The line of its settings that says so.
        old: What it is called there.
        new: What others call it.
        column: The column, where a category or label is meant; otherwise None.
    """

    site: str
    said: str
    line: str
    old: str
    new: str
    column: str | None = None


def setting(*keys: str, value: str | float) -> str:
    """One line of TOML, which can stand anywhere above the first table."""
    named = (key if BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in keys)
    return f"{'.'.join(named)} = {json.dumps(value, ensure_ascii=False)}"


def propose(sites: Summaries, reading: Reading, reference: str | None = None) -> list[Proposal]:
    """What the sites that differ may mean, from their summaries.

    What more sites say is right; the ``reference``, such as the target, decides between equals.
    """
    found: list[Proposal] = []
    renamed: dict[str, TableSummary] = {}
    for site, own in sites.items():
        others = {name: there for name, there in sites.items() if name != site}
        names = _renames(own, others, reading, reference)
        found += [_rename(site, old, new) for old, new in names.items()]
        columns = {names.get(name, name): column for name, column in own.columns.items()}
        renamed[site] = replace(own, columns=columns)
    for column in dict.fromkeys(c for own in renamed.values() for c in own.columns):
        here = {
            site: own.columns[column].levels
            for site, own in renamed.items()
            if column in own.columns
        }
        for site, old, new in _recodes(here, reference):
            line = setting("recode", column, old, value=new)
            found.append(
                Proposal(site, f"{old!r} in {column!r} looks like {new!r}", line, old, new, column)
            )
    for site, old, new in _recodes({s: own.labels or () for s, own in renamed.items()}, reference):
        line = setting("label-map", old, value=new)
        said = f"label {old!r} looks like {new!r}"
        found.append(Proposal(site, said, line, old, new, reading.label_column))
    return found


def propose_names(site: str, has: Sequence[str], needed: Sequence[str]) -> list[Proposal]:
    """What a site may call the columns that it lacks, where nothing but names is known."""
    own = {name: ColumnSummary(None) for name in has if name not in needed}
    lacking = {name: ColumnSummary(None) for name in needed if name not in has}
    return [_rename(site, old, new) for old, new in _pairs(own, lacking).items()]


def _rename(site: str, old: str, new: str) -> Proposal:
    said = f"{old!r} looks like {new!r}"
    return Proposal(site, said, setting("rename", old, value=new), old, new)


def _renames(
    own: TableSummary, others: Summaries, reading: Reading, reference: str | None
) -> dict[str, str]:
    """Old and new names of the columns of one site."""
    times = Counter(name for there in others.values() for name in there.columns)
    decides = others[reference].columns if reference and reference in others else {}
    lacking = {}
    for name in times:
        if name not in own.columns:
            having = [there.columns[name] for there in others.values() if name in there.columns]
            lacking[name] = _together(having)
    planned = reading.columns or ()
    extra = {name: column for name, column in own.columns.items() if name not in planned}

    def is_right(old: str, new: str) -> bool:
        own_times = times[old] + 1
        return (
            new in planned or times[new] > own_times or (times[new] == own_times and new in decides)
        )

    return {old: new for old, new in _pairs(extra, lacking).items() if is_right(old, new)}


def _together(columns: Sequence[ColumnSummary]) -> ColumnSummary:
    """One column as several sites have it."""
    levels = dict.fromkeys(level for column in columns for level in column.levels)
    spans = [column.span for column in columns if column.span is not None]
    kinds = [column.kind for column in columns if column.kind is not None]
    span = (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None
    return ColumnSummary(kinds[0] if kinds else None, tuple(levels), span=span)


def _pairs(
    extra: Mapping[str, ColumnSummary], lacking: Mapping[str, ColumnSummary]
) -> dict[str, str]:
    """Who is who, the likeliest first; nobody is two."""
    scored = sorted(
        (
            (-score, old, new)
            for old, mine in extra.items()
            for new, theirs in lacking.items()
            if (score := _likeness(old, new, mine, theirs))
        ),
    )
    pairs: dict[str, str] = {}
    for _, old, new in scored:
        if old not in pairs and new not in pairs.values():
            pairs[old] = new
    return pairs | _of_one_range(
        {old: mine for old, mine in extra.items() if old not in pairs},
        {new: theirs for new, theirs in lacking.items() if new not in pairs.values()},
    )


def _of_one_range(
    extra: Mapping[str, ColumnSummary], lacking: Mapping[str, ColumnSummary]
) -> dict[str, str]:
    """Numbers of the same range under any name, where no other column could be meant."""
    alike = [
        (old, new)
        for old, mine in extra.items()
        for new, theirs in lacking.items()
        if mine.span and theirs.span and _overlap(mine.span, theirs.span) >= SAME_RANGE
    ]
    olds, news = (Counter(names) for names in zip(*alike, strict=True)) if alike else ({}, {})
    return {old: new for old, new in alike if olds[old] == news[new] == 1}


def _overlap(mine: tuple[float, float], theirs: tuple[float, float]) -> float:
    """The part that two ranges have in common of both together; codes such as 0 and 1 have none."""
    (low, high), (least, most) = mine, theirs
    both = max(high, most) - min(low, least)
    if both <= MOST_CODES:
        return 0.0
    return max(min(high, most) - max(low, least), 0.0) / both


def _likeness(old: str, new: str, mine: ColumnSummary, theirs: ColumnSummary) -> float:
    """How like each other two columns are; 0 if they are taken for two."""
    names, values = name_likeness(old, new), _values_likeness(mine, theirs)
    same_categories = values == 1 and len(mine.levels) > 1
    if names >= ALIKE or (values and names >= MAYBE) or same_categories:
        return names + (values or 0.0)
    return 0.0


def name_likeness(one: str, other: str) -> float:
    """From 0 to 1: the same words, some of them, an abbreviation, or nearly the same letters."""
    first, second = ([word.casefold() for word in WORD.findall(name)] for name in (one, other))
    short, long = sorted(("".join(first), "".join(second)), key=len)
    if short == long:
        return 1.0
    if len(short) >= SHORTEST and ({*first} <= {*second} or {*second} <= {*first}):
        return 0.9
    if len(short) >= SHORTEST and long.startswith(short):
        return 0.85
    return SequenceMatcher(None, short, long).ratio() * 0.95


def _values_likeness(mine: ColumnSummary, theirs: ColumnSummary) -> float | None:
    """The share of categories, or of a range of numbers, that two columns have in common."""
    if mine.levels and theirs.levels:
        one, other = ({level.casefold() for level in c.levels} for c in (mine, theirs))
        return len(one & other) / len(one | other)
    if mine.span is not None and theirs.span is not None:
        (low, high), (least, most) = mine.span, theirs.span
        common = min(high, most) - max(low, least)
        return max(common, 0.0) / (min(high - low, most - least) or 1.0)
    return None


def _recodes(
    levels: Mapping[str, Collection[str]], reference: str | None
) -> Iterable[tuple[str, str, str]]:
    """Sites, their own words, and those that most others have."""
    having = {site: own for site, own in levels.items() if own}
    times = Counter(level for own in having.values() for level in own)
    if not having:
        return

    def weight(site: str) -> tuple[float, bool]:
        return sum(times[level] for level in having[site]) / len(having[site]), site == reference

    right = [*having[max(having, key=weight)]]
    for site, own in having.items():
        free = [level for level in right if level not in own]
        for old in (level for level in own if level not in right):
            meant = [new for new in free if _same_word(old, new)]
            if len(meant) == 1:
                free.remove(meant[0])
                yield site, old, meant[0]


def _same_word(one: str, other: str) -> bool:
    """Up to case, an abbreviation, or yes and no in any language."""
    short, long = sorted((one.casefold(), other.casefold()), key=len)
    for words, figure in ((YES, "1"), (NO, "0")):
        if {short, long} <= {*words, figure}:
            return True
    return short == long or (long.startswith(short) and short.isalpha())


def ways_out(
    error: DisagreementError, sites: Summaries, reading: Reading, reference: str | None = None
) -> str:
    """The options that settle what sites disagree on, as a line to put behind it."""
    leave_out = "or leave a site out with --exclude-sites NAME"
    every = error.errors if isinstance(error, SeveralError) else (error,)
    if any(isinstance(one, LabelsDisagreeError) for one in every):
        example = _label_map([label for own in sites.values() for label in own.labels or ()])
        return f"\nWithout touching the files: --label-map {example}, {leave_out}."
    if len({tuple(sorted(own.columns)) for own in sites.values()}) == 1:
        return ""
    names = [own for own in propose(sites, reading, reference) if own.column is None]
    pairs = ",".join(f"{own.old}={own.new}" for own in names)
    looks = "".join(f"\nAt {own.site!r} {own.said}." for own in names)
    rename = shlex.quote(pairs) if pairs else "OLD=NEW"
    return (
        f"{looks}\nWithout touching the files: --rename {rename}, or --impute NAME, or "
        f"--drop-columns NAME, {leave_out}; a task file says it of one site alone, in [sites.NAME]."
    )


def _label_map(labels: Sequence[str]) -> str:
    """The map for labels of which some say yes and no; otherwise its form alone."""
    every = sorted({label.casefold() for label in labels})
    words = {label: "1" for label in every if label in YES}
    words |= {label: "0" for label in every if label in NO}
    understood = words and not set(every) - {"0", "1", *words}
    return ",".join(f"{old}={new}" for old, new in words.items()) if understood else "OLD=NEW,..."

"""What a site hands to the coordinator: what its data are like, and no row of them.

It says which versions the site runs, since what differs a little can fail late or change results,
and what the site has agreed to, since a plan may have changed.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, get_args

from fedbridge.base.errors import OptionError
from fedbridge.base.files import parse_json, read_text
from fedbridge.data.labels import Scale, show
from fedbridge.data.site_arrays import ArrayReading, ArraySummary, describe_arrays
from fedbridge.data.tables.load import describe_csv
from fedbridge.data.tables.proposals import setting
from fedbridge.data.tables.schema import ColumnSummary, Kind, Reading, TableSummary
from fedbridge.deploy.folders import (
    DeploymentError,
    DeploymentPlan,
    SiteSettings,
    arrays_config,
)
from fedbridge.flower.messages import CONTROL
from fedbridge.training.record_privacy import RecordPrivacy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedbridge.data.tables.curation import Curation

FORMAT = 1
LARGEST_FILE = 2**22
LONGEST_TEXT = 1000
LIKELY = 0.1
"""Chance that a promise fails for any row from which on it is worth a word."""
PACKAGES = ("fedbridge", "flwr", "torch")


def own_versions() -> dict[str, str]:
    """What runs here: Python to the minor version, packages without the build's label."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in PACKAGES:
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """What another machine has otherwise, such as ``flwr 1.42.0 (here 1.41.0)``."""
    return [
        f"{name} {there.get(name, 'unknown')} (here {own})"
        for name, own in here.items()
        if there.get(name) != own
    ]


@dataclass(frozen=True)
class Description:
    """What the coordinator may know of a site.

    Attributes:
        site: Its name.
        role: Source or target, as it agreed to.
        rows: How many rows it has; ``None`` when it keeps that to itself.
        labelled: How many of them have a label; the same.
        reading: How it read its table.
        summary: Columns, kinds, categories and labels.
        versions: What it runs.
        split: At the target, how its rows will be divided, as its settings say.
        arrays: What its images or arrays are like; None if it has a table.
        matrix: Whether it takes another role for advice in which every site is the target in turn.
    """

    site: str
    role: str
    rows: int | None
    labelled: int | None
    reading: Reading
    summary: TableSummary
    versions: Mapping[str, str]
    split: Mapping[str, int | float] | None = None
    arrays: ArraySummary | None = None
    matrix: bool = False

    def to_json(self) -> str:
        """The description as JSON text; examples of numbers, which are values of rows, stay out."""
        columns = [
            {"name": name, "kind": column.kind, "levels": column.levels}
            for name, column in self.summary.columns.items()
        ]
        content = {
            "format": FORMAT,
            "site": self.site,
            "role": self.role,
            "rows": self.rows,
            "labelled": self.labelled,
            "reading": asdict(self.reading),
            "labels": self.summary.labels,
            "columns": columns,
            **({} if self.summary.scale is None else {"scale": asdict(self.summary.scale)}),
            "versions": dict(self.versions),
            **({} if self.split is None else {"split": dict(self.split)}),
            **({} if self.arrays is None else {"arrays": self.arrays.record()}),
            **({"matrix": True} if self.matrix else {}),
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def describe_site(
    settings: SiteSettings, path: Path, *, counts: bool
) -> tuple[Description, list[str]]:
    """Describe a site's data; also what its owner should think about before handing it over."""
    if settings.arrays is not None:
        return _described_arrays(settings, settings.arrays, path, counts=counts)
    table = describe_csv(path, settings.site, settings.reading, settings.curation)
    description = Description(
        settings.site,
        settings.role,
        table.rows if counts else None,
        table.labelled if counts else None,
        settings.reading,
        table.summary,
        own_versions(),
        settings.planned_split() if settings.role == "target" else None,
        matrix=settings.matrix,
    )
    cautions = [f"{text}: may a stranger know?" for text in table.cautions]
    cautions += [
        f"column {column!r} is left out, since its numbers differ in every row, as those of an "
        f"identifier do; {setting('keep-columns', value=column)} in site.toml learns from it"
        for column in table.left_out
    ]
    return description, cautions + _of_privacy(settings, table.rows, table.summary)


def _of_privacy(settings: SiteSettings, rows: int, summary: TableSummary) -> list[str]:
    """Where a site's privacy promises less than its epsilon says."""
    privacy, told = settings.privacy, []
    if privacy is not None and privacy.delta * rows > LIKELY:
        told.append(
            f"a delta of {privacy.delta:g} is not well below one over the {rows} rows: the promise "
            f"may fail for one of them with a chance of {privacy.delta * rows:.2g}"
        )
    if isinstance(privacy, RecordPrivacy):
        told += _not_covered(summary, settings.curation)
    return told


def _not_covered(summary: TableSummary, curation: Curation) -> list[str]:
    """What epsilon does not count: every row changes what the others are standardised by."""
    numbers = [n for n, c in summary.columns.items() if c.kind == "numeric"]
    by_rows = [name for name in numbers if name not in curation.scales]
    if not by_rows:
        return []
    mean, deviation = (
        setting("scales", by_rows[0], part, value=usual)
        for part, usual in (("mean", 0.0), ("deviation", 1.0))
    )
    told = (
        f"epsilon does not cover what these columns are standardised by, the mean and deviation of "
        f"this site's own rows: {show(by_rows)}; {mean} and {deviation} in site.toml, with numbers "
        f"that are known beforehand, say it instead"
    )
    return [told]


def _described_arrays(
    settings: SiteSettings, reading: ArrayReading, path: Path, *, counts: bool
) -> tuple[Description, list[str]]:
    found = describe_arrays(path, settings.site, reading)
    rows = found.rows if counts else None
    description = Description(
        settings.site,
        settings.role,
        rows,
        rows,
        settings.reading,
        TableSummary({}, found.summary.class_names),
        own_versions(),
        settings.planned_split() if settings.role == "target" else None,
        found.summary,
        settings.matrix,
    )
    cautions = [f"{text}: may a stranger know?" for text in found.cautions]
    return description, cautions + _of_privacy(settings, found.rows, description.summary)


def otherwise(plan: DeploymentPlan, found: Description) -> dict[str, str | int | float]:
    """What a site says otherwise than the plan: the plan's values, by name.

    A site that has described more columns than the plan uses says nothing else.
    """
    reading, wanted = found.reading, plan.agreed(found.site)
    if found.arrays is not None:
        said = {"role": found.role, **arrays_config(found.arrays.reading), **(found.split or {})}
        return {name: value for name, value in wanted.items() if said.get(name) != value}
    used, chosen = {*(plan.reading.columns or found.summary.columns)}, plan.reading.columns
    enough = chosen is not None and used <= {*found.summary.columns, *plan.reading.impute}
    has: dict[str, str | int | float] = {
        "role": found.role,
        "label-column": reading.label_column,
        "columns": wanted["columns"] if enough else ",".join(reading.columns or ()),
        "categorical": ",".join(name for name in reading.categorical if name in used),
        "kind": reading.kind or "",
        **(found.split or {}),
    }
    return {name: value for name, value in wanted.items() if has.get(name, value) != value}


def read_description(path: Path) -> Description:
    """Read a description; it came from elsewhere, so nothing in it is believed unchecked."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"it is larger than {LARGEST_FILE} bytes")
        return _description(parse_json(read_text(path)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OptionError) as error:
        raise DeploymentError(
            f"Expected a site's description in {str(path)!r}, but it cannot be used ({error}): "
            f"let the site write it again with `fedbridge deploy check`."
        ) from error


def _description(content: dict[str, Any]) -> Description:
    if content["format"] != FORMAT:
        raise ValueError(f"it has format {content['format']!r} and not {FORMAT}")
    reading, labels = content["reading"], content["labels"]
    chosen = reading["columns"]
    return Description(
        site=_text(content["site"]),
        role=_text(content["role"]),
        rows=_count(content["rows"]),
        labelled=_count(content["labelled"]),
        reading=Reading(
            _text(reading["label_column"]),
            None if chosen is None else _texts(chosen),
            _texts(reading["categorical"]),
            reading["kind"],
            _texts(reading.get("impute", [])),
        ),
        summary=TableSummary(
            {_text(column["name"]): _column(column) for column in content["columns"]},
            None if labels is None else _texts(labels),
            Scale(**content["scale"]) if "scale" in content else None,
        ),
        versions={_text(name): _text(value) for name, value in content["versions"].items()},
        split=None if "split" not in content else _numbers(content["split"]),
        arrays=None if "arrays" not in content else _arrays(content["arrays"]),
        matrix=content.get("matrix") is True,
    )


def _arrays(content: dict[str, Any]) -> ArraySummary:
    found = ArraySummary.of_record(content)
    for label in found.class_names or ():
        _text(label)
    return found


def _column(content: dict[str, Any]) -> ColumnSummary:
    kind, levels = content["kind"], _texts(content["levels"])
    if kind not in (None, *get_args(Kind)) or bool(levels) != (kind == "categorical"):
        raise ValueError(f"column {content['name']!r} has kind {kind!r} and {len(levels)} levels")
    return ColumnSummary(kind, levels)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or CONTROL.search(value):
        raise ValueError(f"it needs texts of up to {LONGEST_TEXT} characters that can be shown")
    return value


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError("it needs a list of texts")
    return tuple(map(_text, values))


def _numbers(content: dict[str, Any]) -> dict[str, int | float]:
    known = ("seed", "n-target", "test-fraction")
    if set(content) != set(known) or not all(type(n) in (int, float) for n in content.values()):
        raise ValueError(f"it needs numbers of {', '.join(known)} as its split")
    return content


def _count(value: object) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"it needs a count, and not {value!r}")
    return value

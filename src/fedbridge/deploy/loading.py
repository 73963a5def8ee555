"""How a node of a deployment gets its site's rows: from its own data, by the agreed schema."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedbridge.advice.measure import ADVICE
from fedbridge.base.files import parse_json, read_text
from fedbridge.data.site_arrays import ArraySummary, load_array_site
from fedbridge.data.split import TEST_FRACTION, SplitOptions
from fedbridge.data.tables.load import load_csv_site
from fedbridge.data.tables.preprocessing import ByOwnRows
from fedbridge.data.tables.schema import Schema
from fedbridge.data.task import class_called
from fedbridge.deploy.folders import DeploymentError, check_site_settings, curation_in, nested
from fedbridge.flower.floors import floors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import Context

    from fedbridge.data.images.preprocessing import ImagePreprocessing
    from fedbridge.data.site_package import LocalSite, Role
    from fedbridge.data.tables.curation import Curation
    from fedbridge.data.tables.preprocessing import Preprocessing


ARRAYS = "arrays"
"""Under this name a schema says what images or arrays are like; that of tables has none."""


def own_rows(schema: Path) -> Callable[[Context], LocalSite]:
    """A loader for ``client_app``: each site reads what its node's configuration names as ``data``.

    Which site it is and what its role is stands in the site's own configuration; a run that would
    make it anything else is refused, but for advice where that allows it. The run's configuration
    says the rest: ``target``, ``seed``, ``n-target`` (0: all training rows) and ``test-fraction``,
    within the site's floors.
    ``schema``, which all sites agreed on, is a file of the app.
    """

    def load(context: Context) -> LocalSite:
        agreed, run = read_schema(schema), context.run_config
        columns = () if isinstance(agreed, ArraySummary) else (agreed.label_column, *agreed.kinds)
        node = nested(context.node_config, columns)
        check_site_settings(node)
        name, own = str(node["site"]), str(node["role"])
        role = "target" if name == run["target"] else "source"
        if role != own and not (node.get("matrix") is True and run.get("method") == ADVICE):
            raise DeploymentError(
                f"Expected site {name!r} to be a {own}, as its site.toml says, but the target "
                f"of this run is {run['target']!r}: ask the coordinator. For advice alone, "
                f"`matrix = true` there would allow it."
            )
        every = SplitOptions(test_fraction=float(run.get("test-fraction", TEST_FRACTION)))
        few = int(run.get("n-target", 0)) or None
        read = reader(agreed, Path(str(node["data"])), curation_in(node))
        read = partial(read, name, cast("Role", role), int(run.get("seed", 0)))
        whole = read(split=every)
        site = whole if few is None else read(split=replace(every, n_target=few))
        if whole.test is not None:
            floors_in(node).check_split(len(site.train), len(whole.train) + len(whole.test))
        return replace(site, positive=positive_class(agreed, run.get("positive") or None))

    return load


csv_sites = own_rows
"""What apps of an earlier version call it."""


def reader(
    agreed: Schema | ArraySummary, path: Path, curation: Curation
) -> Callable[..., LocalSite]:
    """Reads one site's own rows, given its name and role, the seed and the split."""
    if isinstance(agreed, ArraySummary):
        return partial(load_array_site, path, agreed)
    return partial(load_csv_site, path, agreed, curation=curation)


def positive_class(agreed: Schema | ArraySummary, label: object) -> int:
    """Which of two classes measures are of: the one with this label, or the second."""
    return 1 if label is None else class_called(label, agreed.class_names or (), "this federation")


def read_schema(file: Path) -> Schema | ArraySummary:
    """What the sites agreed on, of tables or of images and arrays."""
    text = read_text(file)
    try:
        arrays = parse_json(text).get(ARRAYS)
        return Schema.from_json(text) if arrays is None else ArraySummary.of_record(arrays)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DeploymentError(
            f"Expected what the sites agreed on in {str(file)!r}, but it cannot be used ({error}): "
            f"let the coordinator write it again with `fedbridge deploy check`."
        ) from error


def as_agreed(schema: Path) -> Callable[[], Preprocessing | ImagePreprocessing | None]:
    """How rows of any site are treated, as far as a coordinator knows: by the agreed schema."""

    def read() -> Preprocessing | ImagePreprocessing | None:
        agreed = read_schema(schema)
        if isinstance(agreed, ArraySummary):
            return agreed.reading.how
        return ByOwnRows.of_schema(agreed)

    return read

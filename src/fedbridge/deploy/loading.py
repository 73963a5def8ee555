"""How a node of a deployment gets its site's rows: from its own file, by the agreed schema."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedbridge.advice.measure import ADVICE
from fedbridge.data.split import TEST_FRACTION, SplitOptions
from fedbridge.data.tables.load import load_csv_site
from fedbridge.data.tables.preprocessing import ByOwnRows
from fedbridge.data.tables.schema import Schema
from fedbridge.deploy.folders import DeploymentError, check_site_settings, curation_in, nested
from fedbridge.flower.floors import floors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import Context

    from fedbridge.data.site_package import LocalSite, Role
    from fedbridge.data.tables.preprocessing import Preprocessing


def csv_sites(schema: Path) -> Callable[[Context], LocalSite]:
    """A loader for ``client_app``: each site reads the CSV that its node's configuration names.

    Which site it is and what its role is stands in the site's own configuration; a run that would
    make it anything else is refused, but for advice where that allows it. The run's configuration
    says the rest: ``target``, ``seed``, ``n-target`` (0: all training rows) and ``test-fraction``,
    within the site's floors.
    ``schema``, which all sites agreed on, is a file of the app.
    """

    def load(context: Context) -> LocalSite:
        agreed, run = Schema.from_json(schema.read_text(encoding="utf-8")), context.run_config
        node = nested(context.node_config, (agreed.label_column, *agreed.kinds))
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
        read = partial(
            load_csv_site,
            Path(str(node["data"])),
            agreed,
            name,
            cast("Role", role),
            int(run.get("seed", 0)),
            curation=curation_in(node),
        )
        whole = read(split=every)
        site = whole if few is None else read(split=replace(every, n_target=few))
        if whole.test is not None:
            floors_in(node).check_split(len(site.train), len(whole.train) + len(whole.test))
        return site

    return load


def as_agreed(schema: Path) -> Callable[[], Preprocessing]:
    """How rows of any site are treated, as far as a coordinator knows: by the agreed schema."""

    def read() -> Preprocessing:
        return ByOwnRows.of_schema(Schema.from_json(schema.read_text(encoding="utf-8")))

    return read

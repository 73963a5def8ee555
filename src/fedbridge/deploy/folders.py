"""What a deployment is to be, and where everything of it lies: in its folder, in each site's."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import tomli_w

from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.files import parse_json, parse_toml, read_text
from fedbridge.base.options import check_flag, check_known, check_number, check_whole
from fedbridge.data.images.folder import IMAGE_SIZE
from fedbridge.data.site_arrays import WORDS, ArrayReading
from fedbridge.data.split import OWN_SPLIT, TEST_FRACTION, SplitOptions
from fedbridge.data.tables.curation import KEYS, PAIRS, UNCHANGED, Curation
from fedbridge.data.tables.schema import Reading, column_names
from fedbridge.flower.floors import FLOORS, Floors, floors_in
from fedbridge.flower.options import NetworkOptions
from fedbridge.flower.pki import NODE, Certificates, node_key, read_public_key
from fedbridge.flower.privacy import SETTINGS, LocalPrivacy, privacy_in
from fedbridge.flower.site import CPU
from fedbridge.flower.target_run import RUN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from fedbridge.data.site_package import Role
    from fedbridge.training.record_privacy import RecordPrivacy

FORMAT = 1
PORT = 8000
NODE_PORT = 9094
LINK_NAME = "fedbridge"
"""What Flower's configuration calls the connection to the link."""
APP_MODULE = "fedbridge_app"
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?")


class DeploymentError(FedbridgeError):
    """A deployment's folder that is not as it should be; the message says what to do."""

    in_words = "the settings do not fit this run"


@dataclass(frozen=True)
class DeploymentPlan:
    """All that ``deploy init`` is told.

    Attributes:
        sources: The data-rich sites, in order.
        target: The site that adapts.
        host: The name or IP address by which the sites reach the coordinator.
        port: The port there.
        reading: How every site reads its table.
        arrays: How every site reads its images or arrays, where its data are no table.
        left: Sources that have left for good while their run went on, and why.
        positive: The label, of two, that the target's sensitivity, ROC curve and calibration are
            of; ``None`` for the second one.
        method: What trains.
        rounds: How many rounds.
        seed: Decides the target's split and everything random in the run.
        model: The network's name.
        n_target: Labelled rows that the target uses; ``None`` for all its training rows.
        test_fraction: Share of the target's rows set aside for testing.
        options: Options of run and method by name.
        network: Options of the network by name.
    """

    sources: tuple[str, ...]
    target: str
    host: str = "localhost"
    port: int = PORT
    reading: Reading = field(default_factory=Reading)
    method: str = "auto"
    rounds: int = 20
    seed: int = 0
    model: str = "mlp"
    n_target: int | None = None
    test_fraction: float = TEST_FRACTION
    options: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    arrays: ArrayReading | None = None
    left: Mapping[str, str] = field(default_factory=dict)
    positive: str | None = None

    def __post_init__(self) -> None:
        NetworkOptions(**self.network)
        for name in self.sites:
            if not NAME.fullmatch(name):
                raise OptionError(
                    f"Expected names of sites of up to 40 letters, digits and hyphens, but got "
                    f"{name!r}: choose a name that folders and commands can hold."
                )
        plain = [name.lower() for name in self.sites]
        twice = sorted({name for name in plain if plain.count(name) > 1})
        if twice:
            raise OptionError(
                f"Expected every site to have a name of its own, in whatever case, but got "
                f"{', '.join(map(repr, twice))} twice: the target is not among --sites."
            )
        if not self.sources:
            raise OptionError(
                "Expected at least one source besides the target: name them with --sites."
            )
        check_whole("port", self.port, least=1, most=65535)
        check_whole("rounds", self.rounds, least=1)
        check_whole("seed", self.seed, least=0)
        check_number("test_fraction", self.test_fraction, least=0.01, most=0.99)
        if self.n_target is not None:
            check_whole("n_target", self.n_target, least=1)

    @property
    def sites(self) -> tuple[str, ...]:
        """All sites, the target last."""
        return (*self.sources, self.target)

    @property
    def present(self) -> tuple[str, ...]:
        """All sites but those that have left for good."""
        return tuple(name for name in self.sites if name not in self.left)

    @property
    def address(self) -> str:
        """Where the link is; an IPv6 address stands in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def role(self, site: str) -> Role:
        """What a site is in this federation."""
        return "target" if site == self.target else "source"

    def agreed(self, site: str) -> dict[str, str | int | float]:
        """What a site's ``site.toml`` says as the plan does; the rest is the site's own."""
        agreed: dict[str, str | int | float] = {"role": self.role(site), **self.read_as()}
        if site == self.target:
            agreed |= {
                "seed": self.seed,
                "n-target": self.n_target or 0,
                "test-fraction": self.test_fraction,
            }
        return agreed

    def read_as(self) -> dict[str, str | int | float]:
        """How all sites read their data, by the names of ``site.toml``."""
        reading = self.reading
        if self.arrays is not None:
            return arrays_config(self.arrays)
        return {
            "label-column": reading.label_column,
            "columns": ",".join(reading.columns or ()),
            "categorical": ",".join(reading.categorical),
            "kind": reading.kind or "",
            "impute": ",".join(reading.impute),
        }

    @property
    def new_data(self) -> str:
        """What a user may call the data to predict for."""
        return NEW_DATA["table" if self.arrays is None else self.arrays.form]

    def to_json(self) -> str:
        """The plan as JSON text with a format version."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DeploymentPlan:
        """Read what :meth:`to_json` wrote, and refuse anything else."""
        try:
            content = parse_json(text)
            if content.pop("format") != FORMAT:
                raise ValueError("it has another format")
            sources, reading = tuple(map(str, content.pop("sources"))), content.pop("reading")
            arrays = content.pop("arrays", None)
            return cls(
                sources,
                **content,
                reading=reading_of(reading),
                arrays=None if arrays is None else ArrayReading(**arrays),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DeploymentError(
                f"Expected the plan that `fedbridge deploy init` wrote, but it cannot be used: "
                f"{error}."
            ) from error


NEW_DATA = {"table": "NEW.csv", "images": "NEW-IMAGES", "npz": "NEW.npz"}
"""What a user may call the data to predict for, by their form."""


def arrays_config(reading: ArrayReading) -> dict[str, str | int | float]:
    """How images or arrays are read, by the names of ``site.toml``."""
    size = {"image-size": reading.image_size, "grayscale": reading.grayscale}
    return {"form": reading.form, **(size if reading.is_images else {})}


def reading_of(record: Mapping[str, Any]) -> Reading:
    """A reading from its record; that of an earlier version says how numbers are spelled, too."""
    columns = record["columns"]
    return Reading(
        str(record["label_column"]),
        None if columns is None else tuple(map(str, columns)),
        tuple(map(str, record["categorical"])),
        record["kind"],
        tuple(map(str, record.get("impute", ()))),
    )


@dataclass(frozen=True)
class SiteSettings:
    """What a site says of itself in its ``site.toml``.

    Attributes:
        site: Its name.
        role: Source or target, as it agreed to.
        data: Its file or folder; empty until somebody fills it in.
        link: Where the coordinator's link is.
        port: A free port of the site's own machine.
        reading: How its table is read.
        seed: Decides the target's split, as the run is planned.
        split: How the target's rows are divided, as the run is planned.
        privacy: How its rows are protected; ``None`` when they are not.
        budget: The largest epsilon that it is ready to give; ``None`` for any.
        floors: What it does not do, whoever asks.
        curation: How its own file becomes a table as agreed.
        device: What it computes on, such as ``cuda``.
        arrays: How its images or arrays are read; None for a table.
        advice: Whether sketches of its gradients may go to the target, for advice.
        matrix: Whether it takes another role than its own while every site is the target in turn.
        approve: Hashes of the runs that it takes part in; ``None`` for all.
    """

    site: str
    role: Role
    data: str
    link: str
    port: int
    reading: Reading
    seed: int = 0
    split: SplitOptions = OWN_SPLIT
    privacy: LocalPrivacy | RecordPrivacy | None = None
    budget: float | None = None
    floors: Floors = field(default_factory=Floors)
    curation: Curation = UNCHANGED
    device: str = CPU
    arrays: ArrayReading | None = None
    advice: bool = False
    matrix: bool = False
    approve: tuple[str, ...] | None = None

    def planned_split(self) -> dict[str, int | float]:
        """How the target's rows will be divided, by the names of ``site.toml``."""
        few, share = self.split.n_target, self.split.test_fraction
        return {
            "seed": self.seed,
            "n-target": few or 0,
            "test-fraction": TEST_FRACTION if share is None else share,
        }


TEXTS = (
    *("site", "role", "data", "link", "label-column"),
    *("columns", "categorical", "kind", "impute", "memory", "device", "form"),
)
"""What ``site.toml`` says in words; the first ones must be there."""

OTHERS = ("port", "seed", "n-target", "test-fraction", "image-size", "grayscale")
"""What it says in numbers, besides privacy and floors."""

OF_ADVICE = ("advice", "matrix")
"""What it allows for advice, true or false."""

APPROVE = "approve"
"""Of the settings, what Flower's node does not read: it is a list."""
HASH = re.compile(r"[0-9a-f]{64}")

OF_FILE = tuple(name.replace("_", "-") for name in KEYS)
"""What it says of its own file."""
TABLES = tuple(name.replace("_", "-") for name in PAIRS)
"""What of it is said by name."""


def check_site_settings(content: Mapping[str, object]) -> None:
    """Refuse a setting that there is not: what is misspelt must never be left out in silence."""
    known = (*TEXTS, *OF_FILE, *OTHERS, *OF_ADVICE, *SETTINGS, *FLOORS, APPROVE)
    check_known(content, known, "site.toml")
    for name in OF_ADVICE:
        check_flag(name, content.get(name, False))
    for name in (*TEXTS, *OF_FILE):
        if name not in (*TABLES, "percent") and not isinstance(content.get(name, ""), str):
            raise OptionError(f"Expected `{name}` to be a text, but got {content[name]!r}.")
    for name in TABLES:
        for value in _leaves(content.get(name, "")):
            if not isinstance(value, str | int | float):
                raise OptionError(
                    f"Expected texts and numbers by name in `{name}`, but got {value!r}."
                )


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    else:
        yield value


def approved_in(content: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The runs that a site takes part in; an empty list is none at all, no list is any."""
    if APPROVE not in content:
        return None
    listed = content[APPROVE]
    if not isinstance(listed, list) or not all(HASH.fullmatch(str(one)) for one in listed):
        raise OptionError(
            f"Expected `{APPROVE}` to be a list of hashes as `fedbridge deploy check` shows them, "
            f"but got {listed!r}."
        )
    return tuple(listed)


def curation_in(content: Mapping[str, Any]) -> Curation:
    """How a site's own file becomes a table as agreed; no other site's need be like it."""
    return Curation.of({name: content[name] for name in OF_FILE if name in content}, "site.toml")


def arrays_in(content: Mapping[str, Any]) -> ArrayReading | None:
    """How a site's images or arrays are read; None if it has a table."""
    if "form" not in content:
        return None
    size = int(content.get("image-size", IMAGE_SIZE))
    return ArrayReading(content["form"], size, bool(content.get("grayscale", False)))


def nested(flat: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """A node's configuration as ``site.toml`` had it: Flower joins names of tables with dots.

    Names may have dots themselves. So that of a column is looked for among those that the sites
    agreed on; what is said of others is of no use.
    """
    content: dict[str, Any] = {}
    for key, value in flat.items():
        table, dot, name = key.partition(".")
        if not dot or table not in TABLES:
            content[key] = value
            continue
        own = content.setdefault(table, {})
        if table in ("rename", "label-map"):
            own[name] = value
            continue
        known = [column for column in columns if f"{name}.".startswith(f"{column}.")]
        if known:
            column = max(known, key=len)
            part = name[len(column) + 1 :]
            if part:
                own.setdefault(column, {})[part] = value
            else:
                own[column] = value
    return content


class SiteFolder:
    """What one site has: all that it needs, and nothing of the others.

    Attributes:
        folder: Where it all lies.
        settings_file: What the site fills in; Flower's node reads it as its configuration.
        start_here: What to do there, on one page.
        ca: The certificate by which the site recognises the link.
        key: The pair of keys by which the link recognises the site.
        description: What the site lets the coordinator know of its data.
        flower_home: Where the site's Flower keeps its files.
        run: At the target, the run's folder: its model, card and page, for ``fedbridge predict``.
        log: What the site has answered, line by line.
        app: A run's app, if the coordinator has sent it for approval.
        programs: What the node starts in place of Flower's own.
        node_config: The settings as Flower's node reads them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings_file = folder / "site.toml"
        self.start_here = folder / "START-HERE.md"
        self.ca = folder / "ca.crt"
        self.key = node_key(folder, NODE)
        self.description = folder / "description.json"
        self.flower_home = folder / "flower"
        self.run = folder / RUN
        self.log = folder / "log.jsonl"
        self.app = folder / "app"
        self.programs = self.flower_home / "programs"
        self.node_config = self.flower_home / "node.toml"

    def settings(self) -> SiteSettings:
        """What ``site.toml`` says, checked."""
        path = self.settings_file
        try:
            content = parse_toml(read_text(path))
            check_site_settings(content)
            kind, columns = content.get("kind", ""), column_names(content.get("columns", ""))
            if content["role"] not in ("source", "target"):
                raise ValueError(f"role is {content['role']!r}, neither source nor target")
            privacy, budget = privacy_in(content)
            arrays = arrays_in(content)
            few = check_whole("n-target", content.get("n-target", 0), least=0)
            share = content.get("test-fraction", TEST_FRACTION)
            return SiteSettings(
                site=content["site"],
                role=content["role"],
                data=content["data"],
                link=content["link"],
                port=check_whole("port", content["port"], least=1, most=65535),
                reading=Reading()
                if arrays is not None
                else Reading(
                    content["label-column"],
                    columns or None,
                    column_names(content.get("categorical", "")),
                    kind or None,
                    column_names(content.get("impute", "")),
                ),
                seed=check_whole("seed", content.get("seed", 0), least=0),
                split=SplitOptions(n_target=few or None, test_fraction=float(share)),
                privacy=privacy,
                budget=budget,
                floors=floors_in(content),
                curation=curation_in(content),
                device=content.get("device", CPU),
                arrays=arrays,
                **{name: content.get(name, False) for name in OF_ADVICE},
                approve=approved_in(content),
            )
        except KeyError as error:
            raise DeploymentError(
                f"Expected {str(path)!r} to say {error.args[0]!r}, but it does not: add it, or get "
                f"a new site.toml from the coordinator."
            ) from error
        except (OSError, ValueError, OptionError) as error:
            raise DeploymentError(
                f"Expected the settings of a site in {str(path)!r}, but they cannot be used: "
                f"{str(error).rstrip('.')}."
            ) from error


class Deployment:
    """The coordinator's folder.

    Attributes:
        folder: Where it all lies.
        plan_file: What ``deploy init`` was told.
        runbook: What to do, step by step.
        app: The Flower app that every node receives.
        schema: What the sites agreed on, a part of the app.
        coordinator: What stays with the coordinator.
        certificates: The authority and the server's certificate.
        flower_home: Where the coordinator's Flower keeps its files and finds the link.
        database: What the link remembers: registered sites and runs.
        run: The run's folder: history, checkpoint, model, report.
        members: Which sources belong to the federation, for a run that goes on.
        advice: What the measuring rounds of advice have left, a folder for every target.
        sites: The folders of all sites, with the public keys that a run believes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan_file = folder / "plan.json"
        self.runbook = folder / "RUNBOOK.md"
        self.app = folder / "app"
        self.schema = self.app / APP_MODULE / "schema.json"
        self.coordinator = folder / "coordinator"
        self.certificates = Certificates(self.coordinator)
        self.flower_home = self.coordinator / "flower"
        self.database = self.coordinator / "link.db"
        self.run = self.coordinator / "run"
        self.members = self.coordinator / "members.json"
        self.advice = self.coordinator / "advice"
        self.sites = folder / "sites"

    def site(self, name: str) -> SiteFolder:
        """The folder of one site."""
        return SiteFolder(self.sites / name)

    def public_keys(self) -> dict[str, bytes]:
        """By what every site of the plan that has not left is known."""
        return {name: read_public_key(self.site(name).key.public) for name in self.plan().present}

    def plan(self) -> DeploymentPlan:
        """What this deployment is to be."""
        try:
            return DeploymentPlan.from_json(self.plan_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise DeploymentError(
                f"Expected a deployment with a plan.json in {str(self.folder)!r}, but could not "
                f"read it: {error}; make one with `fedbridge deploy init`."
            ) from error


OWN_FILE = """\
What is otherwise in this site's own file than agreed: no file need be changed for it.
delimiter = ";"
encoding = "cp1252"
decimal = ","
thousands = "."
percent = true
rename.AgeYears = "age"
recode.sex.male = "m"
label-map.ja = "1"
units.chol.factor = 38.67
units.chol.offset = 0.0
scales.age.mean = 50.0
scales.age.deviation = 15.0
drop-columns = "notes,ward"
id-column = "patient"
keep-columns = "number"
"""


HOW_READ = {
    True: "the table is read, the same at all sites. Empty: all columns; as the labels tell.",
    False: "the data are read, the same at all sites.",
}


def what_it_is(plan: DeploymentPlan) -> str:
    """What a site's own data are, in words."""
    if plan.arrays is None:
        return "this site's own CSV or Parquet file"
    return f"this site's own data, {WORDS[plan.arrays.form]}"


FOR_ADVICE = (
    "For `fedbridge deploy advise`: sketches of this site's gradients may go to the target; this "
    "site\n# may be the target, or a source, in turn. `fedbridge deploy advise . --dry-run` says "
    "what leaves it."
)


def site_settings_text(plan: DeploymentPlan, site: str, port: int) -> str:
    """A new ``site.toml``; flat, with plain values, because Flower's node reads it too."""
    agreed, reading = plan.agreed(site), plan.read_as()
    split = {name: agreed[name] for name in agreed if name not in ("role", *reading)}
    lines: dict[str, Mapping[str, object]] = {
        f"The part of site {site} in this federation. Fill in `data`; the rest is agreed.": {
            "site": site,
            "role": agreed["role"],
        },
        f"The whole path of {what_it_is(plan)}, which is read here alone.": {"data": ""},
        "Where the coordinator's link is, and a free port of this machine.": {
            "link": plan.address,
            "port": port,
        },
        f"How {HOW_READ[plan.arrays is None]}": reading,
        "How this site's rows will be divided, for its check (n-target 0: all to train on).": split,
        FOR_ADVICE: {"advice": True, "matrix": False},
    }
    own: dict[str, Mapping[str, object]] = {
        "What this site computes on; no run can choose it. `deploy check` says if it is there.": {
            "device": "cuda",
        },
        "Differential privacy of this site's rows: its own choice, see docs/deploy.md.": {
            "record-epsilon": 10.0,
            "record-rounds": plan.rounds,
            "record-clip": 1.0,
            "record-delta": 1e-5,
        },
        "Floors that no run can lower, with their defaults; see docs/deploy.md.": Floors().config(),
        "Take part only in runs of these apps and settings; `deploy check` shows their hashes.": {
            APPROVE: []
        },
    }
    parts = [f"# {comment}\n{tomli_w.dumps(values)}" for comment, values in lines.items() if values]
    if plan.arrays is None:
        parts.append("".join(f"# {line}\n" for line in OWN_FILE.splitlines()))
    for comment, values in own.items():
        settings = "".join(f"# {line}\n" for line in tomli_w.dumps(values).splitlines())
        parts.append(f"# {comment}\n{settings}")
    return "\n".join(parts)


def changed_settings(text: str, values: Mapping[str, str | int | float]) -> str:
    """A ``site.toml`` in which some settings have other values, and nothing else is another."""
    header = re.search(r"^\s*\[", text, re.MULTILINE)
    top, tables = (text[: header.start()], text[header.start() :]) if header else (text, "")
    for name, value in values.items():
        line = tomli_w.dumps({name: value}).strip()
        entry = re.compile(rf"^{re.escape(name)}\s*=.*$", re.MULTILINE)
        found = entry.search(top)
        if found is None:
            top = f"{line}\n{top}"
        else:
            top = f"{top[: found.start()]}{line}{top[found.end() :]}"
    return top + tables

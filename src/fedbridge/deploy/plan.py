"""What a deployment is to be: its sites, where they meet, what they learn and how."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fedbridge.data.split import TEST_FRACTION
from fedbridge.data.summary import Reading
from fedbridge.errors import FedbridgeError, OptionError
from fedbridge.options import check_number, check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.data.site_package import Role

FORMAT = 1
PORT = 8000
NODE_PORT = 9094
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?")


class DeploymentError(FedbridgeError):
    """A deployment's folder that is not as it should be; the message says what to do."""


@dataclass(frozen=True)
class Plan:
    """All that ``deploy init`` is told.

    Attributes:
        sources: The data-rich sites, in order.
        target: The site that adapts.
        host: The name or IP address by which the sites reach the coordinator.
        port: The port there.
        reading: How every site reads its table.
        method: What trains.
        rounds: How many rounds.
        seed: Decides the target's split and everything random in the run.
        model: The network's name.
        n_target: Labelled rows that the target uses; ``None`` for all its training rows.
        test_fraction: Share of the target's rows set aside for testing.
        options: Options of run and method by name.
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

    def __post_init__(self) -> None:
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
    def address(self) -> str:
        """Where the link is; an IPv6 address stands in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def role(self, site: str) -> Role:
        """What a site is in this federation."""
        return "target" if site == self.target else "source"

    def to_json(self) -> str:
        """The plan as JSON text with a format version."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what :meth:`to_json` wrote, and refuse anything else."""
        try:
            content = json.loads(text)
            if content.pop("format") != FORMAT:
                raise ValueError("it has another format")
            reading = content.pop("reading")
            for name in ("columns", "categorical"):
                reading[name] = None if reading[name] is None else tuple(reading[name])
            sources = tuple(map(str, content.pop("sources")))
            return cls(sources, **content, reading=Reading(**reading))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DeploymentError(
                f"Expected the plan that `fedbridge deploy init` wrote, but it cannot be used: "
                f"{error}."
            ) from error

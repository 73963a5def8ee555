"""The options of a run over a network, in one place: their names, defaults and checks.

The strategy, the coordinator's app, ``fedbridge run --engine flower`` and ``fedbridge deploy`` all
take them from here. Python and the command line write ``norm_bound``; Flower's configurations write
``norm-bound``, and empty text where nothing is said.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from fedbridge.base.options import check_number
from fedbridge.flower.codec import check_codec
from fedbridge.flower.privacy import SETTINGS

ConfigValue = str | int | float | bool


@dataclass(frozen=True)
class NetworkOptions:
    """What a coordinator is told about its network.

    Attributes:
        timeout: seconds that sites have to answer in a round; who is late is left out of it.
        wait: seconds to wait for sites at the start, and for the target when it is missing.
        encoding: how updates travel, ``float32``, ``bfloat16`` or ``int8``.
        norm_bound: longest update that is believed; None for any.
    """

    timeout: float = 3600
    wait: float = 300
    encoding: str = "float32"
    norm_bound: float | None = None

    def __post_init__(self) -> None:
        check_codec(self.encoding)
        for name in ("timeout", "wait"):
            check_number(name, getattr(self, name), least=0.0)
        if self.norm_bound is not None:
            check_number("norm_bound", self.norm_bound, above=0)

    def config(self) -> dict[str, ConfigValue]:
        """All of them as a run configuration of Flower holds them."""
        return {config_key(name): "" if v is None else v for name, v in asdict(self).items()}


def config_key(name: str) -> str:
    """What Flower's configurations call an option."""
    return name.replace("_", "-")


NETWORK = tuple(field.name for field in fields(NetworkOptions))
"""Options of a run over a network, for its coordinator."""

PRIVACY = tuple(name.replace("-", "_") for name in SETTINGS)
"""Options of a run over a network, for its sites: differential privacy."""

SITE_FOLDER = "FEDBRIDGE_SITE"
"""By this variable of the environment a node knows the folder of its site."""

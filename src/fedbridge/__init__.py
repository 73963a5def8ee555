"""fedbridge: data-rich sources help one data-poor target, and no data moves.

Public names are imported when they are first used: `import fedbridge` alone loads no torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from fedbridge._version import __version__ as __version__

if TYPE_CHECKING:
    from fedbridge import methods, rules, theory
    from fedbridge.advice.advise import advise
    from fedbridge.advice.verdict import Advice
    from fedbridge.aggregate import aggregate
    from fedbridge.blocks import Blocks
    from fedbridge.data import FederatedTask
    from fedbridge.data.load import load_task
    from fedbridge.errors import FedbridgeError
    from fedbridge.estimators import Estimate, NoiseStream, auto_beta, estimate, measure_noise
    from fedbridge.geometry import Geometry, Noise, measure
    from fedbridge.loop import RunResult
    from fedbridge.rules import Mix
    from fedbridge.run import run
    from fedbridge.sketch import Sketch

__all__ = [
    "Advice",
    "Blocks",
    "Estimate",
    "FedbridgeError",
    "FederatedTask",
    "Geometry",
    "Mix",
    "Noise",
    "NoiseStream",
    "RunResult",
    "Sketch",
    "advise",
    "aggregate",
    "auto_beta",
    "estimate",
    "load_task",
    "measure",
    "measure_noise",
    "methods",
    "rules",
    "run",
    "theory",
]

_HOMES = {
    "advice": ("Advice", "advise"),
    "aggregate": ("aggregate",),
    "blocks": ("Blocks",),
    "data": ("FederatedTask",),
    "data.load": ("load_task",),
    "errors": ("FedbridgeError",),
    "estimators": ("Estimate", "NoiseStream", "auto_beta", "estimate", "measure_noise"),
    "geometry": ("Geometry", "Noise", "measure"),
    "rules": ("Mix",),
    "loop": ("RunResult",),
    "run": ("run",),
    "sketch": ("Sketch",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


class _Root(ModuleType):
    """Keeps a public function where a module has its name: importing `fedbridge.run` sets both."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A public name, imported when somebody asks for it."""
        if name in _HOME_OF:
            value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        elif name in __all__:
            value = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """All names, those not imported yet too."""
    return sorted({*globals(), *__all__})

"""fedbridge: data-rich sources help one data-poor target, and no data moves.

Public names are imported when they are first used: `import fedbridge` alone loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fedbridge._version import __version__ as __version__

if TYPE_CHECKING:
    from fedbridge import methods
    from fedbridge.advice.matrix import AdviceMatrix
    from fedbridge.advice.verdict import Advice
    from fedbridge.base import errors
    from fedbridge.base.errors import FedbridgeError
    from fedbridge.core import rules, theory
    from fedbridge.core.aggregate import aggregate
    from fedbridge.core.blocks import Blocks
    from fedbridge.core.estimators import Estimate, NoiseStream, auto_beta, estimate, measure_noise
    from fedbridge.core.geometry import Geometry, Noise, measure
    from fedbridge.core.rules import Mix
    from fedbridge.core.sketch import Sketch
    from fedbridge.data.load import load_task
    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.loop import RunResult
    from fedbridge.runs.comparison import Comparison
    from fedbridge.workflows import tracking
    from fedbridge.workflows.advise import advise, advise_matrix
    from fedbridge.workflows.compare import compare
    from fedbridge.workflows.estimator import (
        FederatedClassifier,
        FederatedRegressor,
        target_folds,
    )
    from fedbridge.workflows.export import export
    from fedbridge.workflows.finished import LoadedRun, load_run, predict
    from fedbridge.workflows.run import run

__all__ = [
    "Advice",
    "AdviceMatrix",
    "Blocks",
    "Comparison",
    "Estimate",
    "FedbridgeError",
    "FederatedClassifier",
    "FederatedRegressor",
    "FederatedTask",
    "Geometry",
    "LoadedRun",
    "Mix",
    "Noise",
    "NoiseStream",
    "RunResult",
    "Sketch",
    "advise",
    "advise_matrix",
    "aggregate",
    "auto_beta",
    "compare",
    "errors",
    "estimate",
    "export",
    "load_run",
    "load_task",
    "measure",
    "measure_noise",
    "methods",
    "predict",
    "rules",
    "run",
    "target_folds",
    "theory",
    "tracking",
]

_WHERE = {
    "advice.matrix": ("AdviceMatrix",),
    "advice.verdict": ("Advice",),
    "base.errors": ("FedbridgeError",),
    "core.aggregate": ("aggregate",),
    "core.blocks": ("Blocks",),
    "core.estimators": ("Estimate", "NoiseStream", "auto_beta", "estimate", "measure_noise"),
    "core.geometry": ("Geometry", "Noise", "measure"),
    "core.rules": ("Mix",),
    "core.sketch": ("Sketch",),
    "data.load": ("load_task",),
    "data.task": ("FederatedTask",),
    "federation.loop": ("RunResult",),
    "runs.comparison": ("Comparison",),
    "workflows.advise": ("advise", "advise_matrix"),
    "workflows.compare": ("compare",),
    "workflows.estimator": ("FederatedClassifier", "FederatedRegressor", "target_folds"),
    "workflows.export": ("export",),
    "workflows.finished": ("LoadedRun", "load_run", "predict"),
    "workflows.run": ("run",),
}
_PACKAGES = {"errors": "base.", "rules": "core.", "theory": "core.", "tracking": "workflows."}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A public name, imported when somebody asks for it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _MODULE_OF:
            value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        else:
            value = import_module(f"{__name__}.{_PACKAGES.get(name, '')}{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """All names, those not imported yet too."""
    return sorted({*globals(), *__all__})

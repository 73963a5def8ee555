"""Names of models that may travel: built-in ones, which no message can turn into code or files."""

from __future__ import annotations

import re

from fedbridge.errors import OptionError, nearest

NETWORKS = ("linear", "mlp", "sigmoid", "cnn", "mnist-cnn", "resnet18", "resnet50")
BUILT_IN = re.compile(rf"({'|'.join(NETWORKS)})(:\d+|:pretrained|:normalised)?", re.ASCII)


def is_built_in(name: object) -> bool:
    """Whether every site can build this model from its name alone."""
    return isinstance(name, str) and BUILT_IN.fullmatch(name) is not None


def check_built_in(name: object) -> str:
    """Refuse at once a model that the sites would refuse later."""
    if isinstance(name, str) and is_built_in(name):
        return name
    shown = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
    raise OptionError(
        f"Expected a built-in model, because every site builds it from its name, but got {shown}: "
        f"choose one of {', '.join(NETWORKS)}, or write a Flower app of your own with "
        f"client_app(model=...).{nearest(shown.strip(chr(39)), NETWORKS)}"
    )

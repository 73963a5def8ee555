"""The public path of ``fedbridge.flower``: the federation on Flower, as apps import it."""

from typing import Any

from fedbridge import flower

__all__ = flower.__all__


def __getattr__(name: str) -> Any:
    """Load a part when it is asked for."""
    return getattr(flower, name)

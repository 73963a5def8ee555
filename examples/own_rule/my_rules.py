"""A rule of one's own: trust the sources that point where the target points."""

from fedbridge import Geometry, Mix
from fedbridge.rules import rule


@rule("agreeing", noise="none")
def agreeing(geometry: Geometry, *, least: float = 0.0, trust: float = 0.5) -> Mix:
    """(1 − w) ḡ + w · mean of the sources whose cosine with the target is above ``least``.

    Where no source agrees, the target goes alone (w = 0); else w is ``trust``.
    """
    agrees = (geometry.cosine > least).double()  # (blocks, sources)
    shares = agrees / agrees.sum(1, keepdim=True).clamp_min(1)
    weight = trust * agrees.amax(1)
    sources = weight[:, None] * shares
    return Mix(target=1 - weight, sources=sources, beta=trust * agrees)

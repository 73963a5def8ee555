"""Why a site failed, in words that give nothing of its rows away."""

from __future__ import annotations

import re

from fedbridge.errors import FedbridgeError

LONGEST = 400
QUOTED_ERROR = re.compile(r"([A-Za-z_]\w*): ", re.ASCII)


class SiteError(FedbridgeError):
    """Something went wrong at a site; its own log says what."""


def printable(text: object) -> str:
    """Text from elsewhere on one line, without control characters and not too long."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:LONGEST])


def only_kind(error: BaseException) -> str:
    """The kind of an error, without its text, which may quote rows."""
    return f"{type(error).__name__} at the site, whose own log says more"


def public_reason(failure: str) -> str:
    """Why a job failed, for others: our own words, but of any other error only its kind."""
    quoted = QUOTED_ERROR.match(failure)
    if quoted is None:
        return failure
    return f"{quoted[1]} at the site, whose own log says more"

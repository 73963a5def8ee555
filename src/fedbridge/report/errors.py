"""What can go wrong when a page is made."""

from __future__ import annotations

from fedbridge.errors import FedbridgeError


class ReportError(FedbridgeError):
    """A folder that is no run or comparison, or a file in it that cannot be read."""

"""What a check found: in order, worth knowing, or a problem with what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from fedbridge.errors import FedbridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: The thing.
        state: How it is.
        said: What was found; a problem says what to do as well.
    """

    what: str
    state: State
    said: str


@dataclass(frozen=True)
class Report:
    """All findings of a check, in order."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return all(finding.state != "problem" for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """Ready for JSON."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}


def looked_at(what: str, look: Callable[[], str | Iterable[Finding]]) -> list[Finding]:
    """Look at one thing: what it says, its own findings, or the problem that it raises."""
    try:
        said = look()
    except (FedbridgeError, OSError) as error:
        return [Finding(what, "problem", str(error))]
    return [Finding(what, "ok", said)] if isinstance(said, str) else list(said)

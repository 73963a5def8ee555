"""What a check finds, one thing after another, and how it is told."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from fedbridge.base.errors import FedbridgeError, NotANumberError, SeveralError
from fedbridge.deploy.folders import DeploymentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fedbridge.data.tables.proposals import Proposal

FindingState = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what was found; a problem says what to do as well.

    Attributes:
        what: the thing.
        state: whether it is in order.
        said: what was found.
        command: what to type or to paste, on lines of its own; empty if nothing.
    """

    what: str
    state: FindingState
    said: str
    command: str = ""


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


class OtherwiseError(DeploymentError):
    """A site says otherwise than the plan.

    Attributes:
        command: what it types to say the same.
    """

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message)
        self.command = command


def looked_at(what: str, look: Callable[[], str | Iterable[Finding]]) -> list[Finding]:
    """Look at one thing: what it says, its own findings, or the problems that it raises."""
    try:
        said = look()
    except OtherwiseError as error:
        return [Finding(what, "problem", str(error), error.command)]
    except (FedbridgeError, OSError) as error:
        return [Finding(what, "problem", text) for text in told_once(several(error))]
    return [Finding(what, "ok", said)] if isinstance(said, str) else list(said)


def several(error: Exception) -> Sequence[Exception]:
    """Every one of the errors that one may be."""
    return error.errors if isinstance(error, SeveralError) else (error,)


def told_once(errors: Sequence[Exception]) -> Iterator[str]:
    """What is wrong with a site's file; numbers that one setting reads are told of once."""
    remedies: dict[str, list[str]] = {}
    for error in errors:
        if isinstance(error, NotANumberError) and error.remedy:
            remedies.setdefault(error.remedy, []).append(error.column)
    for error in errors:
        if not isinstance(error, NotANumberError) or not error.remedy:
            yield str(error)
        elif columns := remedies.pop(error.remedy, None):
            others = ", ".join(map(repr, columns[1:]))
            line = OPTION.sub(r'\1 = "\2"', error.remedy)
            also = f" It is the same in {others}." if others else ""
            yield f"{error}{also} As a line of site.toml: {line}."


OPTION = re.compile(r"(\w+)='([^']*)'")


def proposals(proposed: Sequence[Proposal], where: str = "") -> Iterator[Finding]:
    """A finding per site, with lines for its settings; nothing is done unasked."""
    for site in dict.fromkeys(proposal.site for proposal in proposed):
        own = [proposal for proposal in proposed if proposal.site == site]
        at = where or f"at {site!r}"
        said = (
            f"{at} {', '.join(proposal.said for proposal in own)}: if that is so, the lines below "
            f"say it in the site.toml of {site}; nothing is done unasked"
        )
        lines = "\n".join(proposal.line for proposal in own)
        yield Finding("data" if where else f"{site}: site.toml", "note", said, lines)

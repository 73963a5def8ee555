"""Is there a link, is it the right one, and do its clock and ours agree?"""

from __future__ import annotations

import http.client
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from fedbridge.base.errors import FedbridgeError

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 5.0
OF_CLOCKS = (9, 10)
"""OpenSSL's codes of a certificate that is not valid yet, or no more."""

MOST_AHEAD, MOST_BEHIND = timedelta(seconds=5), timedelta(seconds=300)
"""How far a node's clock may be off before Flower's link refuses its messages."""
WHOLE_SECOND = timedelta(seconds=1)
"""How exactly the link tells its time."""


class LinkError(FedbridgeError):
    """The link cannot be reached, or is not the one that it should be."""


class ClockError(LinkError):
    """The clock of this machine, or the link's, is wrong."""


class LinkAwayError(LinkError):
    """Nothing answers where the link should be: it may not have been started yet."""


def reach_link(address: str, ca: Path) -> None:
    """Raise unless the link at ``host:port`` answers and its certificate is signed by ``ca``.

    Raises:
        ClockError: the clocks here and there differ by more than Flower lets pass.
    """
    host, port = split_address(address)
    sent = datetime.now(UTC)
    try:
        context = ssl.create_default_context(cafile=str(ca))
        line = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
        try:
            line.request("GET", "/health")
            with line.getresponse() as response:
                status, date = response.status, response.headers.get("Date", "")
        finally:
            line.close()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OF_CLOCKS:
            raise ClockError(
                f"Expected the certificate of the link at {address} to be valid now, but "
                f"{error.verify_message.rstrip('.')}: is the clock of this machine right? It says "
                f"{sent:%Y-%m-%d %H:%M} UTC. If it is, let the coordinator renew the certificate."
            ) from error
        raise LinkError(
            f"Expected the link at {address} to have a certificate for {host} signed by "
            f"{ca.name}, but {error.verify_message.rstrip('.')}: compare ca.crt with the "
            f"coordinator's, or let the coordinator renew the certificate for this name."
        ) from error
    except ssl.SSLError as error:
        raise LinkError(
            f"Expected the link at {address} to speak TLS, but got: {error.reason or error}; is "
            f"another program on this port, or is the link insecure?"
        ) from error
    except socket.gaierror as error:
        raise LinkAwayError(
            f"Expected to find the host {host!r}, but its name cannot be resolved: correct it, "
            f"or use the IP address."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise LinkAwayError(
            f"Expected a link at {address}, but got: {error or type(error).__name__}; start it "
            f"with `fedbridge deploy link`, and let firewalls pass this port."
        ) from error
    if status != http.HTTPStatus.OK:
        raise LinkError(
            f"Expected Flower's link at {address}, but its health page answered {status}: is "
            f"another program on this port?"
        )
    _check_clock(sent, date)


def _check_clock(sent: datetime, date: str) -> None:
    """Refuse a clock that Flower's link would refuse: a node's messages bear their time."""
    try:
        there = parsedate_to_datetime(date)
    except ValueError:
        return  # it does not say
    ahead, behind = sent - (there + WHOLE_SECOND), there - datetime.now(UTC)
    if ahead <= MOST_AHEAD and behind <= MOST_BEHIND:
        return
    off, which = (ahead, "ahead of") if ahead > MOST_AHEAD else (behind, "behind")
    raise ClockError(
        f"Expected the clock of this machine to agree with the link's, but it is {in_words(off)} "
        f"{which} it ({sent:%Y-%m-%d %H:%M:%S} UTC here, {there:%Y-%m-%d %H:%M:%S} there): set the "
        f"clock that is wrong, best by NTP, since the link lets in nobody whose clock is more than "
        f"{MOST_AHEAD.seconds} seconds ahead or {MOST_BEHIND.seconds} behind."
    )


def in_words(length: timedelta) -> str:
    """A length of time as people say it."""
    seconds = length.total_seconds()
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 address stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise LinkError(f"Expected the link's address as host:port, but got {address!r}.")
    return host.strip("[]"), int(port)

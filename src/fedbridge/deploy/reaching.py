"""Does the link answer, and is it the right one? Asked as a site's node would ask."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import TYPE_CHECKING

from fedbridge.errors import FedbridgeError

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 5.0


class LinkError(FedbridgeError):
    """The link cannot be reached, or is not the one that it should be."""


def reach_link(address: str, ca: Path, patience: float = PATIENCE) -> None:
    """Raise unless the link at ``host:port`` answers and its certificate is signed by ``ca``."""
    host, port = split_address(address)
    try:
        context = ssl.create_default_context(cafile=str(ca))
        line = http.client.HTTPSConnection(host, port, timeout=patience, context=context)
        try:
            line.request("GET", "/health")
            status = line.getresponse().status
        finally:
            line.close()
    except ssl.SSLCertVerificationError as error:
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
        raise LinkError(
            f"Expected to find the host {host!r}, but its name cannot be resolved: correct it, "
            f"or use the IP address."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise LinkError(
            f"Expected a link at {address}, but got: {error or type(error).__name__}; start it "
            f"with `fedbridge deploy link`, and let firewalls pass this port."
        ) from error
    if status != http.HTTPStatus.OK:
        raise LinkError(
            f"Expected Flower's link at {address}, but its health page answered {status}: is "
            f"another program on this port?"
        )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 address stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise LinkError(f"Expected the link's address as host:port, but got {address!r}.")
    return host.strip("[]"), int(port)

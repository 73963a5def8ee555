"""A proxy on loopback that counts the bytes of everything that passes through it."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class CountingProxy:
    """Forwards connections to an address.

    Attributes:
        address: where it listens.
        up: bytes from those who connect.
        down: bytes to them.
        cuts: connections that it has cut.
    """

    def __init__(self, address: str, idle: float | None = None) -> None:
        """Cut connections through which nothing has gone for ``idle`` seconds, as firewalls do."""
        self._idle, self.cuts = idle, 0
        host, _, port = address.rpartition(":")
        self._behind = (host, int(port))
        self._listening = socket.create_server((host, 0))
        self.address = f"{host}:{self._listening.getsockname()[1]}"
        self.up = self.down = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut all connections."""
        for open_socket in (self._listening, *self._sockets):
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._behind)
                self._sockets += [client, server]
                last = [time.monotonic()]
                for end in (client, server):
                    end.settimeout(self._idle)
                for pair, counter in (((client, server), "up"), ((server, client), "down")):
                    threading.Thread(
                        target=self._pass, args=(*pair, counter, last), daemon=True
                    ).start()

    def _pass(
        self, source: socket.socket, sink: socket.socket, counter: str, last: list[float]
    ) -> None:
        with suppress(OSError):
            while data := self._received(source, last):
                with self._lock:
                    setattr(self, counter, getattr(self, counter) + len(data))
                last[0] = time.monotonic()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _received(self, source: socket.socket, last: list[float]) -> bytes:
        """The next bytes; none when the connection has ended, or has been idle for too long."""
        while True:
            try:
                return source.recv(1 << 16)
            except TimeoutError:
                assert self._idle is not None
                if time.monotonic() - last[0] >= self._idle:
                    with self._lock:
                        self.cuts += 1
                    source.shutdown(socket.SHUT_RDWR)
                    return b""

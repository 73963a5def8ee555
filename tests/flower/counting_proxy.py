"""A proxy on loopback that counts the bytes of everything that passes through it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CountingProxy:
    """Forwards connections to an address.

    Attributes:
        address: where it listens.
        up: bytes from those who connect.
        down: bytes to them.
    """

    def __init__(self, address: str) -> None:
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
                for pair, counter in (((client, server), "up"), ((server, client), "down")):
                    threading.Thread(target=self._pass, args=(*pair, counter), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counter: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, counter, getattr(self, counter) + len(data))
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

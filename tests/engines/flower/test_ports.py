"""Ports that a server can have."""

import socket
from itertools import islice

from fedbridge.engines.flower.ports import CANDIDATES, LOOPBACK, free_ports, is_free


def test_ports_are_different_and_can_be_listened_on():
    ports = list(islice(free_ports(), 20))
    assert len(set(ports)) == 20
    assert set(ports) <= set(CANDIDATES)
    with socket.create_server((LOOPBACK, ports[0])):
        pass


def test_a_port_with_a_server_is_not_free():
    port = next(free_ports())
    assert is_free(port)
    with socket.create_server((LOOPBACK, port)):
        assert not is_free(port)

"""Signals around work that cleans up after itself."""

import os
import signal
import threading

import pytest

from fedbridge.flower.programs import termination_as_exit, uninterrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handlers():
    return [signal.getsignal(one) for one in SIGNALS]


@pytest.fixture(autouse=True)
def _unchanged():
    """Nothing is left changed; ``nohup``, under which hang-ups are ignored, plays no part."""
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    before = handlers()
    yield
    assert handlers() == before
    signal.signal(signal.SIGHUP, hung_up)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_termination_ends_the_block_as_an_exception(signum):
    with pytest.raises(SystemExit) as leaving, termination_as_exit():
        os.kill(os.getpid(), signum)
    assert leaving.value.code == 128 + signum


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_as_exit():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_cleaning_up_is_not_interrupted():
    with uninterrupted():
        for signum in SIGNALS:
            os.kill(os.getpid(), signum)


def test_other_threads_change_nothing():
    seen = []

    def work() -> None:
        with termination_as_exit(), uninterrupted():
            seen.extend(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == handlers()

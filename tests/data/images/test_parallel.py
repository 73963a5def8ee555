"""Many small jobs on all cores: in order, bounded, silent where nobody looks."""

import io
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from fedbridge.data.images import parallel
from fedbridge.data.images.parallel import by_chunks

FILES = [Path(str(k)) for k in range(23)]


def numbers(files):
    return [int(str(file)) for file in files]


@pytest.mark.parametrize("cores", [1, 2, 7])
def test_results_come_in_order_whatever_the_number_of_cores(monkeypatch, cores):
    monkeypatch.setattr(parallel, "core_count", lambda: cores)
    chunks = [*by_chunks(numbers, FILES, 5, "counting")]
    assert chunks == [[*range(start, min(start + 5, 23))] for start in range(0, 23, 5)]


def test_nothing_comes_of_nothing():
    assert [*by_chunks(numbers, [], 5, "counting")] == []


def test_only_a_few_results_wait_for_the_reader(monkeypatch):
    monkeypatch.setattr(parallel, "core_count", lambda: 1)
    begun = []

    def note(files):
        begun.append(files)

    results = by_chunks(note, FILES, 1, "counting")
    next(results)
    time.sleep(0.2)
    assert len(begun) <= 4
    results.close()
    assert len(begun) <= 4


def test_of_several_failures_the_first_in_order_is_told(monkeypatch):
    monkeypatch.setattr(parallel, "core_count", lambda: 4)
    another_failed = threading.Event()

    def fail(files):
        (number,) = numbers(files)
        if number == 0:
            another_failed.wait(5)
        another_failed.set()
        raise ValueError(f"job {number}")

    with pytest.raises(ValueError, match="job 0"):
        [*by_chunks(fail, FILES, 1, "failing")]


def test_jobs_run_on_one_torch_thread_and_leave_the_number_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert [*by_chunks(lambda _: torch.get_num_threads(), FILES, 10, "asking")] == [1, 1, 1]
        assert torch.get_num_threads() == 2
        fresh = []
        thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert fresh == [2]
    finally:
        torch.set_num_threads(before)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "patience", "shown"),
    [(Terminal(), 0.0, True), (Terminal(), 60.0, False), (io.StringIO(), 0.0, False)],
)
def test_a_bar_is_shown_on_a_terminal_when_it_takes_long(monkeypatch, stream, patience, shown):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(parallel, "PATIENCE", patience)
    list(by_chunks(numbers, FILES, 5, "counting"))
    assert ("counting" in stream.getvalue()) is shown
    assert shown or not stream.getvalue()

"""Children that share out work: the longest first, also where that is learnt on the way."""

from __future__ import annotations

from fedbridge.base.processes import Crew, work_in_processes


def echo(item, tell):
    return item


def order(crew: Crew, items, length, *, learning=False):
    return [
        items[event.item]
        for event in crew.do(items, length, learning=learning)
        if event.kind == "done"
    ]


def test_the_longest_comes_first_and_equals_in_their_order():
    crew = Crew(echo, 1)
    try:
        items = ["bb", "a", "ccc", "dd"]
        assert order(crew, items, len) == ["ccc", "bb", "dd", "a"]
        assert order(crew, items, None) == items
    finally:
        crew.close()


def test_lengths_are_learnt_from_what_is_done():
    known: dict[str, int] = {}
    done = []
    for event in work_in_processes(echo, ["a1", "b1", "a2", "b2"], 1, lambda i: known.get(i[0], 9)):
        done.append(event.value)
        known[event.value[0]] = {"a": 1, "b": 2}[event.value[0]]
    assert done == ["a1", "b1", "b2", "a2"]


def test_lengths_that_do_not_change_are_asked_for_once():
    asked = []

    def length(item):
        asked.append(item)
        return item

    crew = Crew(echo, 1)
    try:
        assert order(crew, [1, 3, 2], length) == [3, 2, 1]
        assert sorted(asked) == [1, 2, 3]
    finally:
        crew.close()

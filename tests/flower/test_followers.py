"""Who follows a run over Flower hears what the coordinator writes, once, and with what is run."""

from small import blobs

import fedbridge as fb
from fedbridge.federation.follow import Audience, Follower
from fedbridge.flower.localhost import _WrittenRounds
from fedbridge.runs.folder import RunFolder


class Listener(Follower):
    def __init__(self):
        self.heard = []

    def begin(self, config, history, out):
        self.heard.append((config["method"], len(history), out))

    def __call__(self, line):
        self.heard.append(line["round"])

    def end(self, summary):
        self.heard.append(summary)


def test_rounds_are_told_as_they_are_written(tmp_path):
    listener, folder = Listener(), RunFolder(tmp_path / "run")
    with Audience([listener]) as audience:
        follow = _WrittenRounds(folder, audience, kept=True)
        follow()
        fb.run(blobs(), "fedda", rounds=2, workers=1, out=folder.path)
        follow()
        follow()
    assert listener.heard == [("fedda", 0, folder.path), 1, 2, None]
    later = Listener()
    with Audience([later]) as audience:
        follow = _WrittenRounds(folder, audience, kept=False)
        done = fb.run(blobs(), "fedda", rounds=3, workers=1, out=folder.path, resume=True)
        follow()
        audience.end(done.config, done.history, done.out, {"rounds": 3})
    assert later.heard == [("fedda", 2, None), 3, {"rounds": 3}]

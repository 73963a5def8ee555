"""Fuzzers: hostile input of many kinds, each case from a seed, each answer judged.

``make fuzz`` runs them; ``python -m fuzz --kind npz --seed 7 --cases 100`` in ``tests/`` runs more
of one kind, and ``--case 41`` one case alone, with what it printed. The oracle is the same
everywhere: an error of one sentence or a right answer; never another exception, never a hang, never
more memory than is allowed, nothing left behind and nothing written elsewhere.
"""

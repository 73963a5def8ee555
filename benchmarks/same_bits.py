"""Do the same runs still give the same bits? Hashes of models and histories of thirty runs.

A change of the code's shape must not change what it computes. ``--record`` writes the hashes of
every run's final model and history (times aside) to ``same_bits.json``; without it the runs are
done again and compared with that file. Hashes hold for one machine and one version of torch, so
record them with the code before a change and compare with the code after it:

    python benchmarks/same_bits.py --record     # before
    python benchmarks/same_bits.py              # after; --only NAME for some of them

``heart`` needs its data (``fedbridge data fetch heart``); its runs are skipped without them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedbridge as fb

if TYPE_CHECKING:
    import torch

RECORD = Path(__file__).with_suffix(".json")
RULES = ("source-only", "fedavg", "fedda", "fedgp", "fedda-auto", "fedgp-auto", "fedgp-joint")
METHODS = ("ditto", "fedrep", "apfl", "knn-per", "kd3a", "fada", "mme", "finetune-cv", "oracle")


def cases() -> dict[str, dict[str, Any]]:
    """Every run by a name that says what is in it."""
    digits: dict[str, Any] = {"task": "digits-noise", "rounds": 4, "workers": 2}
    found = {f"digits {method}": {**digits, "method": method} for method in (*RULES, *METHODS)}
    for workers in (1, 2):
        found[f"digits auto, workers {workers}"] = {**digits, "method": "auto", "workers": workers}
    found["digits auto, warm-up, dropout, early stopping"] = {
        **digits,
        "method": "auto",
        "warmup": 1,
        "dropout": 0.3,
        "early_stopping": 2,
        "participation": 0.5,
        "class_weights": "balanced",
    }
    found["digits fedgp, probes, borrowed noise"] = {
        **digits,
        "method": "fedgp-auto",
        "evidence": "probe",
        "noise_from": "borrowed",
    }
    found["digits fedda, first round's evidence"] = {
        **digits,
        "method": "fedda",
        "evidence": "init",
    }
    found["a CSV, auto"] = {"task": "csv", "method": "auto", "rounds": 4, "workers": 2}
    found["a CSV, fedda"] = {"task": "csv", "method": "fedda", "rounds": 4, "workers": 1}
    found["rbf fedgp"] = {"task": "rbf", "method": "fedgp", "rounds": 4, "workers": 1}
    heart: dict[str, Any] = {"task": "heart", "target": "va", "rounds": 4, "workers": 2}
    for method in ("auto", "fedgp-auto", "finetune-cv"):
        found[f"heart {method}"] = {**heart, "method": method}
    for engine in ("flower-sim", "flower"):
        found[f"digits auto, {engine}"] = {
            "task": "digits-noise",
            "rounds": 3,
            "method": "auto",
            "engine": engine,
        }
    return found


def table(folder: Path) -> Path:
    """A table with numbers, categories and gaps, the same every time."""
    chooser = np.random.default_rng(7)
    lines = ["site,age,pressure,kind,ill"]
    for site, shift in (("north", 0.0), ("east", 0.4), ("south", -0.3)):
        for _ in range(80):
            age, pressure = chooser.normal(50 + 10 * shift, 9), chooser.normal(120, 12)
            kind = chooser.choice(["a", "b", "c"])
            ill = int(age + 0.3 * pressure + 6 * (kind == "a") + chooser.normal(0, 8) > 88)
            gap = "" if chooser.random() < 0.05 else f"{pressure:.1f}"
            lines.append(f"{site},{age:.1f},{gap},{kind},{'yes' if ill else 'no'}")
    file = folder / "patients.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def without_times(value: Any) -> Any:
    """A history without what differs from run to run: times, and bytes on a real wire."""
    if isinstance(value, dict):
        return {
            name: without_times(part)
            for name, part in value.items()
            if "seconds" not in name and "bytes" not in name
        }
    return [without_times(part) for part in value] if isinstance(value, list) else value


def digest(model: torch.nn.Module) -> str:
    """Checksum of a model's tensors by name."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.contiguous().numpy().tobytes())
    return found.hexdigest()[:20]


def hashes(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The hashes of one run."""
    options = dict(case)
    name, target = options.pop("task"), options.pop("target", None)
    if name == "csv":
        task = fb.load_task(table(folder), "north", site_column="site", label_column="ill")
    else:
        task = fb.load_task(name, target)
    with tempfile.TemporaryDirectory() as out:
        result = fb.run(task, seed=3, out=Path(out) / "run", **options)
    history = json.dumps(without_times(result.history), sort_keys=True)
    return {
        "model": digest(result.model),
        "history": hashlib.sha256(history.encode()).hexdigest()[:20],
        "accuracy": result.accuracy,
    }


def main() -> int:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--record", action="store_true", help="write the hashes of this code")
    parser.add_argument("--only", default="", help="runs whose name holds this")
    asked = parser.parse_args()
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    different = []
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases().items():
            if asked.only not in name:
                continue
            try:
                found = hashes(case, Path(folder))
            except fb.FedbridgeError as error:
                print(f"{name}: skipped: {error}")
                continue
            if asked.record:
                known[name] = found
                RECORD.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            same = known.get(name) == found
            print(f"{name}: {'same' if same else 'DIFFERENT'} {found}", flush=True)
            if not same:
                different.append(name)
    print(f"{len(different)} different: {', '.join(different)}" if different else "all the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

"""Folders of runs that were swapped, edited, forged, cut, killed or filled up."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import tomllib
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import tomli_w

from fedbridge.runs.folder import CHECKSUMS, SEALED, RunFolder
from fuzz.harness import Answer, Case
from fuzz.inputs import no_file, spoilt
from fuzz.world import NEW, run_words, world

if TYPE_CHECKING:
    import random

VALUES = (
    *(None, True, 0, -1, 10**30, 1e308, float("nan"), "", "x", "\x1b[31m", [], [None], ["x"], {}),
    *([1, 2, 3, 4, 5], {"a": 1}, [[]], "=1+1", "../../x", "<script>", {"": None}),
)


def copied(place: Path, which: Path, name: str = "run") -> Path:
    return Path(shutil.copytree(which, place / name))


def readers(rng: random.Random, place: Path, *more: str) -> list[str]:
    """A command that opens the run."""
    (place / "new.csv").write_text(NEW)
    return rng.choice(
        [
            ["predict", "run", "new.csv", "--out", "p.csv", *more],
            ["report", "run", "--out", "page.html", *more],
            ["report", "run", "--out", "page.html", "--tables", "tables", *more],
            ["watch", "run", "--once", *more],
            ["watch", "run", "--json", *more],
            run_words("run", "--resume", *more),
        ]
    )


OUTPUT = ("p.csv", "page.html", "tables", "run/")


def edited(rng: random.Random, content: object) -> object:
    """JSON with an entry removed, added, or of another kind."""
    if isinstance(content, dict) and content:
        key = rng.choice(list(content))
        how = rng.randrange(4)
        if how == 0:
            return {k: v for k, v in content.items() if k != key}
        if how == 1 or not isinstance(content[key], dict | list):
            return {**content, key: rng.choice(VALUES)}
        return {**content, key: edited(rng, content[key])}
    if isinstance(content, list) and content and rng.random() < 0.7:
        where = rng.randrange(len(content))
        return [*content[:where], edited(rng, content[where]), *content[where + 1 :]]
    return rng.choice(VALUES)


def edit_file(rng: random.Random, file: Path) -> None:
    """Change a record in a way that its reader could stumble over."""
    text = file.read_text()
    if rng.random() < 0.25:
        file.write_bytes(spoilt(rng, file.read_bytes()))
    elif rng.random() < 0.1:
        deep = rng.choice(["[" * 100_000, '{"a":' * 50_000, "\ufeff{}", "null", "[]", "7", "NaN"])
        file.write_text(deep)
    elif file.suffix == ".toml":
        changed = edited(rng, tomllib.loads(text))
        try:
            file.write_text(tomli_w.dumps(changed))  # type: ignore[arg-type]
        except (TypeError, ValueError, AttributeError):
            file.write_text(text + '\n[model]\nname = "os:system"\n')
    elif file.suffix == ".jsonl":
        lines = [json.loads(line) for line in text.splitlines()]
        where = rng.randrange(len(lines))
        lines[where] = edited(rng, lines[where])
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        file.write_text(json.dumps(edited(rng, json.loads(text))))


def records(rng: random.Random, place: Path) -> Case:
    """Edited JSON and TOML in a folder whose checksums were made anew by whoever edited it."""
    if rng.random() < 0.25:
        folder = copied(place, world().comparison)
        edit_file(rng, folder / "comparison.json")
        words = rng.choice(
            [
                ["report", "run", "--out", "page.html", "--tables", "tables"],
                ["watch", "run", "--once"],
                ["watch", "run", "--json"],
            ]
        )
        return Case(f"comparison.json: {words}", words, writes=OUTPUT[:3])
    folder = copied(place, world().run)
    found = [file for file in folder.rglob("*") if file.suffix in (".json", ".jsonl", ".toml")]
    name = str(rng.choice(sorted(found)).relative_to(folder))
    edit_file(rng, folder / name)
    if name != CHECKSUMS:
        if rng.random() < 0.7:
            RunFolder(folder).seal()
        elif rng.random() < 0.5:
            (folder / CHECKSUMS).unlink()
    words = readers(rng, place, *(["--unchecked"] if rng.random() < 0.3 else []))
    return Case(f"{name}: {words}", words, writes=OUTPUT)


def swaps(rng: random.Random, place: Path) -> Case:
    """A file swapped with another run's, edited, cut, removed or replaced by no file: refused."""
    folder = copied(place, world().run)
    name = rng.choice(SEALED)
    file = folder / name
    whole = file.read_bytes()
    how = rng.choice(["swapped", "edited", "cut", "appended", "none"])
    if how == "swapped":
        shutil.copy(world().other / name, file)
    elif how == "edited":
        file.write_bytes(spoilt(rng, whole))
    elif how == "cut":
        file.write_bytes(whole[: rng.randrange(len(whole))])
    elif how == "appended":
        file.write_bytes(whole + rng.choice([b" ", b"\n", b"\0", b"{}"]))
    else:
        how = no_file(rng, file)
    same = how not in ("zero", "sparse", "fifo") and file.is_file() and file.read_bytes() == whole
    words = readers(rng, place)

    def check(answer: Answer) -> str | None:
        if same:
            return None
        if not answer.refused:
            return f"{name} was {how}, and nobody noticed"
        return None if Path(name).name in answer.err else f"{name} is not named: {answer.err}"

    return Case(f"{name} {how}: {words}", words, writes=OUTPUT if same else (), check=check)


def tensors(rng: random.Random, place: Path) -> Case:
    """Safetensors with forged headers, sealed by whoever forged them."""
    folder = copied(place, world().run)
    file = rng.choice(sorted(folder.rglob("*.safetensors")))
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    how = rng.randrange(6)
    if how == 0:
        data = spoilt(rng, data)
    elif how == 1:
        length = rng.choice([0, 1, 2**31, 2**40, 2**63, 2**64 - 1, size + 1, size - 1])
        data = struct.pack("<Q", length) + data[8:]
    else:
        names = [name for name in header if name != "__metadata__"]
        name = rng.choice(names)
        if how == 2:
            header[name]["shape"] = rng.choice(
                [[10**12], [2**62, 4], [0], [], [-1], [1, 1, 1], "x"]
            )
        elif how == 3:
            header[name]["data_offsets"] = rng.choice([[0, 2**60], [8, 4], [-1, 8], [0, 0], [0]])
        elif how == 4:
            header[name]["dtype"] = rng.choice(["F64", "I8", "BOOL", "F8_E4M3", "Q99", 7, "F16"])
        else:
            header["__metadata__"] = rng.choice(
                [{}, {"format": "9"}, {"format": "1 other"}, {"a": 1}]
            )
            header[rng.choice(["x", "", "../y", "\x1b[31m"])] = header.pop(name)
        text = json.dumps(header).encode()
        data = struct.pack("<Q", len(text)) + text + data[8 + size :]
    file.write_bytes(data)
    if file.parent.name == "checkpoint" and rng.random() < 0.7:
        _agree(file)
        for later in (folder / "report.html", folder / CHECKSUMS):
            later.unlink()
    elif rng.random() < 0.8:
        RunFolder(folder).seal()
    words = readers(rng, place, *(["--unchecked"] if rng.random() < 0.3 else []))
    return Case(f"{file.name} ({how}) {data[:150]!r}: {words}", words, writes=OUTPUT)


def _agree(file: Path) -> None:
    """Give a forged checkpoint the checksums that it needs."""
    from fedbridge.base.files import to_json

    facts = file.with_suffix(".json")
    body = json.loads(facts.read_text())
    body["tensors_sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    del body["sha256"]
    facts.write_text(
        to_json({**body, "sha256": hashlib.sha256(to_json(body).encode()).hexdigest()})
    )


def bits(folder: Path) -> dict[str, object]:
    """All of a finished run that must be the same whatever happened on the way."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    names = ("model.safetensors", "test.safetensors", "preprocessing.json", "manifest.json")
    return {
        "history": [{k: v for k, v in ln.items() if not k.startswith("seconds")} for ln in lines],
        "summary": {k: v for k, v in summary.items() if k != "seconds"},
        **{name: (folder / name).read_bytes() for name in names},
    }


def completed(folder: Path) -> str | None:
    """What is wrong with a run that was interrupted and gone on with."""
    if bits(folder) != bits(world().run):
        return "the run that went on has other bits"
    RunFolder(folder).verify()
    left = [
        path.name for path in folder.rglob(".*") if path.name.endswith((".partial", ".running"))
    ]
    there = {path.name for path in folder.iterdir()}
    if left or there != {path.name for path in world().run.iterdir()}:
        return f"the folder holds {sorted(there)} and {left}"
    return None


def kills(rng: random.Random, place: Path) -> Case:
    """A run that is killed at some moment, or several times, and gone on with: the same bits."""
    moments = [rng.random() * 0.6 for _ in range(rng.choice([1, 1, 2, 3]))]

    def do() -> None:
        from fedbridge.cli.main import main

        for moment in moments:
            child = os.fork()
            if child == 0:
                os._exit(main(run_words("run", "--resume")))
            sleep(moment)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert main(run_words("run", "--resume")) == 0
        wrong = completed(Path("run"))
        assert wrong is None, wrong

    return Case(f"killed after {moments}", do, writes=("run",), statuses=(0,))


def missing(rng: random.Random, place: Path) -> Case:
    """Files of a finished run are gone, and others left over: ``--resume`` completes it."""
    folder = copied(place, world().run)
    names = [*SEALED, CHECKSUMS, "report.html"]
    gone = rng.sample(
        [name for name in names if name not in ("config.toml", "history.jsonl")],
        rng.randrange(1, 5),
    )
    for name in gone:
        (folder / name).unlink()
    left = rng.choice([".summary.json.77.partial", "checkpoint/.round-1000003.json.7.partial"])
    (folder / left).write_text("half")

    def do() -> None:
        from fedbridge.cli.main import main

        assert main(run_words("run", "--resume")) == 0
        wrong = completed(Path("run"))
        assert wrong is None, wrong

    return Case(f"gone: {gone}", do, writes=("run",), statuses=(0,))


def full_disks(rng: random.Random, place: Path) -> Case:
    """Writing fails at some moment as on a full disk: one error, and ``--resume`` completes."""
    fails_at, what = rng.randrange(40), rng.choice(["fsync", "replace", "write"])

    def do() -> None:
        import errno

        from fedbridge.base import files
        from fedbridge.cli.main import main

        count = 0
        honest = {"fsync": os.fsync, "replace": Path.replace}

        def failing(*args: object) -> object:
            nonlocal count
            count += 1
            if count > fails_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return honest["replace" if what == "replace" else "fsync"](*args)  # type: ignore[operator]

        if what == "replace":
            Path.replace = failing  # type: ignore[method-assign, assignment]
        else:
            files.os.fsync = failing  # type: ignore[assignment]
        status = main(run_words("run", "--resume"))
        Path.replace, files.os.fsync = honest["replace"], honest["fsync"]  # type: ignore
        assert status == (2 if count > fails_at else 0), (status, count)
        assert main(run_words("run", "--resume")) == 0
        wrong = completed(Path("run"))
        assert wrong is None, wrong

    def check(answer: Answer) -> str | None:
        errors = [line for line in answer.err.splitlines() if "error" in line]
        return None if all("--resume" in line for line in errors) else f"unclear: {errors}"

    return Case(f"{what} {fails_at} fails", do, writes=("run",), statuses=(0,), check=check)


def overwriting(rng: random.Random, place: Path) -> Case:
    """``--out`` names an input in some spelling: refused, and the input stays."""
    new = place / "new.csv"
    new.write_text(NEW)
    (place / "deep").mkdir()
    os.link(new, place / "hard.csv")
    (place / "soft.csv").symlink_to("new.csv")
    copied(place, world().run)
    out = rng.choice(
        ["new.csv", "./new.csv", "deep/../new.csv", "hard.csv", "soft.csv", str(new)]
        + [f"run/{name}" for name in (*SEALED, CHECKSUMS)]
    )
    command = ["predict", "run", rng.choice(["new.csv", "./new.csv", str(new)])]
    if out.startswith("run/") and rng.random() < 0.5:
        command = ["report", "run"]
    return Case(f"{command} --out {out}", [*command, "--out", out], statuses=(2,))

"""Hostile command lines, task files, tables, arrays and images, and files that are none.

No case names a place outside its own folder to write to: a fuzzer may be run by anybody, and what
it looks for is there until it was found.
"""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import zipfile
from typing import TYPE_CHECKING

import numpy as np

from fuzz.harness import Answer, Case
from fuzz.world import COLUMNS, NEW, QUICK, ROWS, TABLE, png, world

if TYPE_CHECKING:
    import random
    from pathlib import Path

HUGE = ("99999999999", "9" * 400, "1e300", "1e999", "-99999999999", "18446744073709551616")
WORDS = (
    *("", " ", "abc", "-", "-1", "0", "0.5", "-0.0", "nan", "inf", "-inf", "none", "true", "a=b"),
    *(",", "1,", ",,", "1,2,x", "[", "[1,2", "[1,2]", "{}", '{"a": [1]}', '"', '"x"', "[" * 5000),
    *("0x10", "1_000", "1,5", "١٢", "é", "\udcff", "\x1b[31mred", "=1+1", "..", ".", "~"),
    *("x" * 300, "\u202eabc", "a\nb", "a\tb", "%s", "{0}", "$(x)", "*", *HUGE),
)
RUN_OPTIONS = (
    *("rounds", "seed", "target", "method", "engine", "out", "workers", "set", "model", "lr"),
    *("lr-target", "batch-size", "batch-size-target", "epochs", "epochs-target", "steps"),
    *("steps-target", "optimizer", "momentum", "weight-decay", "class-weights", "warmup"),
    *("lr-factor", "align", "blocks", "weights", "buffers", "evidence", "noise-from"),
    *("probe-batches", "sketch-size", "participation", "dropout", "early-stopping"),
    *("validation-fraction", "norm-ratio", "device", "n-target", "target-fraction"),
    *("test-fraction", "site-column", "label-column", "columns", "categorical", "beta", "folds"),
    *("standardise", "regression", "nonsense", "", "-", "é"),
)
ENDLESS = ("rounds", "epochs", "epochs-target", "steps", "steps-target", "warmup", "seeds")
METHODS = ("auto", "fedda", "fedgp-auto", "finetune-cv", "fedrep", "knn-per", "zeno", "kd3a")
OF_METHODS = ("beta", "filter", "projection", "half-line", "delta", "scope", "trim", "rho", "drop",
    "finetune-epochs", "folds", "choose-every", "penalty", "anneal", "head-epochs", "mixing",
    "neighbours", "share", "gate", "last-gate", "gate-rounds", "alpha", "step-size", "doubt",
)  # fmt: skip


def arguments(rng: random.Random, place: Path) -> Case:
    """An honest command line with something else in it."""
    (place / "t.csv").write_text(TABLE)
    (place / "new.csv").write_text(NEW)
    task = ["t.csv", *COLUMNS, *QUICK]
    run, compared = str(world().run), str(world().comparison)
    words, options = rng.choice(
        [
            (["run", *task, "--rounds", "1"], (*RUN_OPTIONS, *OF_METHODS)),
            (["run", *task, "--rounds", "1"], RUN_OPTIONS),
            (
                ["compare", *task, "--rounds", "1", "--seeds", "1", "--methods", "fedavg"],
                ("rounds", "seeds", "methods", "targets", "target", "vary", "set", *RUN_OPTIONS),
            ),
            (["advise", *task], ("seed", "after", "samples", "out", "workers", *RUN_OPTIONS)),
            (["predict", run, "new.csv"], ("out", "model", "unchecked", "json")),
            (["report", run], ("out", "tables", "unchecked")),
            (["report", compared, "--out", "page.html"], ("out", "tables", "unchecked")),
            (["watch", run, "--once"], ("unchecked", "json", "every")),
            (["data", rng.choice(["list", "check"])], ("dir", "json", "force")),
            ([rng.choice(["methods", "tasks", "demo", "nonsense"])], ("json", "seeds", "debug2")),
        ]
    )
    words = [*words]
    if words[0] in ("run", "compare") and rng.random() < 0.5:
        words += ["--method" if words[0] == "run" else "--methods", rng.choice(METHODS)]
    if words[0] == "demo":
        words += ["--rounds", rng.choice(["0", "-1", "x"])]
    for _ in range(rng.choice([1, 1, 1, 2])):
        name = rng.choice(options)
        value = rng.choice(HUGE if name in ENDLESS and rng.random() < 0.5 else WORDS)
        if name in ("set", "vary"):
            turned = rng.choice((*RUN_OPTIONS, "noise", "site_column"))
            value = rng.choice([value, f"{turned}=", f"{turned}={value}", f"={value}"])
        words += rng.choice([[f"--{name}", value], [f"--{name}={value}"], [f"--{name}"]])
    if rng.random() < 0.1:
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return Case(repr(words), words, writes=("",), statuses=(0, 1, 2, 141))


def task_files(rng: random.Random, place: Path) -> Case:
    """A task file with wrong types, unknown keys, bad bytes or deep nesting."""
    (place / "t.csv").write_text(TABLE)
    text = (
        '[task]\npath = "t.csv"\ntarget = "a"\nsite_column = "site"\nlabel_column = "ill"\n'
        '[run]\nmodel = "linear"\nlr = 0.1\nbatch_size = 6\n'
    )
    value = rng.choice(
        [
            *("1", "-1", "0", "1e300", "nan", "inf", "true", '""', '"x"', "[]", "[1, 2]", "{}"),
            *("{ a = 1 }", "1979-05-27", "9" * 400, '"a\\u0000b"', '"\\u001b[31m"', '"t.csv"'),
            *("[" * 3000, "[" * 3000 + "]" * 3000, "{a=" * 2000, '"/dev/zero"', '"missing.csv"'),
        ]
    )
    key = rng.choice(
        [
            *("path", "target", "site_column", "label_column", "columns", "n_target", "noise"),
            *("test_fraction", "name", "lr", "model", "batch_size", "epochs", "learning_rate"),
            *("seed", "rounds", "method", "a.b.c", '"quoted key"', "standardise", "class_weights"),
        ]
    )
    lines = text.splitlines()
    how = rng.randrange(6)
    if how < 3:
        lines = [line for line in lines if not line.startswith(f"{key} =")]
        lines.insert(rng.choice([1, len(lines)]), f"{key} = {value}")
    elif how == 3:
        lines.append(f"[{rng.choice(['task', 'run', 'model', 'task.x', '[run]'])}]\n{key} = 1")
    data = "\n".join(lines).encode()
    if how == 4:
        data = spoilt(rng, data)
    elif how == 5:
        data = b"[a]\n" + b"a." * rng.choice([10, 5000]) + b"a = 1\n"
    (place / "task.toml").write_bytes(data)
    words = ["run", "task.toml", "--workers", "1", "--rounds", "1", "--quiet", "--out", "run"]
    return Case(f"{key} = {value[:60]} ({how}) {data[-80:]!r}", words, writes=("run",))


def spoilt(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, cut, doubled or put in."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 3, 20])):
        where = rng.randrange(len(found) + 1)
        how = rng.randrange(5)
        if how == 0:
            found[where : where + 1] = bytes([rng.randrange(256)])
        elif how == 1:
            del found[where:]
        elif how == 2:
            del found[where : where + rng.randrange(1, 30)]
        elif how == 3:
            found[where:where] = rng.choice(
                [b"\x00", b"\xff\xfe", b"\n", b'"', b"\x1b[2J", b"9" * 50]
            )
        else:
            found[where:where] = found[: rng.randrange(1, 60)]
        if not found:
            break
    return bytes(found)


CELLS = (
    *("", " ", "?", "NA", "nan", "inf", "-inf", "1e308", "1e400", "1,5", "12%", "1 000", "1_000"),
    *("=1+1", "@x", "\x1b[31mred", "\x00", "\r", '"', '""', "'", "é", "\u202e", "x" * 5000, "🙂"),
    *("<script>", "\\input{x}", "9" * 500, "-0", "0x1", "true", "2024-01-01", "a;b", "\t"),
)


def tables(rng: random.Random, place: Path) -> Case:
    """A table with hostile cells and headers, or of bytes that are no table."""
    header, *rows = [line.split(",") for line in TABLE.splitlines()]
    for _ in range(rng.choice([0, 1, 1, 3, 30])):
        row = rng.choice([header, *rows]) if rng.random() < 0.3 else rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(CELLS)
    if rng.random() < 0.3:
        header[rng.randrange(len(header))] = rng.choice([*header, *CELLS])
    if rng.random() < 0.2:
        rng.choice([header, *rows]).append(rng.choice(CELLS))
    text = "\n".join(rng.choice([",", ",", ",", ";", "\t"]).join(row) for row in [header, *rows])
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        data = spoilt(rng, data)
    if rng.random() < 0.05:
        data = text.encode(rng.choice(["utf-16", "latin-1", "utf-8-sig"]), "replace")
    if rng.random() < 0.3:
        (place / "new.csv").write_bytes(data)
        words = ["predict", str(world().run), "new.csv", "--out", "p.csv"]
        return Case(f"{data[:200]!r}", words, writes=("p.csv",), check=lambda a: no_formula(place))
    (place / "t.csv").write_bytes(data)
    words = ["run", "t.csv", *COLUMNS, *QUICK, "--rounds", "1", "--method", "fedavg", "--out", "r"]
    return Case(f"{data[:200]!r}", words, writes=("r",))


def no_formula(place: Path) -> str | None:
    """What a spreadsheet would run in the CSV that was written, if any."""
    file = place / "p.csv"
    if not file.exists():
        return None
    with file.open(newline="") as stream:
        for row in csv.reader(stream):
            for cell in filter(None, row):
                if cell[0] in "=@\t\r":
                    return f"wrote the formula {cell!r}"
                if cell[0] in "+-":
                    try:
                        float(cell.rstrip("%"))
                    except ValueError:
                        return f"wrote the formula {cell!r}"
    return None


def npy(rng: random.Random) -> bytes:
    """An array, or something that says it is one."""
    if rng.random() < 0.3:
        data = io.BytesIO()
        array = rng.choice(
            [
                np.zeros((4, 3)),
                np.zeros((4, 3), np.float16),
                np.arange(4),
                np.array(["a", "b", "a", "b"]),
                np.array([1, "x", None, {}], dtype=object),
                np.full((4, 3), np.nan),
                np.zeros((4, 3), complex),
                np.zeros(4, "datetime64[s]"),
                np.zeros(4, [("a", int), ("b", float)]),
                np.zeros((0, 3)),
                np.zeros((4, 0)),
                np.array(7),
                np.zeros((4, 3), ">f8"),
                np.asfortranarray(np.ones((4, 3))),
                np.full((4, 3), 1e300),
                np.zeros((2, 3, 8, 8), np.uint8),
            ]
        )
        np.save(data, array, allow_pickle=True)
        return data.getvalue()
    shape = rng.choice(
        [(10**12, 3), (10**30,), (-1, 3), (4, -3), (2**31, 2**31), (2**63, 2), (4, 3), (0,), ()]
    )
    kind = rng.choice(["<f8", "|O", "|S1000000", "<U99999999", "<f8", "|V99999", "nonsense", "|b1"])
    header = repr({"descr": kind, "fortran_order": rng.random() < 0.3, "shape": shape})
    header = rng.choice([header, header, "(" * 5000, "{", "", header[:-1] + "*" * 99999])
    body = header.encode() + b"\n"
    version = rng.choice([b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"])
    width = "<H" if version[0] == 1 else "<I"
    length = len(body) if rng.random() < 0.9 else rng.randrange(2**16)
    if width == "<H" and length >= 2**16:
        length = 2**16 - 1
    return b"\x93NUMPY" + version + struct.pack(width, length) + body + b"\0" * rng.choice([0, 96])


def arrays(rng: random.Random, place: Path) -> Case:
    """A folder of ``.npz`` of which one is forged."""
    folder = place / "data"
    folder.mkdir()
    numbers = np.random.default_rng(rng.randrange(2**32))
    for site in "abc":
        x, y = numbers.normal(size=(20, 3)), np.arange(20) % 2
        np.savez(folder / f"{site}.npz", X=x, y=y)
    bad = folder / f"{rng.choice('abc')}.npz"
    how = rng.randrange(4)
    if how == 0:
        bad.write_bytes(spoilt(rng, bad.read_bytes()))
    elif how == 1:
        bad.write_bytes(npy(rng))
    else:
        packed = zipfile.ZIP_DEFLATED if how == 3 else zipfile.ZIP_STORED
        with zipfile.ZipFile(bad, "w", packed) as archive:
            good = io.BytesIO()
            np.save(good, np.arange(4) % 2)
            archive.writestr("X.npy", npy(rng))
            archive.writestr("y.npy", rng.choice([good.getvalue(), npy(rng)]))
            if rng.random() < 0.2:
                archive.writestr(rng.choice(["../../x.npy", "X.npy", "/etc/x", "y"]), b"x")
        if rng.random() < 0.4:
            bad.write_bytes(_forged_zip(rng, bad.read_bytes()))
    words = ["run", "data", "--target", "a", *QUICK, "--rounds", "1", "--out", "run"]
    return Case(f"{bad.name} ({how}) {bad.read_bytes()[:120]!r}", words, writes=("run",))


def _forged_zip(rng: random.Random, data: bytes) -> bytes:
    """Sizes, flags and methods of the directory changed: bombs, encryption, unknown methods."""
    found = bytearray(data)
    where = found.rfind(b"PK\x01\x02")
    if where < 0:
        return data
    offset, size = rng.choice([(8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (42, 4)])
    found[where + offset : where + offset + size] = rng.randbytes(size)
    return bytes(found)


def images(rng: random.Random, place: Path) -> Case:
    """A folder of images of which some are none."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    for site in "ab":
        for label in ("x", "y"):
            folder = place / "photos" / site / label
            folder.mkdir(parents=True)
            for k in range(4):
                (folder / f"{k}.png").write_bytes(png(numbers))
    bad = place / "photos" / rng.choice("ab") / rng.choice("xy") / rng.choice(["0.png", "9.jpg"])
    data = png(numbers)
    how = rng.randrange(5)
    if how == 0:
        bad.write_bytes(spoilt(rng, data))
    elif how == 1:
        wide = struct.pack(">II", *rng.choice([(10**6, 10**6), (2**31 - 1, 1), (0, 0), (1, 10**9)]))
        bad.write_bytes(data[:16] + wide + data[24:])
    elif how == 2:
        magic = rng.choice([b"GIF89a", b"%PDF-1.4", b"\xff\xd8\xff\xe0", b"BM", b"<svg>", b""])
        bad.write_bytes(magic + rng.randbytes(200))
    elif how == 3:
        no_file(rng, bad)
    else:
        name = rng.choice(["=1+1.png", "\x1b[31m.png", "\udcff.png", "a\nb.png", "<b>.png"])
        (bad.parent / name).write_bytes(data)
    words = ["run", "photos", "--target", "a", "--image-size", "8", "--model", "linear"]
    words += ["--workers", "1", "--quiet", "--rounds", "1", "--out", "run", "--method", "fedavg"]
    return Case(f"{bad} ({how})", words, writes=("run", "data"))


def no_file(rng: random.Random, path: Path) -> str:
    """Something at a path that is no file one could read to its end."""
    if path.is_dir() and not path.is_symlink():
        return "a folder"
    path.unlink(missing_ok=True)
    kind = rng.choice(["fifo", "zero", "null", "folder", "dangling", "loop", "empty", "sparse"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind in ("zero", "null"):
        path.symlink_to(f"/dev/{kind}")
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        path.write_bytes(b"")
        if kind == "sparse":
            os.truncate(path, 1 << 40)
    return kind


def places(rng: random.Random, place: Path) -> Case:
    """Pipes, devices, folders and dangling links wherever a file is expected."""
    (place / "t.csv").write_text(TABLE)
    (place / "new.csv").write_text(NEW)
    (place / "task.toml").write_text('[task]\npath = "t.csv"\ntarget = "a"\n')
    sites = place / "sites"
    sites.mkdir()
    arrays_in = place / "arrays"
    arrays_in.mkdir()
    for site in "abc":
        own = [row.partition(",")[2] for row in ROWS.splitlines() if row[0] == site]
        (sites / f"{site}.csv").write_text("age,dose,sex,ill\n" + "\n".join(own))
        np.savez(arrays_in / f"{site}.npz", X=np.ones((9, 2)), y=np.arange(9) % 2)
    few = [*QUICK, "--rounds", "1", "--method", "fedavg", "--out", "out/run"]
    run = str(world().run)
    bad, words = rng.choice(
        [
            ("t.csv", ["run", "t.csv", *COLUMNS, *few]),
            ("task.toml", ["run", "task.toml", *COLUMNS, *few]),
            ("t.csv", ["run", "task.toml", *COLUMNS, *few]),
            ("sites/b.csv", ["run", "sites", "--target", "a", "--label-column", "ill", *few]),
            ("sites/d.csv", ["run", "sites", "--target", "a", "--label-column", "ill", *few]),
            ("sites/.hidden", ["run", "sites", "--target", "a", "--label-column", "ill", *few]),
            ("arrays/b.npz", ["run", "arrays", "--target", "a", *few]),
            ("arrays/d.npz", ["run", "arrays", "--target", "a", *few]),
            ("new.csv", ["predict", run, "new.csv", "--out", "out/p.csv"]),
            ("new.npz", ["predict", run, "new.npz", "--out", "out/p.csv"]),
            ("out", ["predict", run, "new.csv", "--out", "out"]),
            ("out", ["report", run, "--out", "out"]),
            ("out", ["report", run, "--out", "page.html", "--tables", "out"]),
            ("out", ["run", "t.csv", *COLUMNS, *few]),
            ("folder", ["report", "folder"]),
            ("folder", ["watch", "folder", "--once"]),
            ("folder", ["predict", "folder", "new.csv"]),
            (
                "w.safetensors",
                ["run", "t.csv", *COLUMNS, *few, "--model", "resnet18:w.safetensors"],
            ),
        ]
    )
    kind = no_file(rng, place / bad)
    return Case(f"{bad} is {kind}: {words}", words, writes=("out", "page.html"))


EVIL = (
    *(
        "\x1b[31mred",
        "\x9b2J",
        "=1+1",
        "@SUM(A1)",
        "+cmd|' /C calc'!A0",
        "-2+3",
        "<script>alert(1)",
    ),
    *(
        "\u202egnp",
        "a\rb",
        "\\input{x}",
        "|x|",
        "$x$",
        "[bold]",
        "`x`",
        "${jndi}",
        "../../x",
        "a/b",
    ),
    *(
        "CON",
        "x" * 400,
        "🙂",
        "é",
        "\x07",
        "%n",
        "{0}",
        "'",
        '"',
        "\u2028",
        "'; DROP",
        "&amp;",
        "--",
    ),
)


def names(rng: random.Random, place: Path) -> Case:
    """Sites, classes and columns whose names are sequences, formulas, markup or paths."""
    site, label, column = (rng.choice(EVIL) for _ in range(3))
    lines = [["site", f"age{column}", "ill"]]
    for k in range(72):
        lines.append([("a", "b", site)[k % 3], str(40 + k * 7 % 31), label if k % 2 else "no"])
    with (place / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    (place / "new.csv").write_text((place / "t.csv").read_text())
    columns = ["--target", rng.choice(["a", site]), *COLUMNS[2:]]
    script = [
        ["run", "t.csv", *columns, *QUICK, "--rounds", "2", "--method", "fedda", "--out", "run"],
        ["predict", "run", "new.csv", "--out", "p.csv"],
        ["predict", "run", "new.csv"],
        ["predict", "run", "new.csv", "--json"],
        ["watch", "run", "--once"],
        ["report", "run", "--tables", "tables"],
        ["report", "run", "--json"],
    ]

    def do() -> None:
        from fedbridge.cli.main import main

        for words in script:
            if main(words) == 2:
                raise SystemExit(2)

    def check(answer: Answer) -> str | None:
        for line in answer.out.splitlines():
            if line.startswith('{"'):
                json.loads(line)
        page = place / "run" / "report.html"
        if page.exists() and "<script>alert" in page.read_text():
            return "the page holds a script from the data"
        return no_formula(place) or None

    return Case(
        f"{site!r} {label!r} {column!r}", do, writes=("run", "p.csv", "tables"), check=check
    )

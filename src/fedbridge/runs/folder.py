"""The folder of a run: what is in it, who may write to it, how to take it up again."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tomli_w
from safetensors.torch import save

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import (
    append_line,
    parse_json,
    parse_toml,
    read_bytes,
    read_text,
    sha256,
    to_json,
    write_atomically,
)
from fedbridge.data.rows import in_batches
from fedbridge.runs import shapes
from fedbridge.runs.checkpoint import Checkpoint, CheckpointStore
from fedbridge.runs.lines import GROUPED, PER_SOURCE, packed, unpacked
from fedbridge.runs.lock import FILE as SIGN_OF_LIFE
from fedbridge.runs.shapes import CHECKPOINT, CONFIG, MANIFEST, ROUND, SUMMARY, misfit, partly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from fedbridge.data.task import FederatedTask, Site
    from fedbridge.runs.shapes import Kind

FORMAT = 1
SITES = "sites"
"""Folder of what sites remember in a run over Flower on one machine."""

MAY_DIFFER = ("rounds", "version", "loaded_as", "positive")
"""Entries of the configuration that may change when a run is taken up again."""
RESULTS = ("checksums.json", "summary.json", "test.safetensors", "model-card.md")
"""Files that tell how good the model of a finished run is; the first goes first."""

PIXELS = "uint8"
"""What the values of a run are whose samples are images of bytes; the manifest says so."""

CHECKSUMS = "checksums.json"
SEALED = (
    *("config.toml", "history.jsonl", "manifest.json", "preprocessing.json"),
    *("model.safetensors", "test.safetensors", "model-card.md", "summary.json"),
)
"""Files that make up a finished run; its page can be made of them again."""


class RunFolderError(FedbridgeError):
    """The folder holds something else than the run that is to be written there."""

    in_words = "the folder for the model holds something else"


def read_record(
    file: Path,
    shape: Kind,
    *,
    parse: Callable[[str], Any] = parse_json,
    kind: str,
    format: int | None = None,
) -> dict[str, Any] | None:
    """A TOML or JSON file of a format and ``shape`` that this version knows; None if none is there.

    Raises:
        RunFolderError: there is something else, which is named.
    """
    if not os.path.lexists(file):
        return None
    try:
        record = parse(read_text(file))
    except (ValueError, OSError) as error:
        raise RunFolderError(f"Could not read {file}: {error}; restore it.") from error
    if not isinstance(record, dict):
        raise RunFolderError(f"Expected a JSON object in {file}, but got {type(record).__name__}.")
    if format is not None and record.get("format") != format:
        raise RunFolderError(
            f"Expected a {kind} of format {format}, but {file} has format "
            f"{record.get('format')!r}: use the version of fedbridge that wrote it."
        )
    check_shape(record, shape, file, kind)
    return record


def check_shape(record: object, shape: Kind, file: Path, kind: str) -> None:
    """Refuse a record of which an entry is missing or of another kind."""
    wrong = misfit(record, shape)
    if wrong is not None:
        raise RunFolderError(
            f"Expected a whole {kind} in {file}, but `{wrong or kind}` is missing or of another "
            f"kind: restore the file."
        )


@dataclass(frozen=True)
class RunFolder:
    """Reads and writes the files of one run; every write is atomic."""

    path: Path

    def check(self, config: dict[str, Any], *, resume: bool) -> None:
        """Refuse a folder that holds anything but this run, to be resumed; write nothing yet."""
        self.refuse_other_files()
        there = self.config()
        if there is not None:
            self._check_same(there, config)
            self.check_new(resume=resume)

    def check_new(self, *, resume: bool) -> None:
        """Refuse a folder that holds a run, unless that is to be resumed."""
        if not resume and self.config() is not None:
            raise RunFolderError(
                f"Expected a new folder, but {self.path} already holds this run: add --resume "
                f"to go on with it, or choose another folder with --out."
            )

    def refuse_other_files(self) -> None:
        """Refuse a folder that is none, or that holds files and no run."""
        if self.config() is not None or not self.path.exists():
            return
        if not self.path.is_dir() or any(self._others()):
            raise RunFolderError(
                f"Expected an empty or new folder for the run, but {self.path} holds other files: "
                f"choose another with --out."
            )

    def claim(
        self, config: dict[str, Any], task: FederatedTask, history: list[dict[str, Any]]
    ) -> None:
        """Take the folder, once a first round has shown that the run works.

        Results of fewer rounds, of a run that now goes on, are no longer true. The history is made
        to end where the run goes on.
        """
        for file in RESULTS:
            (self.path / file).unlink(missing_ok=True)
        self.rewind(history)
        self.write_task(task, config)
        self.write_config(config)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """What the run is."""
        write_atomically(self.path / "config.toml", tomli_w.dumps(_without_none(dict(config))))

    def remove_leftovers(self) -> None:
        """Remove what an interrupted write has left."""
        for left in self.path.rglob(".*.partial"):
            left.unlink(missing_ok=True)

    def _others(self) -> Iterator[Path]:
        """Files that are not the rest of an interrupted write or of a first round."""
        ours = ("manifest.json", "preprocessing.json", "history.jsonl", SITES, SIGN_OF_LIFE)
        for file in self.path.iterdir():
            if not (file.name.endswith(".partial") or file.name in ours):
                yield file

    def own_files(self) -> list[Path]:
        """The files that make up a finished run, there or not."""
        return [self.path / name for name in (*SEALED, CHECKSUMS)]

    def config(self, *, whole: bool = False) -> dict[str, Any] | None:
        """The run's configuration; None if there is no run here.

        What a model needs is there in any; ``whole`` asks for what a page needs, which a target's
        own copy of its model lacks.
        """
        shape = CONFIG if whole else partly(CONFIG, "method", "model")
        file = self.path / "config.toml"
        config = read_record(file, shape, parse=parse_toml, kind="run", format=FORMAT)
        if config is not None and _is_first(config):
            said = config["settings"]
            if said.get("weights") == "equal":
                del said["weights"]  # what is not said now was said as "equal" then
        return config

    @property
    def is_first(self) -> bool:
        """Whether version 0.1.0 wrote it, which gave small targets the sources' batch size."""
        config = self.config()
        return config is not None and _is_first(config)

    def summary(self, *, whole: bool = False) -> dict[str, Any] | None:
        """The summary of a finished run; None if it is not finished. See ``config``."""
        shape = SUMMARY if whole else partly(SUMMARY)
        return read_record(self.path / "summary.json", shape, kind="summary")

    def history(self) -> list[dict[str, Any]]:
        """The rounds so far; a half-written last line is left out."""
        file = self.path / "history.jsonl"
        if not os.path.lexists(file):
            return []
        try:
            texts = read_bytes(file).split(b"\n")
        except OSError as error:
            raise RunFolderError(f"Could not read {file}: {error}; restore it.") from error
        lines: list[dict[str, Any]] = []
        for number, text in enumerate(texts, 1):
            try:
                lines.append(parse_json(text))
            except ValueError as error:
                if any(texts[number:]):
                    raise RunFolderError(
                        f"Could not read line {number} of {file}: {error}; restore the file."
                    ) from error
                break
            if isinstance(lines[-1], dict):
                try:
                    lines[-1] = unpacked(lines[-1])
                except ValueError as error:
                    raise RunFolderError(
                        f"Could not read line {number} of {file}: {error}; restore the file."
                    ) from error
            check_shape(lines[-1], ROUND, file, "line of rounds")
        return lines

    def manifest(self) -> dict[str, Any] | None:
        """Which rows are where; None if nobody knows, as of a target's own copy of its model."""
        return read_record(self.path / "manifest.json", MANIFEST, kind="manifest")

    def add_round(self, line: dict[str, Any], *, flush: bool = True) -> None:
        """Append a round to the history, and flush it to disk before its checkpoint."""
        append_line(self.path / "history.jsonl", self._written(line), flush=flush)

    def rewind(self, history: list[dict[str, Any]]) -> None:
        """Make the history end where a checkpoint does."""
        text = "".join(self._written(line) + "\n" for line in history)
        write_atomically(self.path / "history.jsonl", text)

    def _written(self, line: dict[str, Any]) -> str:
        """A round as a line of the file; the sources' names are in the configuration."""
        many = any(len(line.get(name) or ()) > GROUPED for name in PER_SOURCE)
        config = self.config() if many else None
        return to_json(packed(line, (config or {}).get("sources", ())))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep what the run needs to go on."""
        CheckpointStore(self.path / "checkpoint").save(checkpoint)

    def load_checkpoint(
        self, run: str | None = None
    ) -> tuple[Checkpoint, list[dict[str, Any]]] | None:
        """The newest whole checkpoint, of this ``run`` if it is named, and the history up to it."""
        checkpoint = CheckpointStore(self.path / "checkpoint").load()
        if checkpoint is None:
            return None
        wrong = misfit(checkpoint.facts, CHECKPOINT)
        if wrong is not None or (run and checkpoint.facts.get("run", run) != run):
            raise RunFolderError(
                f"Expected the checkpoint of this run in {self.path / 'checkpoint'}, but it "
                f"belongs to another: restore it, or start again in a new folder."
            )
        history = [line for line in self.history() if line["round"] <= checkpoint.round]
        if len(history) != checkpoint.facts["lines"]:
            raise RunFolderError(
                f"Expected {checkpoint.facts['lines']} rounds in {self.path / 'history.jsonl'}, "
                f"but found {len(history)}: the file was changed; start again in a new folder."
            )
        return checkpoint, history

    def write_task(self, task: FederatedTask, config: Mapping[str, Any]) -> None:
        """Which rows are where, and how new rows are to be treated; both say of which run."""
        pixels = {"values": PIXELS} if task.in_pixels else {}
        manifest = to_json({**task.manifest, **pixels}, indent=1)
        write_atomically(self.path / "manifest.json", manifest)
        if task.preprocessing is not None:
            self.write_preprocessing(task.preprocessing.to_json(), config)

    def write_preprocessing(self, text: str, config: Mapping[str, Any]) -> None:
        """How new rows are to be treated."""
        how = {**parse_json(text), "run": run_id(config)}
        write_atomically(self.path / "preprocessing.json", to_json(how, indent=1))

    def write_result(
        self, model: nn.Module, summary: dict[str, Any], config: Mapping[str, Any]
    ) -> None:
        """The model, then the summary that ends the run."""
        self.write_model(model, config)
        self.write_summary(summary)

    def write_model(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        """The model, which says of which run it is."""
        # Cloned, because the file format refuses tensors that share memory (tied weights).
        tensors = {name: value.clone().contiguous() for name, value in model.state_dict().items()}
        # One entry, because the order of several is left to chance, and bytes should not be.
        about = {"format": f"{FORMAT} {run_id(config)}"}
        write_atomically(self.path / "model.safetensors", save(tensors, metadata=about))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The run in a few numbers; whoever has it is finished."""
        write_atomically(self.path / "summary.json", to_json(dict(summary), indent=1))

    def unseal(self) -> None:
        """Take the checksums away before files are written anew."""
        (self.path / CHECKSUMS).unlink(missing_ok=True)

    def seal(self) -> None:
        """Write the checksums of all files of a finished run: the last thing that is written."""
        there = [name for name in SEALED if (self.path / name).exists()]
        sums = {name: sha256((self.path / name).read_bytes()) for name in there}
        body = {"format": FORMAT, "files": sums}
        write_atomically(self.path / CHECKSUMS, to_json(body, indent=1))

    def verify(self, *, unchecked: bool = False, missing: bool = False) -> None:
        """Refuse a finished run one of whose files was swapped, edited or truncated.

        Args:
            unchecked: look at nothing; a user who has read the warning wants it so.
            missing: let files be missing, for somebody who is about to complete them.
        """
        if unchecked:
            return
        sums = self._checksums()
        if sums is None:
            if not missing and self.summary() is not None:
                warnings.warn(
                    f"The run in {self.path} has no {CHECKSUMS} (an older version wrote it, or it "
                    f"was interrupted at its end): its files cannot be checked.",
                    stacklevel=3,
                )
            return
        for name in SEALED:
            file = self.path / name
            if not os.path.lexists(file):
                wrong = name in sums and not missing and "is missing"
            elif name not in sums:
                wrong = "does not belong to it"
            else:
                wrong = _checksum(file) != sums[name] and "was changed"
            if wrong:
                raise RunFolderError(
                    f"Expected the run in {self.path} as it was written, but its {name} {wrong}: "
                    f"restore it, complete the run with --resume if it is missing, or open it all "
                    f"the same with --unchecked."
                )

    def is_whole(self) -> bool:
        """Whether a finished run has all its files, the page too."""
        sums = self._checksums()
        names = ("report.html", "summary.json", *(sums or ()))
        return sums is not None and all((self.path / name).exists() for name in names)

    def _checksums(self) -> dict[str, str] | None:
        file = self.path / CHECKSUMS
        found = read_record(file, shapes.CHECKSUMS, kind="run", format=FORMAT)
        return None if found is None else found["files"]

    def _check_same(self, there: dict[str, Any], config: dict[str, Any]) -> None:
        ours = founding(tomllib.loads(tomli_w.dumps(_without_none(config))))
        there = founding(there)
        if _is_first(there):
            there["settings"].setdefault("batch_size_target", there["settings"]["batch_size"])
        keys = sorted({*there, *ours} - set(MAY_DIFFER))
        different = [key for key in keys if there.get(key) != ours.get(key)]
        if different:
            raise RunFolderError(
                f"Expected a folder for this run, but {self.path} holds a different one (other "
                f"{', '.join(different)}): choose another folder with --out."
            )


def _is_first(config: Mapping[str, Any]) -> bool:
    """Whether version 0.1.0 wrote a configuration that says how its run trains."""
    return config.get("version") == "0.1.0" and "settings" in config


def _checksum(file: Path) -> str | None:
    """None for what cannot be read: no checksum fits it."""
    try:
        return sha256(read_bytes(file))
    except OSError:
        return None


JOINED = "joined"
"""Sources that were not there from the beginning, and the first round of each."""


def founding(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration as it was when it began: without those who have joined since."""
    begun = {name: value for name, value in config.items() if name != JOINED}
    if config.get(JOINED):
        begun["sources"] = [name for name in config["sources"] if name not in config[JOINED]]
    return begun


def founders(task: FederatedTask, joined: Collection[str]) -> FederatedTask:
    """A task as it was when its run began."""
    if not joined:
        return task
    return replace(task, sources=tuple(s for s in task.sources if s.name not in joined))


def run_id(config: Mapping[str, Any]) -> str:
    """A name for a run that any of its files can bear: from what must not change about it."""
    begun = founding(_without_none(dict(config)))
    kept = {k: v for k, v in begun.items() if k not in MAY_DIFFER}
    return sha256(json.dumps(kept, sort_keys=True, default=str).encode())[:16]


def fingerprint(task: FederatedTask) -> str:
    """Checksum of all rows of a task, so that a run is not resumed on other data."""
    return checksum_of_rows((*task.sources, task.target, task.test))


def checksum_of_rows(sites: Iterable[Site]) -> str:
    """Checksum of the rows of sites, and of their names."""
    digest = hashlib.sha256()
    for site in sites:
        digest.update(site.name.encode())
        for values in (site.x, site.y):
            digest.update(str((values.dtype, tuple(values.shape))).encode())
            for batch in in_batches(values):
                digest.update(batch.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _without_none(value: Any) -> Any:
    """TOML has no null: what is None is left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value

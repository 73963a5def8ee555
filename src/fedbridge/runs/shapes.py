"""What the files of a run and of a comparison hold: entries that are relied on, and their kinds.

Folders are passed on, edited and damaged. A file is checked when it is read, so that whoever looks
at a record need not ask again whether a number is one. A kind is a type, a list of any length
(``[kind]``) or of these kinds, a record of named kinds (``?`` for an entry that may be missing), a
map of any names to one kind (``{str: kind}``), or a tuple of alternatives.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from fedbridge.base.options import LARGEST

Kind: TypeAlias = Any

NUMBER = (float, None)
VALUES = ([NUMBER], None)

ANY = {str: object}


def _of(kind: Kind, names: str) -> dict[str, Kind]:
    """Entries that are all of one kind."""
    return dict.fromkeys(names.split(), kind)


CONFIG: Kind = {
    **_of(str, "version task target method data_sha256"),
    **_of(int, "seed rounds"),
    **_of(ANY, "settings options"),
    "sources": [str],
    "model": {
        **_of(int, "outputs n_classes?"),
        "name": str,
        "input_shape": [int],
        "class_names?": [str],
    },
    "positive?": str,
    "loaded_as?": {"task": str, "target?": str, "options?": ANY},
}
WORTH: Kind = {
    **_of(float, "alone gain error points points_error before?"),
    "rows": int,
    "of_classes": bool,
}
MEASURED: Kind = {
    **_of([float], "sigma2? d2? cosine? ratio? weight? errors? relative? curve?"),
    **_of([str], "sources rules?"),
    "samples": int,
    "rows": [int],
    "shares": [NUMBER],
    "left_out": {str: str},
}
ROUND: Kind = {
    **_of(int, "round bytes_up? bytes_down?"),
    **_of(NUMBER, "loss? accuracy? balanced_accuracy? auc? sigma2? validation_loss?"),
    **_of(NUMBER, "seconds_train? seconds_aggregate? seconds_eval?"),
    **_of(VALUES, "beta? d2? tau2_d2? cosine?"),
    **_of(({str: NUMBER}, None), "cv_loss? cv_error? weights?"),
    **_of((str, None), "choice? said?"),
    "worth?": (WORTH, None),
    "advice?": (MEASURED, None),
    "failures?": ({str: str}, None),
    "notes?": ([str], None),
}
SUMMARY: Kind = {
    **_of(int, "rounds n_test n_target? parameters?"),
    **_of(NUMBER, "accuracy auc score accuracy_last? balanced_accuracy? loss?"),
    **_of(NUMBER, "sensitivity? specificity? precision?"),
    "positive?": (str, None),
    "accuracy_interval": ([float, float], None),
    "stopped_early": bool,
    "seconds?": float,
    "n_sources?": {str: int},
    "absent?": {str: str},
    "notes?": [str],
}
MANIFEST: Kind = {
    **_of(str, "origin? test_is? values?"),
    **_of([object], "target? unlabelled? test?"),
    "sources?": {str: [object]},
}
CHECKPOINT: Kind = {"lines": int, "method": ANY, "run?": str}
CHECKSUMS: Kind = {"files": {str: str}}
CELL: Kind = {
    **_of(str, "setting method"),
    **_of((str, None), "folder? error?"),
    "seed": int,
    "summary?": (SUMMARY, None),
    "unmet?": bool,
}
COMPARISON: Kind = {
    **_of([str], "settings methods notes?"),
    "seeds": [int],
    "rounds": int,
    "cells": [CELL],
    "options?": ANY,
    "control_note?": str,
    "variants?": {str: {"method": str, "options": ANY}},
    "tasks?": [{"task": str, "target": (str, None), "options": ANY, "run?": ANY, "given?": bool}],
}


def partly(shape: Kind, *needed: str) -> Kind:
    """A record in which all but some entries may be missing."""
    return {k if k in needed else k.removesuffix("?") + "?": v for k, v in shape.items()}


def misfit(value: object, kind: Kind) -> str | None:
    """The first entry that is missing or of another kind, as a path of names; None if all fit."""
    if isinstance(kind, tuple):
        each = (misfit(value, one) for one in kind)
        first = next(each)
        return None if first is None or None in each else first
    if isinstance(kind, list):
        if not isinstance(value, list) or len(kind) not in (1, len(value)):
            return ""
        kinds = kind * len(value) if len(kind) == 1 else kind
        each = (misfit(item, one) for item, one in zip(value, kinds, strict=True))
        return next((wrong for wrong in each if wrong is not None), None)
    if isinstance(kind, dict):
        return _misfit_of_record(value, kind)
    return None if _is(value, kind) else ""


def _misfit_of_record(value: object, kind: Kind) -> str | None:
    if not isinstance(value, dict):
        return ""
    if str in kind:
        return misfit(list(value.values()), [kind[str]])
    for name, wanted in kind.items():
        own = name.removesuffix("?")
        wrong = misfit(value[own], wanted) if own in value else None if own != name else ""
        if wrong is not None:
            return f"{own}.{wrong}".rstrip(".")
    return None


def _is(value: object, kind: Kind) -> bool:
    if kind is None:
        return value is None
    if kind is float and isinstance(value, float):
        return math.isfinite(value)
    if kind is float or kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
    return isinstance(value, kind)

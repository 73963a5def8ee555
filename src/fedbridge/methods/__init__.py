"""Methods by name: every rule, and what is more than a rule."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import OptionError, UnknownNameError, nearest
from fedbridge.base.options import check_number, check_whole
from fedbridge.base.own_code import import_object, is_named, run_file
from fedbridge.base.registry import Registry
from fedbridge.core import rules
from fedbridge.core.rulebook import registry as rulebook
from fedbridge.federation.federation import Federation
from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import Need
from fedbridge.federation.settings import NAMES
from fedbridge.methods.alone import AloneForest, AloneLogistic
from fedbridge.methods.apfl import Apfl
from fedbridge.methods.auto import AloneAuto, Auto
from fedbridge.methods.controls import Oracle, TargetOnlyMatched
from fedbridge.methods.fada import FADA
from fedbridge.methods.fedrep import FedRep
from fedbridge.methods.finetune import FinetuneCv, FinetuneOffline
from fedbridge.methods.generalisation import CORAL, ERM, IRM, GroupDRO, Mixup
from fedbridge.methods.kd3a import KD3A
from fedbridge.methods.knn_per import KnnPer
from fedbridge.methods.mme import MME
from fedbridge.methods.offset import Offset
from fedbridge.methods.pfedfda import PFedFDA
from fedbridge.methods.proximal import Ditto, FedProx
from fedbridge.methods.recalibrate import Recalibrate
from fedbridge.methods.rule import RuleMethod
from fedbridge.training.objective import Objective, StepContext

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedbridge.data.task import FederatedTask

__all__ = [
    "Federation",
    "Method",
    "Need",
    "Objective",
    "Record",
    "RuleMethod",
    "StepContext",
    "add_plugin",
    "add_unlisted",
    "check_number",
    "check_travels",
    "check_whole",
    "class_of",
    "decides_at_target",
    "is_bound",
    "is_own",
    "known_as",
    "make",
    "names",
    "needs_of",
    "options_of",
    "summary_of",
    "usual_options",
]


def _adapt(name: str, method: object) -> type[Method]:
    if isinstance(method, type) and issubclass(method, Method):
        return method
    raise OptionError(f"Expected method {name!r} to be a Method, but got {method!r}.")


_registry: Registry[type[Method]] = Registry("method", "fedbridge.methods", _adapt)
_registry.add("auto", Auto)
_registry.add("oracle", Oracle)
_registry.add("target-only-matched", TargetOnlyMatched)
_registry.add("alone-auto", AloneAuto)
_registry.add("alone-logistic", AloneLogistic)
_registry.add("alone-forest", AloneForest)
_registry.add("finetune-offline", FinetuneOffline)
_registry.add("finetune-cv", FinetuneCv)
_registry.add("recalibrate", Recalibrate)
_registry.add("offset", Offset)
_registry.add("fedprox", FedProx)
_registry.add("erm", ERM)
_registry.add("irm", IRM)
_registry.add("group-dro", GroupDRO)
_registry.add("mixup", Mixup)
_registry.add("coral", CORAL)
_registry.add("ditto", Ditto)
_registry.add("fedrep", FedRep)
_registry.add("apfl", Apfl)
_registry.add("knn-per", KnnPer)
_registry.add("pfedfda", PFedFDA)
_registry.add("kd3a", KD3A)
_registry.add("fada", FADA)
_registry.add("mme", MME)


_unlisted: dict[str, type[Method]] = {}


def add_unlisted(name: str, kind: type[Method]) -> None:
    """Make a method known by a name that nobody is offered: it makes no model of its own."""
    _unlisted[name] = kind


def names() -> list[str]:
    """All methods: the recommended one first, then every rule, then the others."""
    own = _registry.names()
    return [own[0], *rules.names(), *own[1:]]


def options_of(name: str) -> tuple[str, ...]:
    """Options that the method takes besides those of every run."""
    kind = _kind_of(name)
    return rules.get(name).options if kind is None else kind.options


def needs_of(name: str) -> tuple[Need, ...]:
    """What the method needs beyond the clients' updates."""
    return class_of(name).needs


def is_bound(name: str) -> bool:
    """Whether the method has what no federation has: all labels, or all rows in one place.

    One that is not installed here (the table of another machine may name it) is taken for none.
    """
    return name in names() and bool({Need.TARGET_LABELS, Need.POOLED} & {*needs_of(name)})


def class_of(name: str) -> type[Method]:
    """The class that runs the method."""
    return _kind_of(name) or RuleMethod


def check_travels(method: str) -> None:
    """Refuse a method that needs in one place what sites keep to themselves, and say what."""
    kind = class_of(method)
    if kind.travels:
        return
    able = [name for name in names() if class_of(name).travels]
    raise OptionError(
        f"Expected a method that works with sites elsewhere, but {method!r} does not run over a "
        f"network: {kind.bound_by}. Choose one of {', '.join(able)}, or the engine 'local'."
    )


def decides_at_target(method: str) -> bool:
    """Whether the target decides on its model by itself, so that over a network it stays there."""
    return class_of(method).decides_at_target()


def summary_of(name: str) -> str:
    """What the method does, in one line, and what it needs."""
    kind = _kind_of(name)
    text = rules.get(name).function.__doc__ if kind is None else kind.__doc__
    summary = (text or "").strip().partition("\n")[0]
    needs = ", ".join(need.value for need in needs_of(name))
    return f"{summary} (needs {needs})" if needs else summary


def usual_options(name: str, task: FederatedTask, given: Mapping[str, object]) -> dict[str, object]:
    """Options of a run on the task unless it is ``given`` others.

    A control has those of the method that it stands beside, or it would be none.
    """
    usual = task.defaults_for(class_of(name).stands_beside(given) or name)
    return {k: v for k, v in usual.items() if k in (*NAMES, *options_of(name))}


def make(name: str, federation: Federation, options: Mapping[str, Any]) -> Method:
    """A method, ready to begin."""
    kind = _kind_of(name)
    if kind is None:
        return RuleMethod(federation, options, rules.get(name))
    return kind(federation, options)


def known_as(method: object) -> str:
    """The name of a method that somebody gives: as its name, as ``module:name``, or itself.

    A class is a method, any other function a rule; from here on they work by that name as the
    built-in ones do. One that a decorator registered keeps its name.
    """
    if isinstance(method, str):
        if method in names() or not is_named(method):
            return method
        found, where = import_object(method, "method")
        if not callable(found):
            module, _, name = method.partition(":")
            raise OptionError(
                f"Expected {module!r} ({where}) to have a method or rule {name!r}, a subclass of "
                f"fedbridge.methods.Method or a function of a Geometry, but it has none."
            )
        return _add_own(method, found)
    if not callable(method):
        raise OptionError(
            f"Expected a method as its name, as module:name, as a subclass of "
            f"fedbridge.methods.Method or as a rule's function, but got {method!r}: "
            f"fedbridge.methods.names() lists the names."
        )
    described = method if hasattr(method, "__qualname__") else type(method)
    return _add_own(f"{described.__module__}:{described.__qualname__}", method)


def add_plugin(path: Path) -> list[str]:
    """Run a file of one's own; its rules and methods work by their names, which are returned.

    A rule has the name that its decorator gives it, a method its attribute ``name``, or the name
    of its class in small letters.
    """
    before = names()
    module = run_file(path)
    for found in list(vars(module).values()):
        own = isinstance(found, type) and issubclass(found, Method)
        if own and found.__module__ == module.__name__ and not inspect.isabstract(found):
            _add_own(_plugin_name(found), found)
    added = [name for name in names() if name not in before]
    _OWN.update(added)
    return added


def is_own(name: str) -> bool:
    """Whether only this process knows the method: no site could be told its name."""
    return name in _OWN


_OWN: set[str] = set()


def _plugin_name(kind: type[Method]) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__)
    return str(getattr(kind, "name", None) or words.lower())


def _add_own(name: str, found: Any) -> str:
    """Register a class or a function; its name, which an earlier form of it may have had."""
    if isinstance(found, type):
        kind = _adapt(name, found)
        there = [known for known in _registry.names() if _registry.get(known) is kind]
        if there:
            return there[0]
    else:
        rule = rules.resolve(found)
        if rule in rulebook.so_far():
            return rule.name
    if name in names() and not is_own(name):
        raise OptionError(
            f"Expected a new name for a method, but {name!r} is taken: give the class another "
            f"attribute `name`."
        )
    if isinstance(found, type):
        _registry.replace(name, kind)
    else:
        rulebook.replace(name, replace(rule, name=name))
    _OWN.add(name)
    return name


def _kind_of(name: str) -> type[Method] | None:
    """The class of a method that is more than a rule; None for a rule."""
    if name in _unlisted:
        return _unlisted[name]
    if name not in names():
        raise UnknownNameError(
            f"Expected the name of a method, but got {name!r}.{nearest(name, names())} "
            f"Known: {', '.join(names())}; your own as module:name, or from a file with --plugin."
        )
    return _registry.get(name) if name in _registry.names() else None

"""The arrow: a room imports only rooms above it, and nothing goes in a circle."""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fedbridge

ROOT = Path(fedbridge.__file__).parent
ROOMS = (
    *("base", "core", "models", "data", "evaluation", "runs", "training", "engines"),
    *("federation", "methods", "report", "advice", "flower", "experiments", "workflows"),
    *("deploy", "cli"),
)
"""From the top of the house to its bottom; docs/design.md has the picture."""

PUBLIC_PATHS = {"fedbridge.rules", "fedbridge.theory", "fedbridge.engines.flower"}
"""Import paths for users only: they stand for modules of rooms further down."""


def module_of(file: Path) -> str:
    parts = ("fedbridge", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in sorted(ROOT.rglob("*.py"))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(module: str) -> dict[str, set[str]]:
    """What a module imports: when it is loaded, later (in a function), and for types only."""
    found: dict[str, set[str]] = {"load": set(), "later": set(), "types": set()}

    def note(node: ast.AST, when: str) -> None:
        if isinstance(node, ast.ImportFrom):
            name = absolute(module, node)
            for alias in node.names:
                inner = f"{name}.{alias.name}"
                found[when].add(inner if inner in FILES else name)
        elif isinstance(node, ast.Import):
            found[when].update(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            now = "types" if is_type_checking(node) and child in node.body else when
            note(child, "later" if inside and now == "load" else now)

    note(ast.parse(FILES[module].read_text(encoding="utf-8")), "load")
    return {when: {name for name in names if name in FILES} for when, names in found.items()}


def absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that is named, also by dots."""
    if not node.level:
        return node.module or ""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


IMPORTS = {module: imports(module) for module in FILES}


def room(module: str) -> str | None:
    """The package that a module belongs to; None for the root and the public paths."""
    if module in PUBLIC_PATHS or module.count(".") < 1:
        return None
    name = module.split(".")[1]
    return name if name in ROOMS else None


def test_every_module_has_a_room():
    outside = {module for module in FILES if room(module) is None}
    assert outside == {"fedbridge", "fedbridge.__main__", "fedbridge._version"} | PUBLIC_PATHS
    assert len([file for file in FILES.values() if file.parent == ROOT]) <= 5


@pytest.mark.parametrize("module", [module for module in FILES if room(module)])
def test_a_room_imports_only_rooms_above_it(module):
    order = {name: place for place, name in enumerate(ROOMS)}
    own = room(module)
    wrong = []
    for when, names in IMPORTS[module].items():
        for name in names:
            other = room(name) or own
            public = name == "fedbridge" or name in PUBLIC_PATHS
            if public or order[other] > order[own]:
                wrong.append(f"{name} ({when})")
    assert not wrong, f"{module} imports {', '.join(wrong)}"


def test_nothing_is_imported_in_a_circle():
    graph = {module: found["load"] - {module} for module, found in IMPORTS.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imported in a circle: {' -> '.join(error.args[1])}")


def test_rooms_do_not_name_each_other_in_a_circle():
    """Types count as well: a room that names another's types belongs below it."""
    graph: dict[str, set[str]] = {name: set() for name in ROOMS}
    for module, found in IMPORTS.items():
        if (own := room(module)) is not None:
            others = {room(name) for name in found["load"] | found["types"]}
            graph[own] |= {name for name in others if name is not None} - {own}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"rooms in a circle: {' -> '.join(error.args[1])}")


def test_no_module_is_imported_by_a_name_in_a_string():
    """The arrow does not see it: only lazy public names and a user's own code come that way."""
    allowed = {"fedbridge", "fedbridge.flower", "fedbridge.flower.executor"}
    allowed |= {"fedbridge.base.own_code", "fedbridge.models.backbones"}
    found = {
        module
        for module, file in FILES.items()
        if "import_module" in file.read_text(encoding="utf-8")
    }
    assert found == allowed


def test_no_folder_is_too_full_to_find_something_in():
    folders = Counter(file.parent for file in FILES.values())
    assert max(folders.values()) <= 22

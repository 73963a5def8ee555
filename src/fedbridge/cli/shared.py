"""What the commands share: reading the command line, options by name, progress and results.

Any option of a task, a run or a method is taken by its name, without knowing it. Progress goes to
stderr, results to stdout. What draws in the terminal is imported when there is something to draw:
`--help` need not wait for it.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from fedbridge.base.errors import FedbridgeError, UnknownOptionError
from fedbridge.base.files import packaged_text
from fedbridge.base.options import MOST_SEEDS
from fedbridge.base.text import console, plain
from fedbridge.base.values import value_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
Command: TypeAlias = "Callable[[Namespace], int]"
FAILED = 1
RUNS = Path("runs")
WIDTH_IN_FILES = 120
"""Width of tables where there is no terminal to ask."""
TAKEN = ("name_or_path", "task", "target", "seed", "samples", "progress")
"""What Python calls other arguments, which an option cannot be."""


class UsageError(FedbridgeError):
    """A command line that cannot be understood."""


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, and optionally takes options it does not know.

    With ``open_options`` every unknown ``--name value``, ``--name=value`` or ``--name`` (true) is
    put aside in ``options``. The parser need not know the options of tasks, runs and methods,
    which extensions may add to, and need not import them either.
    """

    def __init__(self, *args: Any, open_options: bool = False, **kwargs: Any) -> None:
        self._flags: set[str] = set()
        self._valued: set[str] = set()
        self._open_options = open_options
        kwargs |= {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(*args, **kwargs)

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        """Declare an argument."""
        action = super().add_argument(*args, **kwargs)
        self._flags.update(action.option_strings)
        if action.nargs is None:
            self._valued.update(action.option_strings)
        return action

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse what is declared, after putting open options aside."""
        if not self._open_options:
            return super().parse_known_args(args, namespace)
        declared, options = self._divide(list(args))
        found, rest = super().parse_known_args(declared, namespace)
        found.options = dict(map(_assignment, found.set or [])) | options
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UsageError(f"{message}; see `{self.prog} --help`.")

    def _is_value(self, word: str) -> bool:
        """Whether a word with one dash is a value, such as the domain -90%, and no flag."""
        return word.startswith("-") and not word.startswith("--") and word not in self._flags

    def _divide(self, args: list[str]) -> tuple[list[str], dict[str, object]]:
        declared: list[str] = []
        options: dict[str, object] = {}
        waiting = list(reversed(args))
        while waiting:
            word = waiting.pop()
            flag, equals, value = word.partition("=")
            if not flag.startswith("--") or len(flag) == 2 or flag in self._flags:
                if word in self._valued and waiting and self._is_value(waiting[-1]):
                    word = f"{word}={waiting.pop()}"
                declared.append(word)
                continue
            if not equals:
                value = waiting.pop() if waiting and not waiting[-1].startswith("--") else "true"
            name, parsed = _assignment(f"{flag[2:]}={value}")
            options[name] = parsed
        return declared, options


def _assignment(text: str) -> tuple[str, object]:
    """``name=value`` as an option; dashes and underscores are the same in names."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"Expected `option=value` after --set, but got {text!r}.")
    name = name.replace("-", "_")
    return name, value_of(name, value)


def dial(text: str) -> tuple[str, list[object]]:
    """``name=a,b,c`` as an option and the values that it takes in turn."""
    name, equals, values = text.partition("=")
    found = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not name or not found:
        raise UsageError(f"Expected `option=a,b,...` after --vary, but got {text!r}.")
    name = name.replace("-", "_")
    return name, [value_of(name, value) for value in found]


def place(text: str) -> Path:
    """The path of a file or folder; an empty one is a mistake, not the folder one is in."""
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a file or folder, but got ''")
    return Path(text)


def natural(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, but got {text!r}")
    return int(text)


def seeds(text: str) -> Sequence[int]:
    """``3`` as the first three seeds, ``0,3,4`` as these, ``7,`` as this one."""
    if "," not in text:
        count = natural(text)
        if not 1 <= count <= MOST_SEEDS:
            raise argparse.ArgumentTypeError(
                f"expected how many seeds, from 1 to {MOST_SEEDS}, but got {text}; the one seed "
                f"{text} is written `{text},`"
            )
        return range(count)
    return [natural(part.strip()) for part in text.split(",") if part.strip()]


HELP: dict[str, dict[str, str]] = tomllib.loads(packaged_text("fedbridge.cli", "help.toml"))
"""What ``--help`` says, by the words of a command."""


def _add_parser(commands: Commands, words: str, **more: Any) -> Parser:
    said = HELP[words]
    text = said.get("text", said["short"])
    name = words.rpartition(" ")[2]
    return commands.add_parser(name, help=said["short"], description=text, **more)


def add_family(commands: Commands, name: str) -> Commands:
    """Where the commands of a family are added."""
    family = _add_parser(commands, name)
    return family.add_subparsers(title="commands", metavar="COMMAND", required=True)


def add_command(commands: Commands, words: str, command: Command, **more: Any) -> Parser:
    """A parser for one command, with what every command has; ``words`` as in ``data fetch``."""
    parser = _add_parser(commands, words, **more)
    parser.set_defaults(command=command)
    add_debug(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def add_debug(parser: Parser) -> None:
    """``--debug``, which may stand before or after the name of the command."""
    parser.add_argument("--debug", action="store_true", help="show where an error came from")


def add_unchecked(parser: Parser) -> None:
    """The way around the checksums of a run."""
    parser.add_argument(
        "--unchecked", action="store_true", help="open a run whose files were changed"
    )


def add_plugin(parser: Parser) -> None:
    """A file of one's own rules and methods."""
    parser.add_argument(
        "--plugin",
        action="append",
        type=place,
        metavar="FILE.py",
        help="run a file with rules or methods of your own first; may be repeated",
    )


def add_track(parser: Parser) -> None:
    """Who else is told of runs."""
    parser.add_argument(
        "--track",
        metavar="NAME,...",
        help="tell a tracker too: tensorboard, mlflow, wandb (pip install 'fedbridge[NAME]')",
    )


def add_saved_run(parser: Parser) -> None:
    """Options of commands that open a finished run's model."""
    parser.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="the run's own model, if you trust that code"
    )
    parser.add_argument(
        "--method", metavar="MODULE:NAME", help="the run's own method, if you trust that code"
    )
    add_plugin(parser)
    add_unchecked(parser)


def run_own_code(args: Namespace) -> None:
    """Make the methods known that ``add_saved_run`` lets a user name."""
    from fedbridge.methods import known_as

    run_plugins(args)
    if args.method is not None:
        known_as(args.method)


def run_plugins(args: Namespace) -> None:
    """Make what the files of ``--plugin`` bring known by name."""
    from fedbridge.methods import add_plugin

    for file in args.plugin or ():
        add_plugin(file)


def add_output(parser: Parser, default: str) -> None:
    """Options of commands that train and write a folder."""
    parser.add_argument("--out", type=place, metavar="DIR", help=f"folder (default: {default})")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


@contextmanager
def results_only(args: Namespace) -> Iterator[None]:
    """With --json nothing but the object may reach stdout, whatever a user's model prints."""
    if args.json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def write_json(content: Mapping[str, Any]) -> None:
    """The one object of ``--json``."""
    from fedbridge.base.files import to_json

    sys.stdout.write(to_json(dict(content)) + "\n")


def results() -> Console:
    """Where results go; nothing in them is obeyed, since names come from data."""
    return console(width=None if sys.stdout.isatty() else WIDTH_IN_FILES)


def say(*lines: object) -> int:
    """Plain lines on stdout; all is well."""
    sys.stdout.write("".join(f"{plain(str(line))}\n" for line in lines))
    return 0


def progress_bar(*columns: ProgressColumn, quiet: bool, timed: bool = True) -> Progress:
    """A bar on stderr with the time that is left; silent where nobody looks at it.

    Not ``timed`` if somebody else tells the time.
    """
    from rich import progress

    screen = console(stderr=True)
    return progress.Progress(
        progress.BarColumn(),
        progress.TextColumn("{task.description}", markup=False),
        *columns,
        *([progress.TimeRemainingColumn()] if timed else []),
        console=screen,
        transient=True,
        disable=quiet or not screen.is_terminal,
    )


@contextmanager
def share_progress(
    total: float | None = 1.0, *, quiet: bool
) -> Iterator[Callable[[float, str], None]]:
    """A callback with what is done of ``total`` and what is under way, for a bar."""
    with progress_bar(quiet=quiet) as bar:
        shown = bar.add_task("starting", total=total)

        def update(done: float, text: str) -> None:
            bar.update(shown, completed=done, description=text)

        yield update


def complain(text: str, status: int) -> int:
    """Say one line on stderr; returns the exit status."""
    sys.stderr.write(f"fedbridge: {plain(text)}\n")
    return status


def complain_of_failures(failures: Iterable[str]) -> int:
    """Name the runs of a table that failed; returns the exit status."""
    return max((complain(text, FAILED) for text in failures), default=0)


def sort_options(args: Namespace, methods: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of runs and methods, and those that are left for the task."""
    from fedbridge.federation.settings import NAMES
    from fedbridge.methods import options_of

    options = args.options | ({} if args.workers is None else {"workers": args.workers})
    for name in TAKEN:
        if name in options:
            raise UsageError(f"Expected options of the task or the runs, but {name!r} is neither.")
    known = {*NAMES, *(option for method in methods for option in options_of(method))}
    if getattr(args, "engine", "local") != "local":
        from fedbridge.flower.options import NETWORK, PRIVACY

        known |= {*NETWORK, *PRIVACY}
    of_run = {name: value for name, value in options.items() if name in known}
    return of_run, {name: value for name, value in options.items() if name not in known}


@contextmanager
def run_options_named() -> Iterator[None]:
    """An option that the task does not have may be a misspelt one of the run: name those too."""
    try:
        yield
    except UnknownOptionError as error:
        from fedbridge.federation.settings import NAMES

        if ", ".join(NAMES[:3]) in str(error):
            raise
        raise UnknownOptionError(f"{error} Options of every run: {', '.join(NAMES)}.") from error

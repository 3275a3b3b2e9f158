"""The `soperator` command: one verb per file, imported only when it runs.

Owns the list of verbs and exit codes: 0 ok, 1 refused, 2 wrong usage, 130 interrupted, 141
no reader of its output any more.
`logs`, `demo` and `load --url` end with the status of the job that they followed or ran.
"""

from __future__ import annotations

from infra.cli import interrupts
from stacks.errors import UserError

with interrupts.at_once():  # these imports are most of the first 0.15 s
    import errno
    import os
    import sys
    from collections.abc import Iterator
    from contextlib import contextmanager
    from importlib import import_module
    from typing import Annotated, Any, NamedTuple

    import typer
    from typer.core import TyperCommand, TyperGroup


class _Verb(NamedTuple):
    module: str
    help: str


# The help line stands here so that `soperator --help` imports no verb.
VERBS = {
    "init": _Verb("infra.cli.init", "Set up a project for deployments and write a first stack."),
    "env": _Verb("infra.cli.env", "Print the environment that plain pulumi needs, for eval."),
    "doctor": _Verb("infra.cli.doctor", "Check tools, prices and the project; name each fix."),
    "cost": _Verb(
        "infra.cli.cost", "Show what a stack costs, beside others, instead of it, and why."
    ),
    "draw": _Verb("infra.cli.draw", "Draw the architecture of a declared stack as SVG."),
    "prices": _Verb("infra.cli.prices", "Show the prices in use with source, date and age."),
    "chat-cost": _Verb("infra.cli.chat_cost", "Show what one reference chat costs on a stack."),
    "size": _Verb("infra.cli.size", "Show what a model needs and the cheapest preset that fits."),
    "advise": _Verb(
        "infra.cli.advise", "Rank presets by cost per chat for a model, an SLO and a demand."
    ),
    "spend": _Verb("infra.cli.spend", "Show what ran on a stack and what it cost."),
    "venv": _Verb("infra.cli.venv", "Make the jobs' Python environment on shared storage."),
    "submit": _Verb("infra.cli.submit", "Submit a declared job, its pipeline, or a search."),
    "manifest": _Verb("infra.cli.manifest", "Print a declared job as a Kubernetes Job."),
    "serve": _Verb("infra.cli.serve", "Serve a model as a job; --open: talk to it in the browser."),
    "load": _Verb("infra.cli.load", "Put a server under load: curve, latencies, operating point."),
    "accept": _Verb(
        "infra.cli.accept", "Hold a cluster against its limits; make or check its certificate."
    ),
    "accept-hosts": _Verb(
        "infra.cli.accept_hosts", "Run the acceptance by torchrun over SSH, where no Slurm is."
    ),
    "compare-runs": _Verb(
        "infra.cli.compare_runs", "Compare two results: bare metal, Slurm, Kubernetes."
    ),
    "leaderboard": _Verb(
        "infra.cli.leaderboard", "Rank the trials of a declared search, with $ a trial."
    ),
    "status": _Verb("infra.cli.status", "List the jobs of a cluster, or show one."),
    "logs": _Verb("infra.cli.logs", "Follow the log of a job to its end."),
    "top": _Verb("infra.cli.top", "Watch the GPUs of a running job, from inside it."),
    "cancel": _Verb("infra.cli.cancel", "End jobs, running or waiting."),
    "push": _Verb("infra.cli.push", "Bring data or a model to a declared place."),
    "pull": _Verb("infra.cli.pull", "Bring results, run record and log of a job here."),
    "ssh": _Verb("infra.cli.ssh", "Open a shell on the login node, or run one command."),
    "shell": _Verb("infra.cli.shell", "Open a terminal, Jupyter or VS Code on a node with GPUs."),
    "tensorboard": _Verb("infra.cli.tensorboard", "Show loss curves, through a tunnel."),
    "drain": _Verb("infra.cli.drain", "Keep new jobs off nodes, with a reason, and let them on."),
    "pause": _Verb("infra.cli.pause", "Take the workers out of a stack until it is resumed."),
    "resume": _Verb("infra.cli.resume", "Bring the workers of a paused stack back."),
    "reap": _Verb("infra.cli.reap", "Pause a stack that is idle or past its declared end."),
    "backup": _Verb("infra.cli.backup", "Copy a stack's jail to object storage now."),
    "restore": _Verb(
        "infra.cli.restore", "List copies of a stack's jail, or bring one back, whole or a path."
    ),
    "destroy": _Verb("infra.cli.destroy", "Destroy a stack, also one whose kube cluster is gone."),
    "runs": _Verb("infra.cli.runs", "List runs, compare two, run one again, export them."),
    "support-bundle": _Verb(
        "infra.cli.support_bundle", "Gather what others need to help, in one file, without secrets."
    ),
    "report": _Verb("infra.cli.report", "Write report.html from what is declared and measured."),
    "demo": _Verb("infra.cli.demo", "Run the main job on the local stack, end to end."),
    "adopt": _Verb(
        "infra.cli.adopt", "Make an existing filesystem, cluster or subnet the stack's."
    ),
    "leftovers": _Verb(
        "infra.cli.leftovers", "List what a stack left in the cloud, with ids and $ a month."
    ),
    "local": _Verb("infra.cli.local", "Start, stop and look at the embedded cloud."),
    "kube-token": _Verb("infra.cli.kube_token", "Print a Kubernetes exec credential."),
}

_READER_GONE = 141
"""As a shell says that SIGPIPE ended a command: `runs diff A B | head -1` is no verdict."""

_NOT_WRITABLE = (
    "if it is below SOPERATOR_STATE or SOPERATOR_CACHE, set that variable to a folder that you can "
    "write to"
)
_FULL = "free some space there, or move SOPERATOR_STATE or SOPERATOR_CACHE to another disk"
_OF_THE_MACHINE = {
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR), _NOT_WRITABLE),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
}
"""What to do about a file that the machine refuses, by what it answers."""


class LazyGroup(TyperGroup):
    """Commands that are imported when they run; refusals become a line each and exit code 1."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=verb.help, short_help=verb.help)
        with interrupts.at_once():
            return _load(cmd_name, verb)

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with interrupts.at_once():
            return super().make_context(*arguments, **settings)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _flushed():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(interrupts.INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and error.filename:
                advice = _OF_THE_MACHINE[error.errno]
                line = f"{error.filename}: {error.strerror}; {advice}"
                raise _refused(line) from error
            if not is_refusal(error):
                raise
            say_refusal(error)
            raise typer.Exit(1) from error


@contextmanager
def _flushed() -> Iterator[None]:
    """What was printed is out at the end, or a line says that it is not, and exit code 1."""
    if sys.stdout is None:  # `>&-`: whoever writes would fail at a name that is not there
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        # Other files are their commands' to explain.
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        if error.filename:
            raise
        # The rest goes nowhere: the interpreter would try once more at its end, and say so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            raise typer.Exit(_READER_GONE) from error
        print(f"soperator: standard output: {error.strerror}; not all is there", file=sys.stderr)
        raise typer.Exit(1) from error


def say_refusal(error: BaseException) -> None:
    """Each problem in a line on standard error."""
    from cost.report.layout import visible

    for line in str(error).splitlines():
        print(f"soperator: {visible(line)}", file=sys.stderr)


def _refused(line: str) -> typer.Exit:
    print(f"soperator: {line}", file=sys.stderr)
    return typer.Exit(1)


def is_refusal(error: BaseException) -> bool:
    """True for errors that tell a user what to do; any other is a defect with its traceback."""
    return isinstance(error, UserError)


class _App(typer.Typer):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        with interrupts.at_once():
            command = typer.main.get_command(self)
        return command(*arguments, **settings)


app = _App(
    name="soperator",
    cls=LazyGroup,
    help="Slurm on Nebius Kubernetes, as declared in stacks/: what it costs, what runs, what came.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    print(f"soperator {metadata.version('soperator-stack')}")
    raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """A group even while typer knows of no command."""


def _load(name: str, verb: _Verb) -> Any:
    module = import_module(verb.module)
    if hasattr(module, "app"):
        command = typer.main.get_command(module.app)
    else:
        single = typer.Typer(
            add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
        )
        single.command(name, help=module.command.__doc__ or verb.help)(module.command)
        command = typer.main.get_command(single)
    command.name = name
    _refuse_repeats(command)
    return command


def _refuse_repeats(command: Any) -> None:
    """An option of one value that is given twice is wrong usage: which of them is meant?"""
    for each in getattr(command, "commands", {}).values():
        _refuse_repeats(each)
    make_parser = command.make_parser

    def strict_parser(ctx: Any) -> Any:
        parser = make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            values, rest, given = parse(args=args)
            for option in given:
                has_one = option.param_type_name == "option" and not (
                    option.multiple or option.is_flag or option.count
                )
                if has_one and given.count(option) > 1:
                    ctx.fail(f"{option.opts[0]} is given {given.count(option)} times; give it once")
            return values, rest, given

        parser.parse_args = parse_once
        return parser

    command.make_parser = strict_parser


if __name__ == "__main__":
    app()

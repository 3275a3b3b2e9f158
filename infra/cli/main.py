"""The `soperator` command: every verb is imported only when it runs.

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
    from typer.core import TyperGroup


class _Verb(NamedTuple):
    place: str
    """Module below infra.cli, and the function in it."""
    help: str
    """Stands here so that `--help` of a group imports no verb."""


VERBS = {
    "init": _Verb("machine.init:init", "Set up a project for deployments and write a first stack."),
    "env": _Verb("machine.env:env", "Print the environment that plain pulumi needs, for eval."),
    "doctor": _Verb("machine.doctor:doctor", "Check tools, prices and the project; name each fix."),
    "cost": _Verb(
        "cost.bill:cost", "Show what a stack costs, beside others, instead of it, and why."
    ),
    "draw": _Verb("report:draw", "Draw the architecture of a declared stack as SVG."),
    "prices": _Verb("cost.prices:prices", "Show the prices in use with source, date and age."),
    "chat-cost": _Verb("cost.bill:chat", "Show what one reference chat costs on a stack."),
    "size": _Verb("cost.choose:size", "Show what a model needs and the cheapest preset that fits."),
    "advise": _Verb(
        "cost.choose:advise", "Rank presets by cost per chat for a model, an SLO and a demand."
    ),
    "spend": _Verb("cost.spend:spend", "Show what ran on a stack and what it cost."),
    "venv": _Verb("jobs.data:venv", "Make the jobs' Python environment on shared storage."),
    "submit": _Verb("jobs.submit:submit", "Submit a declared job, its pipeline, or a search."),
    "manifest": _Verb("jobs.kube_job:manifest", "Print a declared job as a Kubernetes Job."),
    "serve": _Verb(
        "jobs.serve:serve", "Serve a model as a job; --open: talk to it in the browser."
    ),
    "load": _Verb("jobs.serve:load", "Put a server under load: curve, latencies, operating point."),
    "accept": _Verb(
        "cluster.accept:accept", "Hold a cluster against its limits; make or check its certificate."
    ),
    "accept-hosts": _Verb(
        "cluster.accept:accept_hosts", "Run the acceptance by torchrun over SSH, where no Slurm is."
    ),
    "compare-runs": _Verb(
        "jobs.kube_job:compare_runs", "Compare two results: bare metal, Slurm, Kubernetes."
    ),
    "leaderboard": _Verb(
        "jobs.runs:leaderboard", "Rank the trials of a declared search, with $ a trial."
    ),
    "status": _Verb("jobs.follow:status", "List the jobs of a cluster, or show one."),
    "logs": _Verb("jobs.follow:logs", "Follow the log of a job to its end."),
    "top": _Verb("jobs.follow:top", "Watch the GPUs of a running job, from inside it."),
    "cancel": _Verb("jobs.follow:cancel", "End jobs, running or waiting."),
    "push": _Verb("jobs.data:push", "Bring data or a model to a declared place."),
    "pull": _Verb("jobs.data:pull", "Bring results, run record and log of a job here."),
    "ssh": _Verb("jobs.shell:ssh", "Open a shell on the login node, or run one command."),
    "shell": _Verb("jobs.shell:shell", "Open a terminal, Jupyter or VS Code on a node with GPUs."),
    "tensorboard": _Verb("jobs.shell:tensorboard", "Show loss curves, through a tunnel."),
    "drain": _Verb(
        "cluster.pause:drain", "Keep new jobs off nodes, with a reason, and let them on."
    ),
    "pause": _Verb("cluster.pause:pause", "Take the workers out of a stack until it is resumed."),
    "resume": _Verb("cluster.pause:resume", "Bring the workers of a paused stack back."),
    "reap": _Verb(
        "cluster.autostop:autostop", "Pause a stack that is idle or past its declared end."
    ),
    "backup": _Verb("cluster.backup:backup", "Copy a stack's jail to object storage now."),
    "restore": _Verb(
        "cluster.backup:restore",
        "List copies of a stack's jail, or bring one back, whole or a path.",
    ),
    "destroy": _Verb(
        "cluster.cloud:destroy", "Destroy a stack, also one whose kube cluster is gone."
    ),
    "support-bundle": _Verb(
        "cluster.support:support_bundle",
        "Gather what others need to help, in one file, without secrets.",
    ),
    "report": _Verb("report:report", "Write report.html from what is declared and measured."),
    "demo": _Verb("machine.demo:demo", "Run the main job on the local stack, end to end."),
    "adopt": _Verb(
        "cluster.cloud:adopt", "Make an existing filesystem, cluster or subnet the stack's."
    ),
    "leftovers": _Verb(
        "cluster.cloud:orphans", "List what a stack left in the cloud, with ids and $ a month."
    ),
    "kube-token": _Verb("machine.env:kube_token", "Print a Kubernetes exec credential."),
    "cost explain": _Verb(
        "cost.bill:explain",
        "Show formula, inputs with their sources, and arithmetic of any figure of the bill.",
    ),
    "runs list": _Verb(
        "jobs.runs:list_", "List runs with outcome, model, speed, dollars and code."
    ),
    "runs diff": _Verb("jobs.runs:diff", "Compare two runs; ends 0 where their losses agree."),
    "runs reproduce": _Verb(
        "jobs.runs:reproduce", "Submit a run's recipe, settings, seed and code once more."
    ),
    "runs export": _Verb("jobs.runs:export", "Write runs as an experiment that MLflow reads."),
    "local up": _Verb("machine.local:up", "Start every part that does not run."),
    "local down": _Verb("machine.local:down", "Stop every part; what is stored stays."),
    "local status": _Verb("machine.local:status", "List the parts; exit 1 if one is down."),
    "local fault": _Verb(
        "machine.local:fault", "Plant a fault in the Nebius API, or kill -9 a part."
    ),
}
"""Every command, by the words that lead to it."""
GROUPS = {
    "runs": "List runs, compare two, run one again, export them.",
    "local": "Start, stop and look at the embedded cloud.",
    "cost": "Show what a stack costs, beside others, instead of it, and why.",
}
"""What the words of several verbs begin with; one that is a verb as well runs without another."""

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
    """Commands that are imported when they run."""

    prefix = ""
    """The words before those of its commands, each with a space."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self._helps()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        words = self.prefix + cmd_name
        if words not in VERBS and words not in GROUPS:
            return None
        with interrupts.at_once():
            return _load_group(words) if words in GROUPS else _load(cmd_name, VERBS[words])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*self._helps().items()])

    def _helps(self) -> dict[str, str]:
        """Each command of this group, or group, with its line."""
        every = {words: verb.help for words, verb in VERBS.items()} | GROUPS
        names = {
            words.removeprefix(self.prefix): line
            for words, line in every.items()
            if words.startswith(self.prefix)
        }
        return {name: line for name, line in names.items() if " " not in name}


class Root(LazyGroup):
    """All of the command; refusals become a line each and exit code 1."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with interrupts.at_once():
            return super().make_context(*arguments, **settings)

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
    cls=Root,
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
    module, _, function = verb.place.partition(":")
    call = getattr(import_module(f"infra.cli.{module}"), function)
    single = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    single.command(name, help=call.__doc__ or verb.help)(call)
    command = typer.main.get_command(single)
    command.name = name
    _refuse_repeats(command)
    return command


def _load_group(name: str) -> LazyGroup:
    if name in VERBS:
        own = _load(name, VERBS[name])
        group = LazyGroup(
            name=name,
            help=own.help,
            params=own.params,
            callback=own.callback,
            invoke_without_command=True,
            rich_markup_mode=None,
        )
        _refuse_repeats(group)
    else:
        group = LazyGroup(name=name, help=GROUPS[name], no_args_is_help=True, rich_markup_mode=None)
    group.prefix = f"{name} "
    return group


def _refuse_repeats(command: Any) -> None:
    """An option of one value that is given twice is wrong usage: which of them is meant?"""
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

"""The `soperator` command: every verb is imported only when it runs.

Owns the list of verbs and exit codes: 0 ok, 1 refused, 2 wrong usage, 130 interrupted, 141
no reader of its output any more.
`logs`, `local demo` and `runs load --url` end with the status of the job that they followed or ran.
"""

from __future__ import annotations

from infra.cli import interrupts

with interrupts.at_once():  # these imports are most of the first 0.15 s
    import errno
    import os
    import sys
    from collections.abc import Iterator
    from contextlib import contextmanager
    from difflib import get_close_matches
    from functools import wraps
    from importlib import import_module
    from typing import Annotated, Any, NamedTuple

    import typer
    from typer.core import TyperGroup

    from stacks.errors import UserError


class _Verb(NamedTuple):
    place: str
    """Module below infra.cli, with :function where that is not the last word."""
    help: str
    """Stands here so that `--help` of a group imports no verb."""


VERBS = {
    "init": _Verb("machine.init", "Set up a project for deployments, write a first stack."),
    "attach": _Verb("machine.init:attach", "Use a Slurm that others run, as a user; no cloud."),
    "env": _Verb("machine.env", "Print the environment that plain pulumi needs, for eval."),
    "doctor": _Verb("machine.doctor", "Check tools, prices and project; name each fix."),
    "submit": _Verb("jobs.submit", "Submit a declared job, its pipeline, or a search."),
    "status": _Verb("jobs.follow", "List the jobs of a cluster, or show one."),
    "logs": _Verb("jobs.follow", "Follow the log of a job to its end."),
    "cancel": _Verb("jobs.follow", "End jobs, running or waiting."),
    "pull": _Verb("jobs.data", "Bring results, run record and log of a job here."),
    "serve": _Verb("jobs.serve", "Serve a model as a job; --open: talk to it in the browser."),
    "shell": _Verb("jobs.shell", "Open a terminal, Jupyter or VS Code on a node with GPUs."),
    "ssh": _Verb("jobs.shell", "Open a shell on the login node, or run one command."),
    "report": _Verb("report", "Write report.html from what is declared and measured."),
    "kube-token": _Verb("machine.env", "Print a Kubernetes exec credential."),
    "cost": _Verb("cost.bill", "Show what a stack costs, beside others, instead of it."),
    "cost explain": _Verb("cost.bill", "Show formula and inputs of any figure of the bill."),
    "cost chat": _Verb("cost.bill", "Show what one reference chat costs on a stack."),
    "cost size": _Verb("cost.choose", "Show what a model needs, the cheapest preset that fits."),
    "cost advise": _Verb("cost.choose", "Rank presets by cost per chat for a model, SLO, demand."),
    "cost prices": _Verb("cost.choose", "Show the prices in use with source, date and age."),
    "cost spend": _Verb("cost.bill", "Show what ran on a stack and what it cost."),
    "runs list": _Verb("jobs.runs:list_", "List runs with outcome, model, speed, dollars, code."),
    "runs diff": _Verb("jobs.runs", "Compare settings and losses of two runs."),
    "runs reproduce": _Verb("jobs.runs", "Submit a run's recipe, settings and code once more."),
    "runs top": _Verb("jobs.follow", "Watch the GPUs of a running job, from inside it."),
    "runs tensorboard": _Verb("jobs.shell", "Show loss curves, through a tunnel."),
    "runs leaderboard": _Verb("jobs.runs", "Rank the trials of a declared search, with $ a trial."),
    "runs load": _Verb("jobs.serve", "Put a server under load: curve, operating point."),
    "runs overhead": _Verb("jobs.runs", "Hold Slurm or Kubernetes against bare metal: % lost."),
    "runs manifest": _Verb("jobs.runs", "Print a declared job as a Kubernetes Job."),
    "data push": _Verb("jobs.data", "Bring data or a model to a declared place."),
    "data venv": _Verb("jobs.data", "Make the jobs' Python environment on shared storage."),
    "cluster accept": _Verb("cluster.accept", "Hold a cluster against its limits; certify it."),
    "cluster accept-hosts": _Verb("cluster.accept", "Run the acceptance over SSH, without Slurm."),
    "cluster pause": _Verb("cluster.pause", "Take the workers out of a stack until it is resumed."),
    "cluster resume": _Verb("cluster.pause", "Bring the workers of a paused stack back."),
    "cluster autostop": _Verb("cluster.pause", "Pause a stack that is idle or past its end."),
    "cluster drain": _Verb("cluster.pause", "Keep new jobs off nodes, and let them on again."),
    "cluster destroy": _Verb("cluster.cloud", "Destroy a stack, also without its kube cluster."),
    "cluster orphans": _Verb("cluster.cloud", "List what a stack left in the cloud, and its $."),
    "cluster adopt": _Verb("cluster.cloud", "Make an existing disk, cluster, subnet the stack's."),
    "cluster backup": _Verb("cluster.cloud", "Copy a stack's jail to object storage now."),
    "cluster restore": _Verb("cluster.cloud", "List copies of the jail, or bring one back."),
    "cluster draw": _Verb("report", "Draw the architecture of a declared stack as SVG."),
    "cluster support-bundle": _Verb("cluster.cloud", "Gather for helpers, without secrets."),
    "local up": _Verb("machine.local", "Start every part that does not run."),
    "local down": _Verb("machine.local", "Stop every part; what is stored stays."),
    "local status": _Verb("machine.local", "List the parts; exit 1 if one is down."),
    "local fault": _Verb("machine.local", "Plant a fault in the Nebius API, or kill -9 a part."),
    "local demo": _Verb("machine.local", "Run the main job on the local stack, end to end."),
}
"""Every command, by the words that lead to it."""
GROUPS = {
    "cost": "Show what a stack costs and why; chat, size, advise, prices, spend.",
    "runs": "List and compare runs; top, load, tensorboard, leaderboard.",
    "data": "Bring data, models and the jobs' Python to the cluster.",
    "cluster": "Accept, pause, drain, back up, adopt, destroy; what is left over.",
    "local": "Start, stop and look at the embedded cloud; the demo.",
}
"""What the words of several verbs begin with; one that is a verb as well runs without another."""
_HIDDEN = frozenset({"kube-token"})
"""Not for people: every kubeconfig that `pulumi up` made runs it, so its name stays."""
_FORMER = {
    "chat-cost": "cost chat",
    "compare-runs": "runs overhead",
    "reap": "cluster autostop",
    "leftovers": "cluster orphans",
}
"""Names of before the groups whose last word is another now: a refusal says the one of today."""

_READER_GONE = 141
"""As a shell says that SIGPIPE ended a command: `runs diff A B | head -1` is no verdict."""

_NOT_WRITABLE = (
    "if it is below SOPERATOR_STATE or SOPERATOR_CACHE, set that variable to a folder that you can "
    "write to"
)
_FULL = "free some space there, or move SOPERATOR_STATE or SOPERATOR_CACHE to another disk"
_OF_A_PATH = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)
_OF_A_PATH += (errno.ENAMETOOLONG,)
_OF_THE_MACHINE = {
    **dict.fromkeys(_OF_A_PATH, _NOT_WRITABLE),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
}
"""What to do about a file that the machine refuses, by what it answers."""


class LazyGroup(TyperGroup):
    """Commands that are imported when they run."""

    prefix = ""
    """The words before those of its commands, each with a space."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = [
            words.removeprefix(self.prefix)
            for words in (*VERBS, *GROUPS)
            if words.startswith(self.prefix) and words not in _HIDDEN
        ]
        return [*dict.fromkeys(name for name in own if " " not in name)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        words = self.prefix + cmd_name
        if " " in cmd_name or (words not in VERBS and words not in GROUPS):
            return None
        with interrupts.at_once():
            if words in GROUPS:
                return _load_group(words)
            from infra.cli.output import never_silent

            with never_silent(f"loading {words}", is_first=True):  # 10 s on a busy machine
                return _load(words)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            known = self.known(ctx)
            nearest = get_close_matches(args[0], known, n=1)
            meant = f"did you mean {known[nearest[0]]!r}?" if nearest else ""
            hint = meant or f"see {ctx.command_path} --help"
            ctx.fail(f"no such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def known(self, ctx: Any) -> dict[str, str]:
        """What may be meant here by a word -> what to write."""
        return {name: name for name in self.list_commands(ctx)}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        self._format_section(formatter, "Commands", self.list_commands(ctx))

    def _format_section(self, formatter: Any, title: str, names: list[str]) -> None:
        lines = {**{words: verb.help for words, verb in VERBS.items()}, **GROUPS}
        with formatter.section(title):
            formatter.write_dl([(name, lines[self.prefix + name]) for name in names])


class Root(LazyGroup):
    """All of the command; refusals become a line each and exit code 1."""

    def known(self, ctx: Any) -> dict[str, str]:
        # Also the last word of a group's command.
        inner = {words.split()[-1]: words for words in VERBS if " " in words}
        return {**inner, **_FORMER, **super().known(ctx)}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        # The usage line has both options: one screen of 24 lines has room for no more.
        names = self.list_commands(ctx)
        self._format_section(formatter, "Commands", [each for each in names if each not in GROUPS])
        formatter.write("Groups of commands, each with its own --help:\n")
        with formatter.indentation():
            formatter.write_dl([*GROUPS.items()])

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with interrupts.at_once(), _flushed():  # --help and --version print in here
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        try:
            if os.path.expanduser("~") == "~":  # noqa: PTH111  # pathlib would raise
                raise UserError(
                    f"HOME: not set, and passwd has no uid {os.geteuid()}; what is kept for you "
                    "(cache, keys) has no place: export HOME=FOLDER, one of your own"
                )
            with _flushed():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(interrupts.INTERRUPTED) from None
        except UserError as error:
            from infra.cli.output import say_refusal

            say_refusal(error)
            raise typer.Exit(1) from error
        except OSError as error:
            if error.errno not in _OF_THE_MACHINE or not error.filename:
                raise
            advice = _OF_THE_MACHINE[error.errno]
            print(f"soperator: {error.filename}: {error.strerror}; {advice}", file=sys.stderr)
            raise typer.Exit(1) from error


@contextmanager
def _flushed() -> Iterator[None]:
    """What was printed is out at the end, or a line says that it is not, and exit code 1."""
    if sys.stdout is None:  # `>&-`: whoever writes would fail at a name that is not there
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:  # `2>&-`: print() to no file is print() to standard output
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        # Other files are their commands' to explain.
        broken = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO)
        if error.errno not in broken or error.filename:
            raise
        # The rest goes nowhere: the interpreter would try once more at its end, and say so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            raise typer.Exit(_READER_GONE) from error
        print(f"soperator: standard output: {error.strerror}; not all is there", file=sys.stderr)
        raise typer.Exit(1) from error


class _App(typer.Typer):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        with interrupts.at_once():
            command = typer.main.get_command(self)
        return command(*arguments, **settings)


app = _App(
    name="soperator",
    cls=Root,
    help="Slurm on Nebius Kubernetes, as declared in stacks/: cost, jobs, results.",
    options_metavar="[--version | --help]",
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


_OF_WHAT_IS_BUILT = {
    *("cluster pause", "cluster resume", "cluster autostop", "cluster drain", "cluster destroy"),
    *("cluster orphans", "cluster adopt", "cluster backup", "cluster restore"),
    "cluster support-bundle",
}
"""Commands of infrastructure, which a stack of an attached cluster has none of."""


def _only_built(words: str, call: Any) -> Any:
    """The command, which refuses a stack that nobody built."""

    @wraps(call)
    def refusing(*arguments: Any, **options: Any) -> Any:
        from infra.cli.context import refuse_attached

        refuse_attached(options["stack"], f"soperator {words}")
        return call(*arguments, **options)

    return refusing


def _load(words: str) -> Any:
    verb, name = VERBS[words], words.split()[-1]
    module, _, function = verb.place.partition(":")
    call = getattr(import_module(f"infra.cli.{module}"), function or name.replace("-", "_"))
    if words in _OF_WHAT_IS_BUILT:
        call = _only_built(words, call)
    single = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    single.command(name, help=call.__doc__ or verb.help)(call)
    command: Any = typer.main.get_command(single)
    command.name = name
    for each in command.params:
        if getattr(each, "is_flag", False) and not each.default:
            each.secondary_opts = []  # there is no --no-FLAG of what is off
    _tell_usage(command)
    return command


def _load_group(name: str) -> LazyGroup:
    if name in VERBS:
        own = _load(name)
        group = LazyGroup(
            help=own.help, params=own.params, callback=own.callback, invoke_without_command=True
        )
        _tell_usage(group)
    else:
        group = LazyGroup(help=GROUPS[name], no_args_is_help=True)
    group.name, group.prefix, group.rich_markup_mode = name, f"{name} ", None
    return group


def _tell_usage(command: Any) -> None:
    """An option of one value that is given twice is wrong usage; a wrong value is told as given."""
    make_parser, read = command.make_parser, command.parse_args
    values_of: dict[str, Any] = {}

    def strict_parser(ctx: Any) -> Any:
        parser = make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            values, rest, given = parse(args=args)
            values_of.update(values)
            for option in given:
                has_one = option.param_type_name == "option" and not (
                    option.multiple or option.is_flag or option.count
                )
                if has_one and given.count(option) > 1:
                    ctx.fail(f"{option.opts[0]} is given {given.count(option)} times; give it once")
                if option.name in (ctx.default_map or {}):
                    given_twice = f"{option.opts[0]} is given before {ctx.info_name!r} too"
                    ctx.fail(f"{given_twice}; give it once")
            return values, rest, given

        parser.parse_args = parse_once
        return parser

    def parse_args(ctx: Any, args: list[str]) -> Any:
        try:
            return read(ctx, args)
        except typer.BadParameter as error:
            # Typer's words say what is allowed, and of a number not what came.
            error.message = error.message.removeprefix("Value error, ").rstrip(".")
            came = None if error.param is None else values_of.get(error.param.name)
            if came is not None and repr(came) not in error.message:
                error.message += f", got {repr(came)[:80]}"
            raise

    command.make_parser, command.parse_args = strict_parser, parse_args


if __name__ == "__main__":
    app()

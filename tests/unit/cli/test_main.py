"""The command's manners: exit codes, one line per problem, nothing imported that is not needed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from infra.cli import main
from infra.cli.main import GROUPS, VERBS, app
from infra.clients.errors import JobsError

RUNNER = CliRunner()


@pytest.mark.parametrize("verb", VERBS)
def test_every_listed_verb_runs_and_explains_itself(verb: str) -> None:
    result = RUNNER.invoke(app, [*verb.split(), "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def loaded_by_help(*words: str) -> tuple[str, set[str]]:
    """What --help prints, and the modules that it took."""
    script = (
        "import sys\nfrom infra.cli.main import app\n"
        f"try: app([*{words!r}, '--help'])\nexcept SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize("words", [(), *((name,) for name in GROUPS if name not in VERBS)])
def test_help_imports_no_verb_and_nothing_slow(words: tuple[str, ...]) -> None:
    text, loaded = loaded_by_help(*words)
    assert "demo" in text if words == ("local",) else "Usage:" in text
    assert not {"paramiko", "pulumi", "nebius", "jinja2", "rich", "yaml"} & loaded
    assert not [name for name in loaded if name.startswith("infra.") and name not in _NEEDED]


_NEEDED = {"infra.cli", "infra.cli.interrupts", "infra.cli.main"}


def test_a_bill_loads_neither_the_engine_nor_its_wire() -> None:
    """They came with the log of a plugin and took a quarter of a second of 0.8."""
    script = (
        "import sys\nfrom infra.cli.main import app\n"
        "try: app(['cost', '--stack', 'local'])\nexcept SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "Cost of local" in done.stdout
    assert not {"paramiko", "pulumi", "grpc", "nebius", "jinja2", "rich"} & set(done.stderr.split())


def test_the_help_of_the_top_is_one_screen_of_80_by_24() -> None:
    text = RUNNER.invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    lines = text.rstrip("\n").split("\n")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    first = {line.split()[0] for line in lines if line.startswith("  ")}
    flat = {words for words in VERBS if " " not in words} - {"kube-token"}
    assert flat | set(GROUPS) <= first
    assert "kube-token" not in text


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_each_of_its_commands_in_a_line(group: str) -> None:
    text = RUNNER.invoke(app, [group, "--help"], env={"COLUMNS": "80"}).stdout
    listed = text.partition("Commands:\n")[2].rstrip("\n").split("\n")
    own = [words.split()[1] for words in VERBS if words.startswith(f"{group} ")]
    assert [line.split()[0] for line in listed] == own


def test_the_command_that_kubeconfigs_run_keeps_its_name() -> None:
    """`pulumi up` wrote it into them, and kubectl shows what it says on standard error."""
    done = RUNNER.invoke(app, ["kube-token", "--help"])
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["staus"], "no such command 'staus'; did you mean 'status'?"),
        (["cluster", "puase"], "no such command 'puase'; did you mean 'pause'?"),
        (["cluster", "xyz"], "no such command 'xyz'; see soperator cluster --help"),
        (["destory"], "no such command 'destory'; did you mean 'cluster destroy'?"),
        (["orphans"], "no such command 'orphans'; did you mean 'cluster orphans'?"),
        (["demo"], "no such command 'demo'; did you mean 'local demo'?"),
        (["reap"], "no such command 'reap'; did you mean 'cluster autostop'?"),
        (["cost chat"], "no such command 'cost chat'; "),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest(words: list[str], hint: str) -> None:
    result = RUNNER.invoke(app, words, prog_name="soperator")
    assert result.exit_code == 2
    assert hint in result.stderr


def test_the_stack_may_stand_before_a_command_of_cost_and_nothing_else_may() -> None:
    """Any other option there had no effect, without a word."""
    result = RUNNER.invoke(app, ["cost", "--stack", "l40s-dev", "prices"])
    assert result.stdout.startswith("Prices of l40s-dev: ")
    result = RUNNER.invoke(app, ["cost", "--format", "json", "prices"])
    assert result.exit_code == 2
    assert "--format: give the options of 'prices' after it" in result.stderr
    result = RUNNER.invoke(app, ["cost", "--stack", "l40s-dev", "size", "Qwen3-8B"])
    assert (result.exit_code, "gpu-h100-sxm" in result.stdout) == (0, False)
    # Any command of cost takes it, so one that is given before has effect.
    for words in (each.split() for each in VERBS if each.startswith("cost ")):
        assert "--stack" in RUNNER.invoke(app, [*words, "--help"]).stdout
    result = RUNNER.invoke(app, ["cost", "--stack", "l40s-dev", "chat", "--stack", "local"])
    assert result.exit_code == 2
    assert "--stack is given before 'chat' too; give it once" in result.stderr


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_that_no_disk_takes_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "infra.cli.main", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("soperator: standard output: No space left on device")


def test_without_a_standard_error_a_note_leaves_json_alone(tmp_path: Path) -> None:
    record = tmp_path / "runs" / "local" / "7" / "run_record.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    command = f"exec {sys.executable} -m infra.cli.main runs list --format json"
    environ = {**os.environ, "SOPERATOR_STATE": str(tmp_path)}
    noted, silent = (
        subprocess.run(["sh", "-c", each], capture_output=True, text=True, check=True, env=environ)
        for each in (command, f"{command} 2>&-")
    )
    assert "damaged run record, left out" in noted.stderr
    assert json.loads(noted.stdout) == json.loads(silent.stdout) == []


def fake(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes `soperator status` raise."""

    def command() -> None:
        raise error

    module = SimpleNamespace(status=command)
    monkeypatch.setattr(main, "import_module", lambda name: module)


def test_a_refusal_is_a_line_for_each_problem_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake(monkeypatch, JobsError("one: wrong; do this\ntwo: wrong; do that"))
    result = RUNNER.invoke(app, ["status"])
    assert result.exit_code == 1
    assert result.stderr == "soperator: one: wrong; do this\nsoperator: two: wrong; do that\n"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EROFS, "Read-only file system; if it is below SOPERATOR_STATE or SOPERATOR_CACHE, "),
        (errno.ENOSPC, "No space left on device; free some space there, or move SOPERATOR_STATE "),
    ],
)
def test_a_machine_that_takes_no_files_is_one_line(
    monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    """`soperator env` in a read-only checkout ended in a traceback."""
    fake(monkeypatch, OSError(number, os.strerror(number), "/checkout/.soperator"))
    result = RUNNER.invoke(app, ["status"])
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"soperator: /checkout/.soperator: {said}")


def test_a_state_folder_that_is_a_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "file" / "state"))
    result = RUNNER.invoke(app, ["env", "--offline"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Not a directory" in result.stderr


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, ZeroDivisionError("a defect"))
    assert isinstance(RUNNER.invoke(app, ["status"]).exception, ZeroDivisionError)


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, KeyboardInterrupt())
    assert RUNNER.invoke(app, ["status"]).exit_code == 130


_INTERRUPTED_AT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from infra.cli.main import app
app()
"""


@pytest.mark.parametrize(
    "module",
    [
        "stacks.errors",
        "dataclasses",
        "typer",
        "typer.core",
        "typer.main",
        "infra.cli.cost.bill",
        "infra.cli.output",
    ],
)
def test_ctrl_c_while_the_command_is_imported_is_quiet(module: str) -> None:
    """Within the first 0.15 s it showed a traceback of the imports."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_AT, "cost", "--stack", "l40s-dev"],
        env={**os.environ, "INTERRUPTED_AT": module},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "words",
    [
        ["cost", "-s", "local", "--stack", "l40s-dev"],
        ["submit", "prepare-data", "-s", "local", "-s", "local"],
        ["runs", "list", "--stack", "local", "--stack", "other"],
    ],
)
def test_an_option_of_one_value_is_given_once(words: list[str]) -> None:
    """The last one won without a word."""
    result = RUNNER.invoke(app, words)
    assert result.exit_code == 2
    assert "--stack is given 2 times; give it once" in result.stderr


@pytest.mark.parametrize(
    ("words", "wanted", "came"),
    [
        (["cost", "size", "Qwen3-14B", "--gpus", "1e3"], "valid integer", "1e3"),
        (["cost", "spend", "--tolerance", "-1"], "greater than or equal to 0", "-1"),
        (["runs", "list", "--last", "0"], "greater than or equal to 1", "0"),
        (["local", "fault", "latency", "--seconds", "inf"], "less than or equal to 3600", "inf"),
        (["cost", "--format", "pdf"], "not one of 'table', 'json'", "pdf"),
    ],
)
def test_a_wrong_value_is_refused_with_what_came_and_what_is_allowed(
    words: list[str], wanted: str, came: str
) -> None:
    """Typer said of a number what it should be, and not which one it was."""
    result = RUNNER.invoke(app, words)
    assert result.exit_code == 2
    assert wanted in result.stderr
    assert repr(came) in result.stderr
    assert "Value error" not in result.stderr


def test_an_option_of_several_values_is_given_as_often_as_wanted() -> None:
    words = ["submit", "no-such-job", "-s", "local", "--set", "a=1", "--set", "b=2", "--dry-run"]
    assert "times; give it once" not in RUNNER.invoke(app, words).stderr


@pytest.mark.parametrize("words", [["nonsense"], ["submit"], ["cost", "--format", "pdf"]])
def test_wrong_usage_ends_with_2(words: list[str]) -> None:
    assert RUNNER.invoke(app, words).exit_code == 2


def test_a_full_disk_under_standard_output_is_one_line() -> None:
    words = [sys.executable, "-m", "infra.cli.main", "cost", "prices", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "soperator: standard output: No space left on device; not all is there\n",
    )


def test_a_closed_standard_output_is_no_defect() -> None:
    command = f"{sys.executable} -m infra.cli.main cost -s l40s-dev --help >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_left_is_no_verdict() -> None:
    """`soperator runs diff A B | head -1` with pipefail: 1 would say that they differ."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "infra.cli.main", "runs", "--help"]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")

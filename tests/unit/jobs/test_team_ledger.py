"""Without accounting members tell each other what their jobs cost, and each is believed of the own.

The script of the login node runs for real, with a file for each uid in a folder of root's.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import pytest

from cost.report.layout import Format
from cost.runs.budget import MonthBudget
from cost.runs.ledger import Entry, encode
from cost.runs.spend import By, Spend, parts, render_spend
from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.jobs.ledger import (
    JobLedger,
    admit_session,
    expected,
    note_actual,
    open_ledger,
    report_of_cluster,
)
from infra.operate.sessions import ask as ask_session
from stacks.spec.cost import BudgetSpec
from tests.unit.cost.run_stacks import CLUSTER, actual_entry, at, forecast_entry, job_of, l40s
from tests.unit.jobs.raw import submit_within_budget
from tests.unit.jobs.test_budget import submission

pytestmark = pytest.mark.usefixtures("public_key_file")
OF_OTHERS = pytest.mark.skipif(
    os.geteuid() != 0, reason="writes files of other users, which only root may"
)
ANN, BOB = 20011, 20012
"""Uids that no user of this machine has: files are told by number."""


@dataclass(frozen=True)
class Login:
    """A shell of the login node as one user."""

    uid: int
    programs: str = ""
    """Folder with programs that stand before the machine's own."""

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        home = Path(os.environ["HOMES"]) / str(self.uid)
        home.mkdir(exist_ok=True)
        os.chown(home, self.uid, self.uid)
        who = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        done = subprocess.run(
            [*who, "bash", "-c", command],
            input=stdin,
            capture_output=True,
            check=False,
            cwd="/",
            env={"HOME": str(home), "PATH": f"{self.programs}:{os.environ['PATH']}"},
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        return Result(command=command, exit_code=done.returncode, stdout=out, stderr=err)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # the way to pytest's own is closed to others
        Path(name).chmod(0o711)
        monkeypatch.setenv("HOMES", name)
        made = Path(name) / "ledger"
        made.mkdir()
        made.chmod(0o1777)
        yield made


def program(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def books(state: Path, folder: Path, usd: str = "100") -> JobLedger:
    budget = BudgetSpec(usd_per_month=Decimal(usd), ledger=str(folder))
    return open_ledger(replace(l40s(), budget=budget), state, print)


def month(
    of: JobLedger, uid: int, log: Callable[[str], object] = print, programs: str = ""
) -> MonthBudget:
    with of.locked(Login(uid, programs), CLUSTER) as opened:
        told = opened.exchange(log)
        found = of.month(opened.file.read().entries, at(12), (), told)
    assert found is not None
    return found


@OF_OTHERS
def test_what_ended_unseen_is_told_once_by_its_owner(folder: Path, tmp_path: Path) -> None:
    """Ann's job of 30 dollars ended, another was forgotten; bob's laptop saw neither."""
    ann, bob = books(tmp_path / "a", folder), books(tmp_path / "b", folder)
    ann.file.append(
        forecast_entry("1", "40", at(8)),
        actual_entry("1", "30", at(8), at(9)),
        forecast_entry("2", None, at(9), at_most_usd=Decimal(7)),
    )
    for _ in range(2):
        assert month(ann, ANN).left_usd == 63
        found = month(bob, BOB)
    assert (found.spent_usd, found.reserved_usd) == (30, 7)
    assert {each.user for each in found.charges} == {str(ANN)}
    bob.file.append(actual_entry("1", "30", at(8), at(9)))
    assert month(bob, BOB).left_usd == 63, "what bob saw himself counts once"
    (own,) = (each for each in folder.iterdir() if each.stat().st_uid == ANN)
    assert len(own.read_text().splitlines()) == 3
    own.write_text(own.read_text().rstrip("\n")[:-9])  # a full disk
    assert month(ann, ANN).left_usd == 63
    assert month(bob, BOB).left_usd == 63


@OF_OTHERS
def test_nobody_lowers_or_raises_what_another_spent(folder: Path, tmp_path: Path) -> None:
    ann, carl = books(tmp_path / "a", folder), books(tmp_path / "c", folder)
    ended = forecast_entry("1", "40", at(8)), actual_entry("1", "30", at(8), at(9))
    ann.file.append(*ended, forecast_entry("3", "1", at(8)))
    month(ann, ANN)
    (own,) = folder.iterdir()
    claim = encode(actual_entry("1", "0", at(8), at(9), user="ann"))
    more = encode(actual_entry("5", "9", at(8), at(9), user="ann"))
    for attack in (
        f"rm -f {own}",
        f"mv {own} {folder}/away",
        f"echo > {own}",
        f"printf '%s\n' '{claim}' '{more}' > {folder}/{ANN}.forged",
        f"printf %s no-end > {folder}/0",
        f"ln -s {own} {folder}/link; mkfifo {folder}/pipe; ln {own} {folder}/hard",
        f"touch '{folder}/x\n{ANN} {own}' '{own} '",
    ):
        Login(BOB).run(attack)
    (folder / "hard").unlink(missing_ok=True)
    os.link(own, folder / "hard")  # as where the kernel lets everybody
    found = month(carl, 20013)
    spent = {each.user: each.usd for each in found.charges if each.key[1] == "1" and each.usd}
    assert spent == {str(ANN): 30}
    assert {(e.user, e.key[1], e.usd) for e in found.charges if e.key[1] == "5"} == {
        (str(BOB), "5", Decimal(9))
    }
    assert found.left_usd == 100 - 30 - 1 - 9
    month(ann, ANN)
    assert len([each for each in folder.iterdir() if each.lstat().st_uid == ANN]) == 3
    assert month(carl, 20013).left_usd == 100 - 30 - 1 - 9, "a copy of a line counts once"


@OF_OTHERS
def test_who_can_read_a_file_keeps_its_owner_from_nothing(folder: Path, tmp_path: Path) -> None:
    """A lock on a file takes only the right to read it: bob's hold on ann's lasted for ever."""
    ann = books(tmp_path / "a", folder)
    month(ann, ANN)
    (own,) = folder.iterdir()
    with own.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert month(ann, ANN).left_usd == 100
    lock = folder.parent / str(ANN) / ".soperator/.ledger/lock"
    assert not Login(BOB).run(f"exec 9< {lock}").ok


@OF_OTHERS
def test_a_lock_that_is_held_is_told_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    program(folder.parent / "bin/flock", "exit 1")
    with pytest.raises(JobsError, match=r"/20011/\.soperator/\.ledger/lock on .*: for a m"):
        month(books(tmp_path / "a", folder), ANN, programs=str(folder.parent / "bin"))


@OF_OTHERS
@pytest.mark.parametrize("awk", ["gawk", "mawk"])
def test_what_is_more_than_a_file_holds_stands_in_the_next(
    awk: str, folder: Path, tmp_path: Path
) -> None:
    """Of a file above 4 MiB the newest lines were not read, and nobody said so."""
    found = shutil.which(awk)
    if found is None:
        pytest.skip(f"no {awk} here")
    program(folder.parent / "bin/awk", f'exec {found} "$@"')
    ann, bob, said = books(tmp_path / "a", folder), books(tmp_path / "b", folder), list[str]()
    for number in range(1, 9):
        ann.file.append(forecast_entry(str(number), "1", at(8), basis="x" * 1_500_000))
        ann.file.append(forecast_entry(str(number), "2", at(8)))
        if number in (1, 8):
            month(ann, ANN, programs=str(folder.parent / "bin"))
    assert month(bob, BOB, said.append).left_usd == 100 - 2 * 8
    files = [each for each in folder.iterdir() if each.stat().st_uid == ANN]
    assert len(files) == 5
    month(ann, ANN, programs=str(folder.parent / "bin"))
    assert sum(len(each.read_text().splitlines()) for each in files) == 2 * 8
    assert said == []


@OF_OTHERS
def test_short_lines_of_a_member_are_not_printed_each_with_a_name(
    folder: Path, tmp_path: Path
) -> None:
    """Four MiB of them would be twenty, and of two members more than a command may print."""
    line = encode(actual_entry("5", "9", at(8), at(9)))
    wrote = Login(BOB).run(f"yes x | head -c 400000 > {folder}/x; echo '{line}' >> {folder}/x")
    assert wrote.ok
    said = list[str]()
    assert month(books(tmp_path / "a", folder), ANN, said.append).left_usd == 91
    (damaged,) = said
    assert damaged.startswith("budget.ledger: 1 lines of 20012 are left out, the first of them:")


@OF_OTHERS
def test_what_is_not_read_of_a_member_is_said(folder: Path, tmp_path: Path) -> None:
    """Of many files the newest, of a long one the start, and none of one that is locked up."""
    line = encode(actual_entry("5", "9", at(8), at(9)))
    for attack in (
        f"for each in 1 2 3 4 5 6 7; do echo > {folder}/$each; done; chmod 0 {folder}/7",
        f"head -c 5000000 /dev/zero > '{folder}/lo ng'; printf '%s\n' '{line}' > {folder}/new",
        f"echo > {folder}/old; touch -d 2020-01-01 {folder}/old",
    ):
        assert Login(BOB).run(attack).ok
    said = list[str]()
    assert month(books(tmp_path / "a", folder), ANN, said.append).left_usd == 91
    cut = "not a JSON object (column 1): cut or damaged"
    assert {each.removeprefix("budget.ledger: ") for each in said} == {
        f"'{folder}/lo ng' of 20012 has 5000000 bytes, and of them the first 4194304 are read",
        f"1 lines of 20012 are left out, the first of them: {cut}",
        "20012 has more than 8 files there, and of them the newest are read",
        f"dd: failed to open '{folder}/7': Permission denied",
    }


@OF_OTHERS
@pytest.mark.parametrize("name", [r"CORP\alice", "CORP\\domain users/x&y"])
def test_a_name_is_told_whatever_stands_in_it(name: str, folder: Path, tmp_path: Path) -> None:
    program(folder.parent / "bin/id", f"[ $1 = -un ] && echo '{name}' || exec /usr/bin/id \"$@\"")
    ann = books(tmp_path / "a", folder)
    ann.file.append(forecast_entry("1", "40", at(8)), actual_entry("1", "30", at(8), at(9)))
    month(ann, ANN, programs=str(folder.parent / "bin"))
    found = month(books(tmp_path / "b", folder), BOB, programs=str(folder.parent / "bin"))
    assert [each.user for each in found.charges] == [name]


@OF_OTHERS
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("chmod 777 {f}", "has to be root's, with no others who can move what is in it"),
        ("chown 20012 {f}", "a directory of UNKNOWN, mode 1777"),
        ("mv {f} {f}2; ln -s {f}2 {f}", "is a symbolic link of root"),
        ("rmdir {f}", "and is not there; ask root for: install -d -m 1770 -g GROUP {f}"),
        ("chmod 1755 {f}", "20011 cannot write into it"),
        ("chmod 777 {f}/..", "has to be root's, with no others who can move what is in it"),
    ],
)
def test_a_folder_in_which_files_can_be_exchanged_is_refused(
    what: str, says: str, folder: Path, tmp_path: Path
) -> None:
    subprocess.run(["bash", "-c", what.format(f=folder)], check=True)
    with pytest.raises(JobsError, match=r"budget\.ledger: ") as raised:
        month(books(tmp_path / "state", folder), ANN)
    assert says.format(f=folder) in str(raised.value)


def line_of(entry: Entry, **changes: object) -> str:
    return json.dumps({**json.loads(encode(entry)), **changes})


GOOD = encode(actual_entry("7", "9", at(8), at(9)))
ENDED = actual_entry("8", "0", at(8), at(9))
MOMENTS = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")
HOSTILE = {
    "kind": ['{"schema_version": 1, "kind": []}', '{"schema_version": 1, "kind": {}}'],
    "number": [f'{{"schema_version": {"9" * 5000}}}'],
    "deep": ['{"schema_version": ' + "[" * 900 + "]" * 900 + "}", "[" * 100_000],
    "no text": ["\x00\ufffd", "\x1b[2J"],
    "runs": [
        line_of(ENDED, runs=[{"started_at": began, "ended_at": ended, "nodes": ["worker-0"] * 2}])
        for began in MOMENTS
        for ended in (None, *MOMENTS)
    ],
    "hours": [
        line_of(forecast_entry("9", "0", at(8)), at=moment, hours=str(10**15)) for moment in MOMENTS
    ],
} | {
    f"{key} of {entry.job_id}": [
        line_of(entry, **{key: value})
        for value in ([], {}, "", "\x1b[2J", "\ud800", "9" * 5000, 10**18, -1, True, None)
    ]
    for entry in (ENDED, forecast_entry("9", "0", at(8)))
    for key in json.loads(encode(entry))
}


@dataclass
class Teller:
    """A login node with job 12 in its queue, held, whose `budget.ledger` holds what is told."""

    told: str = ""
    num_answers: int = 9
    """How often budget.ledger answers before it is locked."""
    has_release: bool = True

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        code, out, err = 0, "--\n", ""
        if "folder=" in command:
            self.num_answers -= 1
            code, out, err = (0, self.told, "") if self.num_answers >= 0 else (77, "", "locked")
        elif "release" in command and not self.has_release:
            code, err = 1, "slurmctld is down"
        elif "squeue --me" in command:
            out = "12\n"
        elif "squeue" in command and "sacct" not in command:
            out = "12|12|ann||main|PENDING|N/A|N/A|8|gpu:1||1|1:30:00|JobHeldUser|shell\n"
        return Result(command=command, exit_code=code, stdout=out, stderr=err)


@pytest.mark.parametrize("lines", HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_member_writes_costs_others_no_command(lines: list[str], tmp_path: Path) -> None:
    """One line of a neighbour ended everybody's submit, spend and shell."""
    of, said = books(tmp_path, Path("/team")), list[str]()
    shell = Teller("".join(f"bob\t{each}\n" for each in (*lines, GOOD)))
    with of.locked(shell, CLUSTER) as opened:
        told = opened.exchange(said.append)
    found = of.month((), at(12), (), told)
    assert found is not None
    assert Decimal(9) in [each.usd for each in found.charges]
    assert found.refusal("finetune", Decimal(1000)) is not None
    period = {"cluster": CLUSTER, "since": at(0, day=1), "until": at(12), "now": at(12)}
    report = report_of_cluster(of, shell, **period)
    for shown in (render_spend(report, form, by) for form in Format for by in (None, *By)):
        assert shown.encode()
        assert re.sub(r"[\r\n]", "", shown).isprintable()
    assert all(each.isprintable() and len(each) < 400 for each in said)
    assert set(said) <= set(report.notes)
    assert len(said) <= 1, "one line for each member, whatever they wrote"


def test_who_claims_what_nobody_else_saw_is_named_by_what_it_refuses(tmp_path: Path) -> None:
    """A member can claim any sum for jobs that were never there: root removes that file."""
    claim = actual_entry("99", "1000000", at(8), at(9), user="ann", account="red")
    shell = Teller(
        f"mallory\t{encode(claim)}\nbob\t{encode(actual_entry('7', '9', at(8), at(9)))}\n"
    )
    asked = Asked(books(tmp_path, Path("/team")))
    with pytest.raises(JobsError, match=r"told by mallory \$1,000,000\.00 \(job 99\), bob \$9\.00"):
        asked.submit(shell)


def costs(of: JobLedger, *told: str) -> tuple[dict[str, Decimal | None], Spend]:
    """What `spend` says of each user's jobs where these lines are told."""
    period = {"cluster": CLUSTER, "since": at(0, day=1), "until": at(12), "now": at(12)}
    report = report_of_cluster(of, Teller("".join(told)), **period)
    of_parts = sum((usd for _, usd in parts(report)), Decimal(0))
    assert abs(of_parts - report.bill_usd) < Decimal("1e-6")
    return {row.use.user: row.nodes_usd for row in report.jobs}, report


def test_nobody_s_word_changes_what_another_s_job_costs(tmp_path: Path) -> None:
    """A job that mallory said was on the same nodes took half of what ann's and carl's cost."""
    of = books(tmp_path, Path("/team"))
    of.file.append(actual_entry("1", "18.2752", at(8), at(9), user="ann"))
    carl = f"carl\t{encode(actual_entry('2', '9', at(10), at(11)))}\n"
    lies = "".join(
        f"mallory\t{encode(actual_entry(str(number), '1', at(8), at(11)))}\n"
        for number in range(3, 6)
    )
    hour_usd = 4 * Decimal("4.5688")
    alone, honest = costs(of, carl)
    assert alone == {"ann": hour_usd, "carl": hour_usd}
    both, lied = costs(of, carl, lies)
    assert {user: both[user] for user in alone} == alone
    assert honest.told_twice_usd == 0
    claimed = lied.jobs_usd - honest.jobs_usd
    # Three hours of each node: of the first ann had a share with them, of the second nobody.
    assert abs(claimed - hour_usd * (Decimal("0.75") + 2)) < Decimal("1e-6")
    assert abs(lied.told_twice_usd - hour_usd * Decimal("1.75")) < Decimal("1e-6")
    assert lied.bill_usd == honest.bill_usd
    for form in Format:
        text = render_spend(lied, form)
        assert "told twice" in text or form is Format.JSON


@dataclass
class Asked:
    """A submission of `finetune` from here, and what was said of it."""

    of: JobLedger
    said: list[str] = field(default_factory=list)

    def submit(self, shell: Teller) -> str:
        run = self.of.forecast(job_of(self.of.spec))
        entry, log = expected(run, CLUSTER, at=at(12)), self.said.append
        return submit_within_budget(self.of, shell, entry, submission, decides=True, log=log).job_id

    def session(self, shell: Teller) -> bool:
        asked = ask_session(self.of.rates, gpus=1, cpus=None, partition=None, hours=1)
        return admit_session(replace(self.of, log=self.said.append), shell, asked, CLUSTER)


def test_a_job_whose_cost_the_team_cannot_be_told_is_submitted_all_the_same(
    tmp_path: Path,
) -> None:
    """The error came in the place of its number, and whoever submitted again paid double."""
    asked = Asked(books(tmp_path, Path("/team")))
    assert asked.submit(Teller(num_answers=2)) == "12"
    later = "locked; the job is written down here, and the team is told at the next submit"
    assert asked.said[-1] == f"budget.ledger: {later}"
    assert [each.job_id for each in asked.of.file.read().entries] == ["12"]
    assert asked.session(Teller(num_answers=1))
    assert asked.said[-1] == f"budget.ledger: {later}"
    note = note_actual(
        replace(asked.of, log=asked.said.append), Teller(num_answers=0), CLUSTER, "12"
    )
    assert note.startswith("job 12: ")
    assert asked.said[-1] == f"budget.ledger: {later}"


@pytest.mark.parametrize("shell", [Teller(num_answers=1), Teller(has_release=False)])
def test_a_job_that_could_not_be_decided_about_is_named(shell: Teller, tmp_path: Path) -> None:
    asked = Asked(books(tmp_path, Path("/team")))
    after = "submitted and waits held: the next command of l40s-dev from here decides about it"
    with pytest.raises(JobsError, match=f"(locked|is down).*; job 12 is {after}$"):
        asked.submit(shell)
    with pytest.raises(JobsError, match=r"; job 12 is the session's, and is ended with it$"):
        asked.session(shell)
    assert asked.of.file.read().entries == ()

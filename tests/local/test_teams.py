"""Accounts, QOS, shares and limits in a real slurmdbd, as the program sets them over the door."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from infra.render.login import teams_script
from stacks.load import KEY_FILE_VARIABLE, load_stack
from stacks.spec import StackSpec
from stacks.spec.slurm import AccountSpec, QosSpec, SlurmSpec
from tests.conftest import PUBLIC_KEY
from tests.local.slurm_stand import Stand, running_stand

pytestmark = pytest.mark.local

URGENT = QosSpec(name="urgent", priority=100, max_wall="01:00:00", max_gpus=1)
RED = AccountSpec(name="red", users=("ann", "bob"), fair_share=3, qos=("normal", "urgent"))
BLUE = AccountSpec(name="blue", users=("bob",), max_gpus=1, max_nodes=1, max_jobs=5)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StackSpec:
    """The local stack with two teams."""
    key = tmp_path_factory.mktemp("key") / "id.pub"
    key.write_text(PUBLIC_KEY + "\n")
    local = load_stack("local", environ={KEY_FILE_VARIABLE: str(key)})
    return with_teams(local, accounts=(RED, BLUE), qos=(URGENT,))


def with_teams(spec: StackSpec, **changes: object) -> StackSpec:
    slurm: SlurmSpec = replace(spec.slurm, **changes)
    return replace(spec, slurm=slurm)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory, spec: StackSpec) -> Iterator[Stand]:
    """A cluster whose Slurm is configured by the values of that stack."""
    with running_stand(tmp_path_factory.mktemp("stand")) as made:
        made.apply(made.values(spec))
        made.wait_idle("worker-[0-1]")
        yield made


def ran(stand: Stand, spec: StackSpec) -> str:
    """What the script of the stack's teams says."""
    answer = stand.ssh(teams_script(spec))
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def shown(stand: Stand, what: str) -> list[str]:
    answer = stand.ssh(f"sacctmgr --noheader --parsable2 {what}")
    assert answer.returncode == 0, answer.stderr
    return sorted(answer.stdout.splitlines())


@pytest.fixture(scope="module")
def first(stand: Stand, spec: StackSpec) -> str:
    """What the script said when it made the teams, which no test changes but the one of their end.

    A run is some thirty commands, each of which waits for the database.
    """
    return ran(stand, spec)


MEMBERS = "list associations where account=red,blue format=account,user"
ALL_MEMBERS = [
    *("blue|", "blue|bob", "blue|deployer", "blue|root"),
    *("red|", "red|ann", "red|bob", "red|deployer", "red|root"),
]


@pytest.mark.feature("S004-29")
def test_declared_teams_are_in_the_database_with_their_limits(stand: Stand, first: str) -> None:
    assert first == "teams: 2 accounts, 1 QOS declared"
    assert shown(stand, MEMBERS) == ALL_MEMBERS
    limits = "list associations where account=red,blue user='' format=account,share,grptres,grpjobs"
    assert shown(stand, limits) == ["blue|1|gres/gpu=1,node=1|5", "red|3||"]
    qos = "list qos urgent format=name,priority,maxwall,grptres"
    assert shown(stand, qos) == ["urgent|100|01:00:00|gres/gpu=1"]
    allowed = "list associations where account=red user='' format=qos,defaultqos"
    assert shown(stand, allowed) == ["normal,urgent|normal"]
    # The first account that names a user is where its jobs go.
    assert shown(stand, "list user ann,bob format=user,defaultaccount") == ["ann|red", "bob|red"]


@pytest.mark.usefixtures("first")
def test_a_second_run_changes_nothing(stand: Stand, spec: StackSpec) -> None:
    before = shown(stand, "list associations"), shown(stand, "list qos")
    ran(stand, spec)
    assert (shown(stand, "list associations"), shown(stand, "list qos")) == before


@pytest.mark.usefixtures("first")
def test_slurm_takes_jobs_of_declared_accounts_and_no_others(stand: Stand) -> None:
    stand.output(stand.submit("true", "--account=red"))
    refused = stand.ssh("sbatch --account=green --wrap true")
    assert "Invalid account" in refused.stderr
    # Root is no member of a QOS that blue may not use.
    refused = stand.ssh("sbatch --account=blue --qos=urgent --wrap true")
    assert "Invalid qos" in refused.stderr


@pytest.mark.usefixtures("first")
@pytest.mark.feature("S000-124", "S002-03", "S004-29", "S004-31")
def test_a_job_over_the_limit_of_its_account_waits(stand: Stand) -> None:
    job = stand.submit("true", "--account=blue", "-N2", "--gpus-per-node=1")
    reason = f"squeue -h -j {job} -o %r"
    stand.wait(lambda: "AssocGrp" in stand.ssh(reason).stdout, "a limit as the reason")
    assert stand.ssh(f"scancel {job}").returncode == 0


@pytest.mark.usefixtures("first")
def test_members_accounts_and_qos_that_are_no_longer_declared_go(
    stand: Stand, spec: StackSpec
) -> None:
    assert stand.ssh("sacctmgr -i add account foreign organization=others").returncode == 0
    small = replace(RED, users=("ann",), qos=())
    ran(stand, with_teams(spec, accounts=(small,), qos=()))
    assert shown(stand, MEMBERS) == ["red|", "red|ann", "red|deployer", "red|root"]
    assert shown(stand, "list qos format=name") == ["normal"]
    ran(stand, with_teams(spec, accounts=(), qos=()))
    # What others made stays, and so does root.
    assert shown(stand, "list account format=account") == ["foreign", "root"]
    assert shown(stand, "list user format=user") == ["deployer", "root"]


def test_a_refused_setting_is_told_with_its_command(stand: Stand, spec: StackSpec) -> None:
    broken = replace(RED, name="red", qos=("missing",))
    answer = stand.ssh(teams_script(with_teams(spec, accounts=(broken,), qos=())))
    assert answer.returncode == 1
    assert answer.stderr.startswith("sacctmgr modify account red set ")

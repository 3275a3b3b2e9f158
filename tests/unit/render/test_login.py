"""The scripts of the login node, run by a real shell; only Slurm itself is played."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.login import (
    WAKES_AFTER_LOOKS,
    activate_script,
    awaited_nodes,
    places_script,
    ready_script,
)
from infra.render.nodes import minimum_nodes
from stacks.spec import StackSpec
from stacks.spec.cluster import DEPLOYER, UserSpec
from stacks.spec.nodes import LocalDiskSpec
from stacks.spec.storage import MemoryMountSpec
from tests.another_user import as_root
from tests.conftest import PUBLIC_KEY

# Each look of the script is one line of `looks`, its nodes apart by commas; the last one stays.
# The nodes are printed twice and in disorder, as sinfo does for several partitions.
SINFO = r"""#!/bin/bash
cd "${0%/*}"
echo "$*" >> calls
[[ $1 == --list-reasons ]] && { echo "disk full on worker-1"; exit; }
head -n 1 looks | tr , '\n' | tee again
cat again
[[ $(wc -l < looks) -eq 1 ]] || sed -i 1d looks
"""


# Notes what it is told, and refuses as often as `refusals` has lines.
SCONTROL = r"""#!/bin/bash
cd "${0%/*}"
echo "$*" >> told
[[ ! -s refusals ]] || { sed -i 1d refusals; exit 1; }
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH: `sinfo` that shows `looks`, `scontrol`, a `sleep` without time."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    programs = {
        "sinfo": SINFO,
        "scontrol": SCONTROL,
        "sleep": '#!/bin/sh\necho "$1" >> "${0%/*}/naps"\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def orders(slurm: Path) -> list[str]:
    """What scontrol was told of nodes."""
    told = slurm / "told"
    lines = told.read_text().splitlines() if told.exists() else []
    return [line for line in lines if line.startswith("update")]


def shell(script: str, *, shell: str = "bash") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shell, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )


def naps(slurm: Path) -> int:
    path = slurm / "naps"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_minimum_of_every_nodeset_is_expected_from_ordinal_zero(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    scaling = replace(worker, name="cheap", min_nodes=1, max_nodes=8)
    off = replace(worker, name="off", min_nodes=0, max_nodes=8)
    both = replace(spec, nodes=replace(spec.nodes, workers=(worker, scaling, off)))
    assert minimum_nodes(both) == ("worker-0", "worker-1", "cheap-0")


def elastic(spec: StackSpec) -> StackSpec:
    """The same, with two nodes more that come for a job."""
    (worker,) = spec.nodes.workers
    workers = (replace(worker, max_nodes=worker.min_nodes + 2),)
    return replace(spec, nodes=replace(spec.nodes, workers=workers))


@pytest.mark.parametrize("interpreter", ["bash", "dash"])
def test_nodes_that_are_idle_are_ready_at_once(
    spec: StackSpec, slurm: Path, interpreter: str
) -> None:
    """The command resource gives the text to the login shell, whichever that is."""
    (slurm / "looks").write_text("worker-1 idle,worker-0 idle\n")
    done = shell(ready_script(spec), shell=interpreter)
    assert (done.returncode, done.stdout) == (0, "2 nodes ready: worker-0 worker-1\n"), done.stderr
    assert naps(slurm) == 0


@pytest.mark.feature("S002-27")
def test_it_waits_for_the_last_node(spec: StackSpec, slurm: Path) -> None:
    (slurm / "looks").write_text(
        "\nworker-0 idle\nworker-0 idle,worker-1 down*\nworker-0 idle,worker-1 idle\n"
    )
    assert shell(ready_script(spec)).returncode == 0
    assert naps(slurm) == 3


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated", "completing"])
def test_a_node_at_work_is_ready(spec: StackSpec, slurm: Path, state: str) -> None:
    (slurm / "looks").write_text(f"worker-0 idle,worker-1 {state}\n")
    assert shell(ready_script(spec, timeout_s=0)).returncode == 0


@pytest.mark.feature("S002-27", "S002-28")
@pytest.mark.parametrize(
    "state", ["idle*", "down", "down*", "drained", "drained*", "draining", "future", "unknown*"]
)
def test_a_node_that_takes_no_job_is_not_ready(spec: StackSpec, slurm: Path, state: str) -> None:
    """A star is a node that does not answer: idle* is not idle."""
    (slurm / "looks").write_text(f"worker-0 idle,worker-1 {state}\n")
    assert shell(ready_script(spec, timeout_s=0)).returncode == 1


@pytest.mark.parametrize("shown", [",worker-1 idle~", ""])
def test_a_node_of_an_elastic_set_that_sleeps_is_woken_once(
    spec: StackSpec, slurm: Path, shown: str
) -> None:
    """25.11 lists one that is powered down, 22.05 does not."""
    asleep = f"worker-0 idle{shown}\n" * (WAKES_AFTER_LOOKS + 1)
    (slurm / "looks").write_text(
        f"{asleep}worker-0 idle,worker-1 idle#\nworker-0 idle,worker-1 idle\n"
    )
    done = shell(ready_script(elastic(spec)), shell="dash")
    assert done.returncode == 0, done.stderr
    assert orders(slurm) == ["update nodename=worker-1 state=power_up"]


def test_an_order_that_slurm_refuses_is_given_again(spec: StackSpec, slurm: Path) -> None:
    """It takes none while a node is on its way down, nor before it answers."""
    early = "worker-0 idle,worker-1 idle%\n" * WAKES_AFTER_LOOKS
    asleep = "worker-0 idle,worker-1 idle~\n"
    (slurm / "looks").write_text(f"{early}{asleep}{asleep}worker-0 idle,worker-1 idle\n")
    (slurm / "refusals").write_text("one\n")
    assert shell(ready_script(elastic(spec))).returncode == 0
    assert len(orders(slurm)) == 2


def test_a_sleeping_node_is_not_ready_and_one_of_a_fixed_set_is_not_woken(
    spec: StackSpec, slurm: Path
) -> None:
    """Nodes of a new cluster sleep, as Slurm sees it, until their first slurmd registers.

    One that was woken before it did waited for a later boot until ResumeTimeout.
    """
    asleep, awake = "worker-0 idle,worker-1 idle~\n", "worker-0 idle,worker-1 idle\n"
    for made, looks, woken in (
        (elastic(spec), WAKES_AFTER_LOOKS, 0),
        (spec, WAKES_AFTER_LOOKS + 1, 0),
        (elastic(spec), WAKES_AFTER_LOOKS + 1, 1),
    ):
        (slurm / "looks").write_text(asleep)
        assert shell(ready_script(made, timeout_s=0)).returncode == 1
        (slurm / "looks").write_text(asleep * looks + awake)
        assert shell(ready_script(made)).returncode == 0
        assert len(orders(slurm)) == woken


def test_slurmctld_writes_its_state_once_the_nodes_are_there(spec: StackSpec, slurm: Path) -> None:
    """One of 25.11 that is killed before it did so with accounting never starts again."""
    (slurm / "looks").write_text("worker-0 idle,worker-1 idle\n")
    for has_accounting in (False, True):
        declared = replace(spec, slurm=replace(spec.slurm, accounting=has_accounting))
        assert shell(ready_script(declared)).returncode == 0
        told = (slurm / "told").read_text() if (slurm / "told").exists() else ""
        assert told == ("reconfigure\n" if has_accounting else "")


def test_a_failure_names_the_node_what_sinfo_shows_and_slurms_reason(
    spec: StackSpec, slurm: Path
) -> None:
    (slurm / "looks").write_text("worker-0 idle,worker-1 drained\n")
    done = shell(ready_script(spec, timeout_s=0))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "not idle after 0 s: worker-1; sinfo says:",
        "worker-0 idle",
        "worker-1 drained",
        "disk full on worker-1",
        "soperator doctor --stack local names pods that cannot start",
    ]


def test_a_slurm_that_does_not_answer_yet_is_waited_for(spec: StackSpec, slurm: Path) -> None:
    """On a new cluster sshd is there before slurmctld."""
    (slurm / "sinfo").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1")
    done = shell(ready_script(spec, timeout_s=0))
    assert done.returncode == 1
    assert "worker-0 worker-1; sinfo says:\nUnable to contact slurm controller" in done.stderr


def test_a_node_whose_name_ends_like_an_expected_one_does_not_count(
    spec: StackSpec, slurm: Path
) -> None:
    (slurm / "looks").write_text("big-worker-0 idle,worker-01 idle,worker-1 idle\n")
    done = shell(ready_script(spec, timeout_s=0))
    assert done.returncode == 1
    assert "not idle after 0 s: worker-0;" in done.stderr


def test_the_partition_that_holds_every_node_is_asked(spec: StackSpec, slurm: Path) -> None:
    (slurm / "looks").write_text("worker-0 idle,worker-1 idle\n")
    shell(ready_script(spec))
    assert "--partition=hidden" in (slurm / "calls").read_text()


def test_without_a_node_that_always_runs_the_controller_alone_must_answer(
    spec: StackSpec, slurm: Path
) -> None:
    (worker,) = spec.nodes.workers
    scaling = replace(worker, min_nodes=0)
    empty = replace(spec, nodes=replace(spec.nodes, workers=(scaling,)))
    assert shell(ready_script(empty)).returncode == 0
    assert (slurm / "told").read_text().splitlines()[0] == "ping"


@pytest.fixture
def rooted(spec: StackSpec) -> Iterator[StackSpec]:
    """The stack with its paths in a temporary folder, one of them to be quoted."""
    # Not in /tmp, which each node has for itself: no place is made there.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        root = Path(folder, "the jail")
        memory = MemoryMountSpec(mount_path=f"{root}/mnt/memory", size_gib=2)
        places = {name: f"{root}{path}" for name, path in spec.storage.places.items()}
        submounts = tuple(
            replace(each, mount_path=f"{root}{each.mount_path}") for each in spec.storage.submounts
        )
        storage = replace(spec.storage, places=places, memory=memory, submounts=submounts)
        yield replace(spec, storage=storage, code_path=f"{root}/code")


def made(spec: StackSpec) -> subprocess.CompletedProcess[str]:
    """The script of the places, where `daemon` of this machine stands for the deployer."""
    return shell(places_script(spec).replace(DEPLOYER, "daemon"))


@as_root
def test_every_shared_place_is_made_and_none_in_the_memory_of_a_worker(rooted: StackSpec) -> None:
    done = made(rooted)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for name, path in rooted.storage.places.items():
        assert Path(path).is_dir() is (name != "scratch"), name
    assert Path(rooted.code_path, "releases").is_dir()


@as_root
def test_a_place_beside_the_tmpfs_with_a_name_that_starts_alike_is_made(
    rooted: StackSpec,
) -> None:
    places = {**rooted.storage.places, "cache": rooted.storage.places["scratch"] + "-cache"}
    beside = replace(rooted, storage=replace(rooted.storage, places=places))
    assert made(beside).returncode == 0
    assert Path(places["cache"]).is_dir()


@as_root
def test_a_place_on_a_disk_of_each_worker_is_not_made_on_the_login_node(rooted: StackSpec) -> None:
    scratch = rooted.storage.places["scratch"]
    disk = LocalDiskSpec(name="scratch", mount_path=scratch, size_gib=186)
    workers = tuple(replace(each, local_disks=(disk,)) for each in rooted.nodes.workers)
    on_disk = replace(
        rooted,
        nodes=replace(rooted.nodes, workers=workers),
        storage=replace(rooted.storage, memory=None),
    )
    assert made(on_disk).returncode == 0
    assert not Path(scratch).exists()


@as_root
@pytest.mark.feature("S000-71")
def test_every_member_has_a_folder_of_the_own_in_places_that_are_roots(rooted: StackSpec) -> None:
    """Where everybody may write, whoever is first decides where root's and others' files go."""
    user = UserSpec(name="games", ssh_public_keys=(PUBLIC_KEY,))
    shared = replace(rooted, soperator=replace(rooted.soperator, users=(user,)))
    for _ in range(2):
        assert made(shared).returncode == 0
    for name in ("logs", "results", "chkpt"):
        place = Path(rooted.storage.places[name])
        for folder in (place, place / "users"):
            assert (folder.stat().st_uid, folder.stat().st_mode & 0o7777) == (0, 0o755), folder
        for member in ("daemon", "games"):
            folder = place / "users" / member
            assert (folder.owner(), folder.stat().st_mode & 0o7777) == (member, 0o700)
    assert not Path(rooted.code_path, "releases").stat().st_mode & 0o022


@as_root
def test_places_that_everybody_wrote_to_become_roots_in_one_line_and_keep_what_is_there(
    rooted: StackSpec,
) -> None:
    """As `up` left them where users were declared, when every job was root's."""
    shared = {path for name, path in rooted.storage.places.items() if name != "scratch"}
    for path in sorted(shared):
        Path(path).mkdir(parents=True, exist_ok=True)
        Path(path).chmod(0o1777)
    older = Path(rooted.storage.places["results"]) / "11" / "run_record.json"
    older.parent.mkdir()
    older.write_text("{}")
    first, second = made(rooted), made(rooted)
    assert first.stdout == (
        f"{', '.join(sorted(shared))}: root's now; each user's next files go to users/NAME in "
        "each, and what is there stays (checkpoints are found once root moves them there, with "
        "chown -R NAME:)\n"
    )
    assert (first.returncode, second.returncode, second.stdout) == (0, 0, "")
    for path in shared:
        assert Path(path).stat().st_mode & 0o7777 == 0o755, path
    assert older.read_text() == "{}"


@as_root
@pytest.mark.parametrize("kind", ["folder", "link"])
@pytest.mark.parametrize("name", ["", "users", "users/daemon"])
def test_what_another_user_put_where_members_files_go_is_refused_and_left_alone(
    rooted: StackSpec, tmp_path: Path, kind: str, name: str
) -> None:
    planted = Path(rooted.storage.places["results"], name)
    planted.parent.mkdir(parents=True)
    if kind == "link":
        planted.symlink_to(tmp_path)
    else:
        planted.mkdir()
    os.chown(planted, 5, 60, follow_symlinks=False)

    def seen() -> tuple[object, ...]:
        now = planted.lstat()
        return sorted(tmp_path.rglob("*")), now.st_uid, now.st_mode, now.st_ctime_ns

    before = seen()
    done = made(rooted)
    what = "symbolic link of games" if kind == "link" else "directory of games"
    assert done.returncode == 1
    assert f"{planted}: is a {what}, mode " in done.stderr
    assert f"mv -T {planted} {planted}.other" in done.stderr
    assert seen() == before


@as_root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2775, 0o757])
def test_a_place_that_others_can_write_into_is_theirs_no_more(rooted: StackSpec, mode: int) -> None:
    results = Path(rooted.storage.places["results"])
    results.mkdir(parents=True)
    results.chmod(mode)
    done = made(rooted)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{results}: root's now; ")
    assert results.stat().st_mode & 0o1777 == 0o755


@as_root
@pytest.mark.feature("S000-59")
@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "writable"])
def test_nothing_is_made_below_what_another_user_can_exchange(
    rooted: StackSpec, tmp_path: Path, kind: str
) -> None:
    """A place in a place, or below a folder that is none, and the folder of the code."""
    outer = Path(rooted.storage.places["chkpt"])
    outer.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.mkdir()
    outer.chmod(0o1777)
    between = outer / "between"
    if kind == "writable":
        between.mkdir()
        between.chmod(0o777)
    else:
        if kind == "folder":
            between.mkdir()
        else:
            between.symlink_to(victim if kind == "link" else victim / "nowhere")
        os.chown(between, 5, 60, follow_symlinks=False)
    places = {**rooted.storage.places, "results": f"{between}/results"}
    spec = replace(rooted, storage=replace(rooted.storage, places=places))
    done = made(replace(spec, code_path=f"{between}/code"))
    assert done.returncode == 1
    assert done.stderr.count(f"{between}: is a ") == 3, "results, code_path and its releases"
    assert "chmod go-w" in done.stderr
    assert not list(victim.iterdir())
    assert kind == "dangling" or not list(between.iterdir())
    assert (outer / "users" / "daemon").owner() == "daemon", "what is in order is made"


@as_root
def test_folders_of_a_user_who_is_no_more_are_roots_before_the_number_is_given_again(
    rooted: StackSpec,
) -> None:
    user = UserSpec(name="games", ssh_public_keys=(PUBLIC_KEY,))
    assert made(replace(rooted, soperator=replace(rooted.soperator, users=(user,)))).returncode == 0
    theirs = Path(rooted.storage.places["results"], "users", "games")
    (theirs / "12").mkdir()
    os.chown(theirs / "12", 5, 60)
    assert made(rooted).returncode == 0
    assert (theirs.owner(), theirs.stat().st_mode & 0o777) == ("root", 0o700)
    assert (theirs / "12").owner() == "games"


def release(spec: StackSpec, name: str) -> Path:
    """A delivered release whose only module says its name."""
    folder = Path(spec.code_path, "releases", name)
    for part in ("workloads", "jobs", "configs"):
        (folder / part).mkdir(parents=True)
    (folder / "workloads" / "version").write_text(name)
    return folder


@pytest.mark.feature("S000-59", "S000-60", "S002-30")
def test_a_release_becomes_current_and_is_seen_through_the_short_names(rooted: StackSpec) -> None:
    code = Path(rooted.code_path)
    for name in ("aaaa", "bbbb", "bbbb", "aaaa"):
        if not (code / "releases" / name).exists():
            release(rooted, name)
        done = shell(activate_script(rooted.code_path, name))
        assert done.returncode == 0, done.stderr
        assert (code / "current").readlink() == Path("releases", name)
        assert (code / "workloads" / "version").read_text() == name
        assert (code / "jobs").resolve() == code.resolve() / "releases" / name / "jobs"
    inside = (path for name in ("aaaa", "bbbb") for path in (code / "releases" / name).rglob("*"))
    assert not [path for path in inside if path.is_symlink()]
    assert sorted(path.name for path in code.iterdir()) == [
        "configs",
        "current",
        "jobs",
        "releases",
        "workloads",
    ]


@pytest.mark.feature("S003-74")
def test_a_release_that_did_not_arrive_leaves_the_old_one_live(rooted: StackSpec) -> None:
    release(rooted, "aaaa")
    assert shell(activate_script(rooted.code_path, "aaaa")).returncode == 0
    Path(rooted.code_path, "releases", "bbbb").mkdir()
    assert shell(activate_script(rooted.code_path, "bbbb")).returncode != 0
    assert Path(rooted.code_path, "current").readlink() == Path("releases", "aaaa")


def test_a_set_that_is_made_empty_is_not_waited_for(spec: StackSpec) -> None:
    """Capacity may come in a week; the nodes that are there can work today."""
    (worker,) = spec.nodes.workers

    def awaited(created: int | None) -> tuple[str, ...]:
        workers = (replace(worker, created_nodes=created),)
        return awaited_nodes(replace(spec, nodes=replace(spec.nodes, workers=workers)))

    assert awaited(None) == ("worker-0", "worker-1")
    assert awaited(1) == ("worker-0",)
    assert awaited(0) == ()

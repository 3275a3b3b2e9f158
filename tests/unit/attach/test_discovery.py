"""What a login node prints becomes partitions, nodes, accounts and folders, or one line.

The base is output of Debian's Slurm 22.05.8; lines of other versions and sites stand where they
differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.clients.errors import JobsError
from infra.clients.ssh import Result
from infra.operate import attach
from infra.operate.attach import (
    Association,
    Found,
    FoundPartition,
    OwnFolder,
    associations_of,
    choose,
    compress,
    discover,
    gpus_of,
    nodesets_of,
    partitions_of,
    roomy_folder,
    slurm_version,
)
from stacks.machines import expand_nodes
from tests.another_user import Neighbour

AT = "ann@login.example.org:22"
NODES = """
gpu01|main|main*|64|380000|infinite|idle|gpu:nvidia_l40s:2(S:0-1)
gpu02|main|main*|64|380000|infinite|mixed|gpu:nvidia_l40s:2(S:0-1)
gpu01|debug|debug|64|380000|30:00|idle|gpu:nvidia_l40s:2(S:0-1)
gpu02|debug|debug|64|380000|30:00|mixed|gpu:nvidia_l40s:2(S:0-1)
c9|main|main*|32|1|infinite|idle|(null)
""".strip().splitlines()
PARTITIONS = """
PartitionName=main AllowGroups=ALL AllowAccounts=phys,chem AllowQos=long AllocNodes=ALL Default=YES QoS=N/A State=UP
PartitionName=debug AllowGroups=ALL DenyAccounts=guests AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A State=UP
""".strip().splitlines()  # noqa: E501
PARTS = {
    "who": ("ann", "/home/ann", "login1", "/bin/bash"),
    "programs": (),
    "login-programs": (),
    "version": ("slurm-wlm 22.05.8",),
    "nodes": tuple(NODES),
    "partitions": tuple(PARTITIONS),
    "config": (
        "Configuration data as of 2026-11-24T15:00:00",
        "AccountingStorageEnforce = associations,limits,qos",
        "GresTypes               = gpu",
    ),
    "sacct": ("yes",),
    "associations": ("chem||normal|normal", "phys||long,normal|normal"),
    "default-account": ("chem",),
    "python": ("/usr/bin/python3 3.9.18", "/usr/bin/python3.11 3.11.7"),
    "folders": ("/home/ann|nfs|10737418240|", "/scratch/ann|lustre|109951162777600|"),
    "quota": ("quota: no such command",),
    "end": (),
}


class Login:
    """A login node that prints `parts`, after what its profile says; without a mark: `said`."""

    def __init__(
        self, parts: dict[str, tuple[str, ...]], said: str | None = None, profile: str = ""
    ) -> None:
        self.parts, self.said, self.profile = parts, said, profile

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        found = re.search(r"nonce=([0-9a-f]+)", stdin.decode())
        assert found is not None
        lines = [self.profile]
        for name, each in self.parts.items():
            lines += ["", f"@{found[1]} {name}", *each]
        text = "\n".join(lines) + "\n" if self.said is None else self.said
        return Result(command=command, exit_code=0, stdout=text, stderr="")


def found(**parts: tuple[str, ...]) -> Found:
    changed = {**PARTS, **{name.replace("_", "-"): each for name, each in parts.items()}}
    return discover(Login(changed), AT)


def refusal(**parts: tuple[str, ...]) -> str:
    with pytest.raises(JobsError) as caught:
        found(**parts)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(AT)
    return str(caught.value)


def test_what_was_printed_is_what_is_there() -> None:
    seen = found()
    assert (seen.version, seen.python, seen.python_version) == (
        "22.05.8", "/usr/bin/python3.11", "3.11.7",
    )  # fmt: skip
    assert (seen.has_accounting, seen.default_account) == (True, "chem")
    assert seen.enforces == {"associations", "limits", "qos"}
    gpu, cpu = seen.nodesets
    assert (gpu.nodes, gpu.partitions, gpu.gpus, gpu.gpu_type) == (
        ("gpu01", "gpu02"), ("main", "debug"), 2, "nvidia_l40s",
    )  # fmt: skip
    assert (cpu.nodes, cpu.gpus, cpu.memory_mib) == (("c9",), 0, 0)
    main, debug = seen.partitions
    assert (main.default, main.max_time, main.qos) == (True, "UNLIMITED", ("long",))
    assert (main.takes("phys"), main.takes("bio"), main.takes(None)) == (True, False, False)
    assert (debug.max_time, debug.takes("bio"), debug.takes("guests")) == ("30:00", True, False)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"programs": ("sinfo", "sbatch")}, ("sinfo, sbatch", "no login node of a Slurm")),
        (
            {"programs": ("sinfo",), "login_programs": ("/opt/slurm/bin",)},
            ("~/.bashrc", "export PATH=/opt/slurm/bin:$PATH"),
        ),
        (
            {"python": ("/usr/bin/python3 3.6.8",)},
            ("Python 3.10 or later", "/usr/bin/python3 is 3.6.8", "ask the administrators"),
        ),
        ({"python": ()}, ("there is no python3",)),
        (
            {"folders": ("/home/ann|nfs|0|write error: Disk quota exceeded",)},
            ("takes a file", "Disk quota exceeded", "quota over 0"),
        ),
        ({"folders": ()}, ("/home/ann is not there",)),
        ({"associations": ()}, ("sacctmgr add user ann account=NAME",)),
        (
            {"nodes": ("slurm_load_partitions: Unable to contact slurm controller",)},
            ("Unable to contact slurm controller", "whether Slurm is up"),
        ),
        ({"version": ("sinfo: command not found",)}, ("no version",)),
        ({"who": ("ann", "/home/ann", "login1", "/bin/tcsh")}, ("/bin/tcsh", "chsh")),
    ],
)
def test_what_a_first_job_needs_is_asked_for_in_one_line(
    parts: dict[str, tuple[str, ...]], words: tuple[str, ...]
) -> None:
    said = refusal(**parts)
    assert all(word in said for word in words), said


def test_a_forced_command_is_told_by_what_it_said() -> None:
    with pytest.raises(JobsError, match=r"only rsync here.*a command of its own"):
        discover(Login(PARTS, said="only rsync here\n"), AT)
    cut = {name: each for name, each in PARTS.items() if name != "end"}
    with pytest.raises(JobsError, match="ran something else than what was asked"):
        discover(Login(cut), AT)


def test_a_profile_that_prints_to_commands_is_refused_with_the_line_that_silences_it() -> None:
    with pytest.raises(
        JobsError, match=r"^ann@\S+ a startup file there prints 'Welcome!\\\\x1b\[2J'"
    ) as caught:
        discover(Login(PARTS, profile="\n\nWelcome!\x1b[2J\n@soperator end"), AT)
    assert "[[ $- == *i* ]] || return" in str(caught.value)


@pytest.mark.parametrize("lacking", ["who", "folders", "quota"])
def test_a_part_that_is_not_there_is_another_program(lacking: str) -> None:
    parts = {name: each for name, each in PARTS.items() if name != lacking}
    with pytest.raises(JobsError, match="something else than what was asked"):
        discover(Login(parts), AT)


@pytest.mark.parametrize(
    "parts",
    [
        {"who": ("ann", "/home/ann", "/bin/bash")},
        {"nodes": (f"n1|main|main*|{'9' * 5000}|1|infinite|idle|(null)",)},
        {"nodes": (f"n{'9' * 5000}|main|main*|1|1|infinite|idle|gpu:a:{'9' * 5000}",)},
        {"python": (f"/usr/bin/python3 3.{'9' * 5000}",)},
        {"folders": (f"/home/ann|nfs|{'9' * 5000}|",)},
        {"partitions": ("XPartitionName=main State=UP",)},
    ],
)
def test_numbers_and_names_out_of_range_are_read_or_refused(
    parts: dict[str, tuple[str, ...]],
) -> None:
    try:
        seen = found(**parts)
    except JobsError as error:
        assert AT in str(error)  # noqa: PT017 (either may do)
    else:
        assert all(each.free_bytes < 10**18 for each in seen.folders)
        assert all(each.cpus < 10**18 for each in seen.nodesets)


def test_what_colours_or_erases_a_terminal_is_escaped_wherever_it_stands() -> None:
    seen = found(
        who=("ann", "/home/ann", "log\x1bin", "/bin/bash"),
        folders=("/home/ann|n\x1bfs|99999999999|",),
        quota=("blocks \x1b[31m",),
    )
    assert (seen.host, seen.folders[0].filesystem, seen.quota) == (
        r"log\x1bin", r"n\x1bfs", (r"blocks \x1b[31m",),
    )  # fmt: skip


def test_the_version_stands_below_what_sinfo_warns_of() -> None:
    assert found(version=("sinfo: warning: x", "slurm 25.11.1")).version == "25.11.1"


def ran(**environ: str) -> dict[str, tuple[str, ...]]:
    """The parts that the script prints on this machine."""
    done = subprocess.run(
        ["bash", "-s"],
        input=attach.script("abc"),
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return attach.parts_of(done.stdout, "abc")


@pytest.mark.parametrize("kind", ["link", "writable", "behind a link"])
def test_a_folder_that_another_user_can_exchange_is_not_chosen(
    neighbour: Neighbour, tmp_path: Path, kind: str
) -> None:
    """Before a file of ours is put there, whose name may be a link of that user by then."""
    mine, scratch = tmp_path / "mine", neighbour.folder / "me"
    mine.mkdir()
    if kind == "link":
        neighbour.run(f"ln -s {mine} me")
    elif kind == "writable":
        scratch.mkdir()
        scratch.chmod(0o777)
    else:
        neighbour.folder.chmod(0o777)
        (neighbour.folder / "real").mkdir()
        scratch = mine / "link"
        scratch.symlink_to(neighbour.folder / "real")
    home, chosen = ran(HOME=str(mine), SCRATCH=str(scratch))["folders"]
    culprit = neighbour.folder if kind == "behind a link" else scratch
    assert home.startswith(f"{mine}|")
    assert home.endswith("|")
    path, _, _, problem = chosen.split("|")
    assert path == str(scratch)
    assert problem.startswith(f"{culprit}: is a ")


def test_a_sinfo_that_reads_standard_input_takes_nothing_of_the_script(tmp_path: Path) -> None:
    for name in ("sinfo", "sbatch", "squeue", "scontrol", "scancel", "srun", "quota"):
        (tmp_path / name).write_text("#!/bin/sh\ncat > /dev/null\necho said by a wrapper\n")
        (tmp_path / name).chmod(0o755)
    parts = ran(PATH=f"{tmp_path}:{os.environ['PATH']}", HOME=str(tmp_path))
    assert parts["nodes"] == parts["quota"] == ("said by a wrapper",)
    assert len(parts["who"]) == 4
    assert "end" in parts


def test_without_enforcement_nobody_needs_an_account() -> None:
    seen = found(associations=(), config=("AccountingStorageEnforce = none",), partitions=())
    assert choose(seen, AT) == attach.Charge(partition="main", account=None, qos=None)


def test_the_account_that_the_partition_takes_is_named_with_its_qos() -> None:
    """The default account may not use `long`, which is all that `main` takes."""
    assert choose(found(), AT) == attach.Charge(partition="main", account="phys", qos="long")
    # The default account is what Slurm takes by itself.
    assert choose(found(), AT, partition="debug") == attach.Charge(
        partition="debug", account=None, qos=None
    )
    named = choose(found(), AT, partition="debug", account="phys")
    assert named == attach.Charge(partition="debug", account="phys", qos=None)


def test_an_account_of_others_and_a_partition_that_is_not_there_are_refused() -> None:
    with pytest.raises(JobsError, match=r"--account bio: ann is not in it \(is in: chem, phys\)"):
        choose(found(), AT, account="bio")
    with pytest.raises(JobsError, match=r"--partition gpu: is none of .* \(has: main, debug\)"):
        choose(found(), AT, partition="gpu")


def test_a_partition_that_takes_nobody_of_the_user_is_refused_with_what_to_ask() -> None:
    guests = ("guests||normal|normal",)
    with pytest.raises(JobsError, match=r"no partition takes jobs of ann .*guests.*which account"):
        choose(found(associations=guests, default_account=("guests",)), AT)


def test_a_small_home_is_left_for_a_folder_with_room() -> None:
    seen = found()
    assert roomy_folder(seen).path == "/scratch/ann"
    home = replace(seen.folders[0], free_bytes=30 << 30)
    assert roomy_folder(replace(seen, folders=(home, seen.folders[1]))).path == "/home/ann"
    full = OwnFolder(path="/scratch/ann", filesystem="lustre", free_bytes=9 << 40, problem="full")
    assert roomy_folder(replace(seen, folders=(seen.folders[0], full))).path == "/home/ann"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("slurm 22.05.11", "22.05.11"),
        ("slurm-wlm 22.05.8", "22.05.8"),
        ("slurm 23.11.10", "23.11.10"),
        ("slurm 24.11.0-0rc1", "24.11.0-0rc1"),
        ("slurm 25.11.1", "25.11.1"),
        ("slurm 26.05.0", "26.05.0"),
        ("bash: sinfo: command not found", None),
    ],
)
def test_the_version_of_every_release_is_read(line: str, version: str | None) -> None:
    assert slurm_version(line) == version


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", (0, None)),
        ("gpu:2", (2, None)),
        ("gpu", (1, None)),
        ("gpu:a100:4", (4, "a100")),
        ("gpu:nvidia_h100_80gb_hbm3:8(S:0-1)", (8, "nvidia_h100_80gb_hbm3")),
        ("gpu:h100:8(S:0,1),shard:h100:32(S:0,1)", (8, "h100")),
        ("gpu:v100:2(S:0),gpu:a100:1(S:1)", (3, "v100")),
        ("mps:400,lscratch:900G", (0, None)),
        ("gpu:1g.10gb:7(S:0-1)", (7, "1g.10gb")),
        ("craynetwork:4,gpu:a100:4(S:0-3)", (4, "a100")),
    ],
)
def test_gpus_are_counted_whatever_else_is_declared(gres: str, gpus: tuple[int, str]) -> None:
    assert gpus_of(gres) == gpus


@pytest.mark.parametrize("piece", [",", "gpu,", "(", "gpu:a(,", ")("])
def test_a_list_without_end_of_a_hostile_node_is_read_at_once(piece: str) -> None:
    """A look from each comma to the end took 35 s for 40,000 characters; a megabyte may come."""
    began_s = time.monotonic()
    gpus_of(piece * (1_000_000 // len(piece)))
    assert time.monotonic() - began_s < 20


def test_lines_that_are_not_fields_are_no_association() -> None:
    """Slurm without slurmdbd says it on stdout, and 25.11 warns before the rows."""
    lines = ["You are not running a supported accounting_storage plugin", "phys|gpu|a,b|"]
    (row,) = associations_of(lines)
    assert row == Association(account="phys", partition="gpu", qos=("a", "b"), default_qos=None)


def test_a_partition_that_is_down_takes_no_first_job() -> None:
    down = "PartitionName=main AllowAccounts=ALL AllowQos=ALL State=DRAIN"
    seen = found(partitions=(down, PARTITIONS[1]))
    assert [each.is_up for each in seen.partitions] == [False, True]
    assert choose(seen, AT).partition == "debug"


names = st.from_regex(r"[a-z][a-z-]{0,5}[0-9]{0,4}", fullmatch=True)


@given(st.lists(names, min_size=1, max_size=40, unique=True))
def test_compressed_names_expand_to_the_same_names(given_names: list[str]) -> None:
    assert sorted(expand_nodes(compress(given_names))) == sorted(given_names)


@given(
    st.lists(
        st.tuples(names, st.sampled_from(["a", "b"]), st.integers(1, 512), st.integers(0, 8)),
        min_size=1,
        max_size=30,
        unique_by=lambda each: each[:2],
    )
)
def test_every_node_is_in_exactly_one_nodeset_with_all_its_partitions(
    rows: list[tuple[str, str, int, int]],
) -> None:
    shape = {name: (cpus, gpus) for name, _, cpus, gpus in rows}
    lines = [
        f"{name}|{part}|{part}|{shape[name][0]}|1000|1:00:00|idle|gpu:{shape[name][1]}"
        for name, part, _, _ in rows
    ]
    found_sets = nodesets_of(lines)
    placed = [node for each in found_sets for node in each.nodes]
    assert sorted(placed) == sorted(shape)
    for each in found_sets:
        for node in each.nodes:
            assert {part for name, part, _, _ in rows if name == node} == set(each.partitions)
            assert (each.cpus, each.gpus) == shape[node]
    assert {each.name for each in partitions_of(lines, ())} == {part for _, part, _, _ in rows}


@given(st.text(max_size=200))
def test_whatever_a_node_says_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        discover(Login(PARTS, said=text), AT)
    except JobsError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 (any text may do)


@pytest.mark.parametrize(
    ("said", "hides_jobs"), [("none", False), ("accounts,jobs", True), ("jobs,usage", True)]
)
def test_a_slurm_that_hides_jobs_of_others_is_seen(said: str, hides_jobs: bool) -> None:
    config = (*PARTS["config"], f"PrivateData             = {said}")
    assert found(config=config).hides_jobs is hides_jobs


@pytest.mark.parametrize(
    ("words", "selects", "whole_nodes"),
    [
        ("OverSubscribe=EXCLUSIVE", "select/cons_tres", [True, False]),
        ("OverSubscribe=NO", "select/cons_tres", [False, False]),
        ("OverSubscribe=FORCE:4", "select/cons_res", [False, False]),
        ("OverSubscribe=NO", "select/linear", [True, True]),
        ("Exclusive=NODE OverSubscribe=NO", "select/cons_tres", [True, False]),
        ("Exclusive=TOPO OverSubscribe=NO", "select/cons_tres", [True, False]),
        ("Exclusive=USER OverSubscribe=NO", "select/cons_tres", [False, False]),
        ("ExclusiveUser=YES OverSubscribe=NO", "select/cons_tres", [False, False]),
    ],
)
def test_partitions_that_give_whole_nodes_are_seen(
    words: str, selects: str, whole_nodes: list[bool]
) -> None:
    """As 22.05.8 to 25.11.3, and 26.05.3 print it; select/linear gives whole nodes everywhere."""
    seen = found(
        partitions=(f"{PARTITIONS[0]} {words} OverTimeLimit=NONE", PARTITIONS[1]),
        config=(*PARTS["config"], f"SelectType              = {selects}"),
    )
    assert [each.whole_nodes for each in seen.partitions] == whole_nodes


def test_a_partition_without_words_of_scontrol_takes_everybody() -> None:
    (main, _) = partitions_of(NODES, ["scontrol: error: something"])
    assert main == FoundPartition(name="main", default=True, max_time="UNLIMITED")

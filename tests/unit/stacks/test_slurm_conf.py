"""What the rules let through, Slurm's own parser reads; what it refuses, they refuse.

`scontrol show hostnames` reads slurm.conf as slurmctld does, asks no daemon, and ends at the first
line that it cannot read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from stacks.check import check
from stacks.rules.slurm_conf import (
    CLUSTER,
    PARTITION,
    WORDS,
    Kind,
    preemption_problem,
    value_problem,
)
from tests.unit.stacks.conftest import changed

SCONTROL = shutil.which("scontrol")
needs_slurm = pytest.mark.skipif(SCONTROL is None, reason="no scontrol: run `make setup`")
HEAD = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
AuthType=auth/none
SelectType=select/cons_tres
SlurmSchedLogFile=/nonexistent
NodeName=n1 CPUs=1
"""
UNKNOWN = "unrecognized key"
"""Of an option that the machine's Slurm, 22.05 or later, does not have yet."""

GOOD: Mapping[Kind, tuple[str, ...]] = {
    Kind.SWITCH: ("YES", "no"),
    Kind.UINT16: ("0", "10", "65535", "INFINITE"),
    Kind.UINT32: ("1", "4K", "UNLIMITED", "4294967295"),
    Kind.UINT64: ("1024", "8589934592", "infinite"),
    Kind.TIME: ("30", "10:00", "01:30:00", "7-0", "1-12:30:00", "INFINITE"),
    Kind.FINITE_TIME: ("5", "00:10:00"),
    Kind.STATE: ("UP", "drain", "INACTIVE", "DOWN"),
    Kind.SHARE: ("YES", "NO", "FORCE:1", "yes:4", "EXCLUSIVE"),
    Kind.CORES: ("CR_Core", "CR_Socket_Memory"),
    Kind.PREEMPTION: ("OFF", "requeue", "CANCEL"),
    Kind.IDLE_TIME: ("-1", "600", "INFINITE"),
    Kind.PERIOD: ("NONE", "monthly"),
    Kind.ENFORCEMENT: ("ALL", "no"),
    Kind.LEVEL: ("info", "debug3"),
}
BAD: Mapping[Kind, tuple[str, ...]] = {
    Kind.SWITCH: ("perhaps",),
    Kind.UINT16: ("high", "99999999", "-3", "1.5", "3K", "\uff13"),
    Kind.UINT32: ("soon", "-3", "1e3", "99999999999999999999999"),
    Kind.UINT64: ("lots", "-1", "10GB"),
    Kind.TIME: ("banana", "NONE", "1:2:3:4", "\u0661:00"),
    Kind.FINITE_TIME: ("INFINITE", "0"),
    Kind.STATE: ("SIDEWAYS",),
    Kind.SHARE: ("PERHAPS",),
    Kind.CORES: ("X",),
    Kind.PREEMPTION: ("MAYBE", "CANCEL,REQUEUE", "GANG,WITHIN"),
    Kind.PERIOD: ("hourly",),
    Kind.ENFORCEMENT: ("some",),
    Kind.LEVEL: ("loud",),
}
MISREAD: Mapping[Kind, tuple[str, ...]] = {
    Kind.UINT16: ("010", "0x10"),  # 8 and 16
    Kind.SHARE: ("YES:1", "FORCE:0"),  # as NO, with a word in the log
    Kind.STATE: ("UPWARDS",),  # by its beginning
    Kind.IDLE_TIME: ("soon",),  # 0
}
"""What Slurm starts with, as something else."""


BOUNDED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "FirstJobId": (("1", "67043328"), ("0", "67043329")),
    "MaxDBDMsgs": (("10000",), ("9999",)),
    "MaxJobCount": (("1",), ("0",)),
    "MaxJobId": (("1000000",), ()),
    "MaxStepCount": (("1",), ("0",)),
    "PropagatePrioProcess": (("0", "2"), ("3", "INFINITE")),
}
"""Options that take less than their kind: what they take and what not."""


def slurm_says(folder: Path, *lines: str) -> str:
    """What Slurm's parser has against the lines; empty where it reads them."""
    path = folder / "slurm.conf"
    path.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    environ = {**os.environ, "SLURM_CONF": str(path)}
    done = subprocess.run(
        [SCONTROL or "", "show", "hostnames", "n1"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode == 0) is ("fatal" not in done.stderr), done.stderr
    return "" if done.returncode == 0 else done.stderr


def pairs(kind: Kind, values: Mapping[Kind, tuple[str, ...]]) -> list[str]:
    """Lines of slurm.conf with one of the values each, for every option of the kind."""
    found = [
        f"PartitionName=p{index} Nodes=n1 {name}={value}"
        for index, value in enumerate(values.get(kind, ()))
        for name, other in PARTITION.values()
        if other is kind
    ]
    alone = (Kind.PREEMPTION,)  # of the cluster beside PreemptType: tested below
    return found + [
        f"{name}={value}"
        for value in values.get(kind, ())
        for name, other in CLUSTER.values()
        if other is kind and kind not in alone and name not in BOUNDED
    ]


@pytest.mark.parametrize("kind", GOOD)
def test_every_kind_takes_and_refuses_what_it_says(kind: Kind) -> None:
    assert [value for value in GOOD[kind] if value_problem(("", kind), value)] == []
    wrong = (*BAD.get(kind, ()), *MISREAD.get(kind, ()))
    assert [value for value in wrong if not value_problem(("", kind), value)] == []


@needs_slurm
@pytest.mark.parametrize("kind", GOOD)
def test_slurm_reads_what_is_allowed(tmp_path: Path, kind: Kind) -> None:
    lines = pairs(kind, GOOD)
    known = [line for line in lines if UNKNOWN not in slurm_says(tmp_path, line)]
    assert known, "an option of every kind is older than the machine's Slurm"
    said = {line: text for line in known if (text := slurm_says(tmp_path, line))}
    assert said == {}


@needs_slurm
@pytest.mark.parametrize("kind", BAD)
def test_slurm_refuses_what_is_refused(tmp_path: Path, kind: Kind) -> None:
    lines = [line for line in pairs(kind, BAD) if "n1 OverTimeLimit" not in line]  # taken as 0
    assert [line for line in lines if not slurm_says(tmp_path, line)] == []


NEWER_WORDS = (
    "AuditRPCs AuditTLS ConMgr DBD_Agent GLOB_SILENCE JobComp Metrics Namespace Sack SelectType "
    "TLS RunInJob ForceRequeueOnFail LL_SHARED_GRES MULTIPLE_SHARING_GRES_PJ ENFORCE_BINDING_GRES "
    "ONE_TASK_PER_SHARING_GRES OOMKillStep SlurmdSpecOverride"
)
"""What the machine's Slurm, 22.05 or later, may not have yet."""
FLAGS = [name for name, words in WORDS.items() if "/" not in words[0]]


@needs_slurm
@pytest.mark.parametrize("name", FLAGS)
def test_slurm_has_the_words_of_an_option_and_no_other(tmp_path: Path, name: str) -> None:
    option, first = CLUSTER[name.lower()], WORDS[name][0]
    assert [word for word in WORDS[name] if value_problem(option, word)] == []
    refused = {word for word in WORDS[name] if slurm_says(tmp_path, f"{name}={word}")}
    assert refused <= set(NEWER_WORDS.split())
    for value in ("banana", f"{first},banana", f"{first}s"):
        assert value_problem(option, value)
        # 22.05 read any word there; 25.11 refuses it (read_config.c, "ReconfigFlags invalid").
        assert slurm_says(tmp_path, f"{name}={value}") or name == "ReconfigFlags"
    is_any_case = not slurm_says(tmp_path, f"{name}={first.swapcase()}")
    assert is_any_case is (value_problem(option, first.swapcase()) is None)


@needs_slurm
def test_every_plugin_of_the_machine_that_is_not_retired_is_known() -> None:
    """No parser asks whether there is a plugin; slurmctld and slurmd end where there is none."""
    root = Path(SCONTROL or "").resolve().parents[1] / "lib"
    files = [file for each in ("slurm", "*/slurm*") for file in root.glob(f"{each}/*.so")]
    plugins = {name: words for name, words in WORDS.items() if "/" in words[0]}
    for name, words in plugins.items():
        kind = words[0].partition("/")[0]
        here = {f.stem.removeprefix(f"{kind}_") for f in files if f.stem.startswith(f"{kind}_")}
        retired = {"cons_res", "cray_aries"}
        assert {f"{kind}/{each}" for each in here - retired} <= set(words), name
        assert here & {word.partition("/")[2] for word in words} or "none" in words[0], name
        option = CLUSTER[name.lower()]
        assert [word for word in words if value_problem(option, word)] == []
        for wrong in (f"{words[-1]}x", f"{kind}/banana", kind, words[0].upper()):
            assert "is none of its names" in (value_problem(option, wrong) or "")


@needs_slurm
@pytest.mark.parametrize("name", BOUNDED)
def test_options_of_narrower_bounds_are_held_to_them(tmp_path: Path, name: str) -> None:
    good, bad = BOUNDED[name]
    option = CLUSTER[name.lower()]
    for value in good:
        assert value_problem(option, value) is None
        assert slurm_says(tmp_path, f"{name}={value}") == ""
    for value in bad:
        assert value_problem(option, value)
        assert slurm_says(tmp_path, f"{name}={value}") != ""


@needs_slurm
def test_slurm_has_every_text_option_or_is_older(tmp_path: Path) -> None:
    """A name of ours that no Slurm ever had would let a slip through."""
    unknown = [
        name
        for name, kind in CLUSTER.values()
        if kind is Kind.TEXT and UNKNOWN in slurm_says(tmp_path, f"{name}=x")
    ]
    newer = (
        "CertgenParameters CertgenType CertmgrParameters CertmgrType CliFilterParameters "
        "DataParserParameters HashPlugin HttpParserType JobCompPassScript MetricsType "
        "NamespaceType PreemptParameters ReconfigFlags ResvProlog SuspendExcStates TLSParameters "
        "TLSType UrlParserType"
    )
    assert set(unknown) <= set(newer.split())


@needs_slurm
@pytest.mark.parametrize(
    ("lines", "is_read"),
    [
        ((), True),
        (("PreemptMode=OFF",), False),
        (("PreemptMode=OFF", "PreemptType=preempt/none"), True),
        (("PreemptType=preempt/none",), False),
        (("PreemptMode=CANCEL",), True),
        (("PreemptMode=GANG",), False),
        (("PreemptMode=SUSPEND",), False),
        (("PreemptMode=SUSPEND,GANG",), True),
        (("PreemptType=preempt/qos", "PreemptMode=REQUEUE,GANG"), True),
    ],
)
def test_the_mode_and_the_type_of_preemption_go_together(
    tmp_path: Path, lines: tuple[str, ...], is_read: bool
) -> None:
    """Behind the two lines that the operator writes."""
    found = preemption_problem([tuple(line.split("=", 1)) for line in lines])  # type: ignore[misc]
    assert (found is None) is is_read
    given = {"PreemptMode": "REQUEUE", "PreemptType": "preempt/partition_prio"}
    given |= dict(line.split("=", 1) for line in lines)
    said = slurm_says(tmp_path, *(f"{name}={value}" for name, value in given.items()))
    assert (said == "") is is_read, said


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("FooBarBaz=1", "verbatim.slurm-option"),
        ("PriorityWeigthAge=1000", "verbatim.slurm-option"),
        ("PriorityWeightAge=high", "verbatim.slurm-value"),
        ("MaxArraySize=x", "verbatim.slurm-value"),
        ("SchedulerType=sched/backfil", "verbatim.slurm-value"),
        ("PrologFlags=Alloc,Contian", "verbatim.slurm-value"),
        ("TaskPlugin=task/affinity,task/cgroup", None),
        ("DebugFlags=backfill,POWER", None),
        ("SchedulerParameters=defer FooBar=2", "verbatim.slurm-value"),
        ("PreemptMode=OFF", "verbatim.slurm-value"),
        ('SchedulerParameters="defer, bf_continue"', None),
        ("PriorityDecayHalfLife=7-0", None),
    ],
)
def test_a_line_of_slurm_conf_is_refused_by_its_place(line: str, rule: str | None) -> None:
    spec = changed(lambda config: config["slurm"].update(config_lines=[line]))
    found = [each for each in check(spec) if each.rule.startswith("verbatim.")]
    assert [each.rule for each in found] == ([] if rule is None else [rule])
    assert all(".slurm.config_lines" in each.path for each in found)

"""Rules of texts that go as they are into Slurm's configuration: lines of slurm.conf and gres.conf,
what stands behind a partition's name, and names of Secrets and ConfigMaps.

slurmctld ends at a name or a value that it does not know, and the cluster with it. Kinds of values
are those of slurm.conf(5) of 25.11, https://slurm.schedmd.com/slurm.conf.html, and of the parser
behind it (github.com/SchedMD/slurm, tag slurm-25-11-3-1, src/common/parse_value.c and
read_config.c), read 2026-11-22; a test asks the parser of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from stacks.errors import nearest
from stacks.rules import Findings
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.slurm import PartitionSpec


class Kind(StrEnum):
    """How a value is read; the text says what to write."""

    TEXT = "any text"
    SWITCH = "YES or NO"
    UINT16 = "a number from 0 to 65535 or INFINITE"
    UINT32 = "a number from 0 to 4294967295 or INFINITE"
    UINT64 = "a number from 0 on or INFINITE"
    TIME = "minutes, HH:MM:SS, D-HH:MM:SS or INFINITE"
    FINITE_TIME = "minutes, HH:MM:SS or D-HH:MM:SS"
    STATE = "UP, DOWN, DRAIN or INACTIVE"
    SHARE = "NO, YES, YES:n from 2 on, FORCE, FORCE:n or EXCLUSIVE"
    CORES = "CR_Core, CR_Core_Memory, CR_Socket or CR_Socket_Memory"
    PREEMPTION = "OFF, CANCEL, REQUEUE or SUSPEND, with GANG, WITHIN or PRIORITY after a comma"
    IDLE_TIME = "seconds, INFINITE or -1"
    PERIOD = "NONE, NOW, DAILY, WEEKLY, MONTHLY, QUARTERLY or YEARLY"
    ENFORCEMENT = "ALL, ANY or NO"
    LEVEL = "quiet, fatal, error, info, verbose or debug to debug5"
    WORDS = "its words, divided by commas, in any case"
    NAMES = "its names, divided by commas"


def _read() -> Iterator[tuple[str, str, Kind, tuple[int, int] | None, bool, list[str]]]:
    """Rows of slurm_conf.tsv: where, its name, its kind, bounds, whether it is owned, its words."""
    text = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
    for line in text.splitlines()[1:]:
        of, name, kind, least, most, owned, words = line.split("\t")
        bounds = (int(least), int(most)) if least else None
        yield of, name, Kind[kind], bounds, bool(owned), words.split()


_ROWS: Final = tuple(_read())
PARTITION: Final = {row[1].lower(): row[1:3] for row in _ROWS if row[0] == "partition"}
"""Options behind PartitionName, with the older names `Priority` and `Shared`, still read.

Name in lower case, as Slurm compares it -> name and kind.
"""
CLUSTER: Final = {row[1].lower(): row[1:3] for row in _ROWS if row[0] == "cluster"}
"""Options of slurm.conf, without those that 25.11 calls defunct."""
_BOUNDS: Final = {row[1]: row[3] for row in _ROWS if row[3] is not None}
"""Options that take less than their kind."""
WORDS: Final = {row[1]: tuple(row[5]) for row in _ROWS if row[5]}
"""Options whose words or plugins Slurm knows beforehand, and those; slurmctld ends at another."""
# Written from other keys of the stack, or by the operator, which a second line would contradict.
_OWNED: Final = frozenset({"include", *(row[1].lower() for row in _ROWS if row[4])})
_MOST: Final = {Kind.UINT16: 0xFFFF, Kind.UINT32: 0xFFFFFFFF, Kind.UINT64: 0xFFFFFFFFFFFFFFFF}
# Slurm would read 010 as eight, and takes 4k as 4096 where the number may be larger than 65535.
_NUMBER: Final = re.compile(r"(0|[1-9][0-9]{0,19})([kK]?)")
_ENDLESS: Final = ("INFINITE", "UNLIMITED")
_PREEMPTIONS: Final = ("OFF", "CLUSTER", "CANCEL", "REQUEUE", "SUSPEND", "ON")
_WORDS: Final[Mapping[Kind, re.Pattern[str]]] = {
    Kind.SWITCH: re.compile(r"(?i)yes|no"),
    Kind.STATE: re.compile(r"(?i)up|down|drain|inactive"),
    Kind.SHARE: re.compile(
        r"(?i)no|yes(:([2-9]|[1-9][0-9]{1,3}))?|force(:[1-9][0-9]{0,3})?|exclusive"
    ),
    Kind.CORES: re.compile(r"(?i)cr_(core|socket)(_memory)?"),
    Kind.IDLE_TIME: re.compile(r"(?i)-1|infinite|0|[1-9][0-9]{0,8}"),
    Kind.PERIOD: re.compile(r"(?i)none|now|daily|weekly|monthly|quarterly|yearly"),
    Kind.ENFORCEMENT: re.compile(r"(?i)all|any|yes|no"),
    Kind.LEVEL: re.compile(r"(?i)quiet|fatal|error|info|verbose|debug[2-5]?|[0-9]"),
}


def value_problem(option: tuple[str, Kind], value: str) -> str | None:
    """What to write instead of a value that Slurm refuses or misreads; None where it is right."""
    name, kind = option
    if name in _BOUNDS:
        least, most = _BOUNDS[name]
        fits = value.isascii() and value.isdecimal() and least <= int(value[:20]) <= most
        return None if fits else f"give a number from {least} to {most}"
    if kind in (Kind.WORDS, Kind.NAMES):
        folded = str.lower if kind is Kind.WORDS else str
        known = {folded(word) for word in WORDS[name]}
        wrong = [word for word in value.split(",") if folded(word) not in known]
        return f"'{wrong[0]}' is none of {kind}{nearest(wrong[0], WORDS[name])}" if wrong else None
    if kind in _WORDS:
        fits = _WORDS[kind].fullmatch(value) is not None
    elif kind in _MOST:
        fits = value.upper() in _ENDLESS or _is_number(kind, value)
    elif kind is Kind.TIME:
        fits = value.upper() in _ENDLESS or slurm_seconds(value) is not None
    elif kind is Kind.FINITE_TIME:
        fits = bool(slurm_seconds(value))
    elif kind is Kind.PREEMPTION:
        modes = value.upper().split(",")
        with_gang = "GANG" in modes and ("WITHIN" in modes or "PRIORITY" in modes)
        named = all(mode in (*_PREEMPTIONS, "GANG", "WITHIN", "PRIORITY") for mode in modes)
        fits = named and sum(mode in _PREEMPTIONS for mode in modes) <= 1 and not with_gang
    else:
        fits = True
    return None if fits else f"give {kind}"


def _is_number(kind: Kind, value: str) -> bool:
    found = _NUMBER.fullmatch(value)
    if found is None or (found[2] and kind is Kind.UINT16):
        return False
    return int(found[1]) * (1024 if found[2] else 1) <= _MOST[kind]


def preemption_problem(lines: Iterable[tuple[str, str]]) -> str | None:
    """Why PreemptMode and PreemptType of the last lines of slurm.conf exclude each other, or None.

    Before them the operator writes REQUEUE and preempt/partition_prio (4.1.7,
    internal/render/common/configmap.go).
    """
    last = {"preemptmode": "REQUEUE", "preempttype": "preempt/partition_prio"}
    last |= {name.lower(): value for name, value in lines if name.lower() in last}
    modes = set(last["preemptmode"].upper().split(","))
    if modes in ({"SUSPEND"}, {"ON"}):
        return "PreemptMode=SUSPEND needs GANG too: write SUSPEND,GANG"
    is_off = not modes & {"CANCEL", "REQUEUE", "SUSPEND", "ON"}
    if is_off != (last["preempttype"].lower() == "preempt/none"):
        return (
            f"PreemptMode={last['preemptmode']} does not go with "
            f"PreemptType={last['preempttype']}: OFF goes with preempt/none alone; give both lines"
        )
    return None


HIDDEN: Final = "hidden"
"""Partition that every Slurm active check of Soperator submits to."""
_IS_HIDDEN: Final = re.compile(r"(?i)\bHidden=YES\b")
# QOS that a partition may name, without and with accounting. At another one slurmctld ends before
# it wrote its usage files, without which no later start goes on either (25.11, read_config.c).
_FIRST_QOS: Final[tuple[dict[str, tuple[str, ...]], ...]] = (
    {"allowqos": ("ALL",), "denyqos": (), "qos": ()},
    {"allowqos": ("ALL", "normal"), "denyqos": ("normal",), "qos": ("normal",)},
)
# The operator renders `PartitionName=<name> Nodes=<nodesets> <config>`.
_WRITTEN_BY_SOPERATOR: Final = ("partitionname", "nodes")


def check_line(
    partition: PartitionSpec, path: str, findings: Findings, *, has_accounting: bool
) -> None:
    """What stands in slurm.conf behind the name and the nodes."""
    if partition.name == "default":
        findings.add("partitions.name-default", f"{path}.name")
    where = f"{path}.config"
    for word in partition.config.split():
        option, _, value = word.partition("=")
        key = option.lower()
        if not value or not (option.isascii() and option.isalpha()):
            findings.add("partitions.config-form", where, word=word)
        elif key in _WRITTEN_BY_SOPERATOR:
            findings.add("partitions.config-own", where, word=word, option=option)
        elif key not in PARTITION:
            near = nearest(option, tuple(name for name, _ in PARTITION.values()))
            findings.add("partitions.config-option", where, option=option, near=near)
        elif problem := value_problem(PARTITION[key], value):
            findings.add("partitions.config-value", where, word=word, problem=problem)
        elif value not in _FIRST_QOS[has_accounting].get(key, (value,)):
            findings.add("partitions.config-qos", where, word=word)
    if partition.name == HIDDEN and not _IS_HIDDEN.search(partition.config):
        findings.add("partitions.hidden-shown", where)


# A DNS subdomain, which names Secrets and ConfigMaps.
_OBJECT: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PAIR: Final = re.compile(r"([A-Za-z]+)=(\S.*)")
# What follows the first space would be the next option.
_ONE_VALUE: Final = re.compile(r'"[^"]*"|[^\s"]+')


def check_verbatim(spec: StackSpec, findings: Findings) -> None:
    """Every text that nothing else looks at before the cluster does."""
    maps = [each.sshd_config_map for each in spec.nodes.workers]
    names = {f"nodes.workers[{index}].sshd_config_map": each for index, each in enumerate(maps)}
    if (sssd := spec.soperator.sssd) is not None:
        names["soperator.sssd.config_secret"] = sssd.config_secret
        names["soperator.sssd.ca_config_map"] = sssd.ca_config_map
    for path, name in names.items():
        if name is not None and not _OBJECT.fullmatch(name):
            findings.add("verbatim.object-name", path)
    lines = spec.slurm.config_lines
    for index, line in enumerate(lines):
        _check_slurm_line(f"slurm.config_lines[{index}]", line, findings)
    pairs = [(found[1], found[2]) for line in lines if (found := _PAIR.fullmatch(line))]
    findings.add_text("verbatim.slurm-value", "slurm.config_lines", preemption_problem(pairs))
    for index, worker in enumerate(spec.nodes.workers):
        path = f"nodes.workers[{index}]"
        preset = worker.hardware
        if worker.gres_lines and preset is not None and not preset.gpus:
            findings.add("verbatim.gres-no-gpu", f"{path}.gres_lines")
        for number, line in enumerate(worker.gres_lines):
            if not _PAIR.fullmatch(line) or "nodename=" in line.lower():
                findings.add("verbatim.gres-line", f"{path}.gres_lines[{number}]")
        if worker.extra is not None and re.search(r"`|\$\(", worker.extra):
            findings.add("verbatim.extra", f"{path}.extra")


def _check_slurm_line(path: str, line: str, findings: Findings) -> None:
    found = _PAIR.fullmatch(line)
    if found is None:
        findings.add("verbatim.slurm-line", path)
    elif found[1].lower() in _OWNED:
        findings.add("verbatim.slurm-owned", path, found=found)
    elif found[1].lower() not in CLUSTER:
        near = nearest(found[1], tuple(name for name, _ in CLUSTER.values()))
        findings.add("verbatim.slurm-option", path, found=found, near=near)
    elif not _ONE_VALUE.fullmatch(found[2]):
        problem = (
            f"'{line}' has more than one value; one option a line, spaces within double quotes"
        )
        findings.add_text("verbatim.slurm-value", path, problem)
    elif problem := value_problem(CLUSTER[found[1].lower()], found[2].strip('"')):
        problem = f"'{line}': slurmctld would not start, or read something else; {problem}"
        findings.add_text("verbatim.slurm-value", path, problem)

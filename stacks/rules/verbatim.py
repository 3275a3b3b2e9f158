"""Rules of texts that go as they are into Slurm's configuration, and of objects named there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from stacks.catalog import find_preset
from stacks.errors import Findings, nearest
from stacks.rules.slurm_conf import CLUSTER, preemption_problem, value_problem
from stacks.spec import StackSpec

# A DNS subdomain, which names Secrets and ConfigMaps.
_OBJECT: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PAIR: Final = re.compile(r"([A-Za-z]+)=(\S.*)")
# What follows the first space would be the next option.
_ONE_VALUE: Final = re.compile(r'"[^"]*"|[^\s"]+')
# Written from other keys of the stack, or by the operator, which a second line would contradict.
_OWNED: Final = frozenset(
    {
        "accountingstorageenforce", "accountingstoragehost", "accountingstoragetype", "authtype",
        "clustername", "downnodes", "epilog", "grestypes", "include", "nodename", "nodeset",
        "partitionname", "prolog", "slurmctldhost", "suspendexcnodes", "suspendtime",
        "topologyparam", "topologyplugin",
    }
)  # fmt: skip


def check_verbatim(spec: StackSpec, findings: Findings) -> None:
    """Every text that nothing else looks at before the cluster does."""
    for path, name in _names(spec):
        if name is not None and not _OBJECT.fullmatch(name):
            findings.error(
                path,
                f"'{name}' names no object of Kubernetes; lower-case letters, digits, - and ., "
                "from a letter or digit to a letter or digit",
                rule="verbatim.object-name",
            )
    _check_slurm_lines(spec.slurm.config_lines, findings)
    for index, worker in enumerate(spec.nodes.workers):
        path = f"nodes.workers[{index}]"
        preset = find_preset(worker.platform, worker.preset)
        if worker.gres_lines and preset is not None and not preset.gpus:
            findings.error(
                f"{path}.gres_lines",
                f"'{worker.preset}' has no GPU; remove the lines",
                rule="verbatim.gres-no-gpu",
            )
        for number, line in enumerate(worker.gres_lines):
            if not _PAIR.fullmatch(line) or "nodename=" in line.lower():
                findings.error(
                    f"{path}.gres_lines[{number}]",
                    f"'{line}' is no line of gres.conf for these nodes; write pairs such as "
                    "'Name=gpu File=/dev/nvidia0 Cores=0-31', without NodeName, which is added",
                    rule="verbatim.gres-line",
                )
        if worker.extra is not None and re.search(r"`|\$\(", worker.extra):
            findings.error(
                f"{path}.extra",
                f"'{worker.extra}' holds a command, which the shell that fills in variables "
                "would run; write it without ` and $(",
                rule="verbatim.extra",
            )


def _names(spec: StackSpec) -> Iterator[tuple[str, str | None]]:
    for index, worker in enumerate(spec.nodes.workers):
        yield f"nodes.workers[{index}].sshd_config_map", worker.sshd_config_map
    sssd = spec.soperator.sssd
    if sssd is not None:
        yield "soperator.sssd.config_secret", sssd.config_secret
        yield "soperator.sssd.ca_config_map", sssd.ca_config_map


def _check_slurm_lines(lines: Sequence[str], findings: Findings) -> None:
    for index, line in enumerate(lines):
        _check_slurm_line(f"slurm.config_lines[{index}]", line, findings)
    pairs = [(found[1], found[2]) for line in lines if (found := _PAIR.fullmatch(line))]
    if problem := preemption_problem(pairs):
        findings.error("slurm.config_lines", problem, rule="verbatim.slurm-value")


def _check_slurm_line(path: str, line: str, findings: Findings) -> None:
    found = _PAIR.fullmatch(line)
    if found is None:
        findings.error(
            path,
            f"'{line}' is no line of slurm.conf; write Name=value, such as "
            "'PriorityDecayHalfLife=7-0'",
            rule="verbatim.slurm-line",
        )
    elif found[1].lower() in _OWNED:
        findings.error(
            path,
            f"'{found[1]}' is written from other keys of the stack or by Soperator; remove the "
            "line",
            rule="verbatim.slurm-owned",
        )
    elif found[1].lower() not in CLUSTER:
        near = nearest(found[1], tuple(name for name, _ in CLUSTER.values()))
        findings.error(
            path,
            f"'{found[1]}' is no option of slurm.conf, and slurmctld would not start{near}",
            rule="verbatim.slurm-option",
        )
    elif not _ONE_VALUE.fullmatch(found[2]):
        findings.error(
            path,
            f"'{line}' has more than one value; one option a line, spaces within double quotes",
            rule="verbatim.slurm-value",
        )
    elif problem := value_problem(CLUSTER[found[1].lower()], found[2].strip('"')):
        findings.error(
            path,
            f"'{line}': slurmctld would not start, or read something else; {problem}",
            rule="verbatim.slurm-value",
        )

"""The stack file of an attached cluster: what was found between two marks, the user's below them.

Attaching again writes the found part anew and nothing else; one that was edited is not overwritten.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from infra import files
from infra.clients.errors import JobsError
from infra.clients.ssh import Endpoint
from infra.clients.ssh_key import fingerprint
from infra.operate.attach import Charge, Found, FoundNodeset, compress
from infra.setup.project.stack_file import stack_path
from stacks.catalog import attached_hardware
from stacks.load import load_stack
from stacks.spec import StackSpec

_BEGIN: Final = "  # found: attach writes these lines anew; edits go below them ("
_END: Final = "  # end of what was found"
_PART: Final = re.compile(
    rf"^{re.escape(_BEGIN)}(?P<digest>[0-9a-f]{{16}})\)\n(?P<text>.*?)^{re.escape(_END)}\n",
    re.DOTALL | re.MULTILINE,
)
_PRICES: Final = "nebius"
_SLURM_NAME: Final = re.compile(r"[^a-z0-9]+")


def found_text(door: Endpoint, place: str, found: Found) -> str:
    """The lines of `soperator-stack:attached` with comments for what only a person reads."""
    names = nodeset_names(found.nodesets)
    accounts = ", ".join(
        f"{each.account} ({', '.join(each.qos)})" if each.qos else each.account
        for each in found.associations
    )
    folders = [
        f"{each.path} ({each.filesystem}, {each.free_bytes / 2**30:,.1f} GiB free"
        f"{'' if each.problem is None else f'; takes no file: {each.problem}'})"
        for each in found.folders
    ]
    kept = "kept" if found.has_accounting else "not kept, so only what runs or was pulled is known"
    default = f" (default {found.default_account})" if found.default_account else ""
    lines = [
        f"# Slurm {found.version} of {found.host}; Python {found.python_version}",
        f"# accounting {kept}",
        f"# accounts with their QOS: {accounts or 'none needed'}{default}",
        f"# enforced of them: {', '.join(sorted(found.enforces)) or 'nothing'}",
        f"# folders of yours: {'; '.join(folders)}",
        *(f"# quota: {each.strip()}" for each in found.quota),
        f"# host key {fingerprint(door.host_key)}",
        "soperator-stack:attached:",
        *(
            f"  {name}: {json.dumps(value)}"
            for name, value in (
                ("host", door.host),
                ("port", door.port),
                ("user", door.user),
                ("host_key", door.host_key),
                ("identity", str(door.identity)),
                ("folder", place),
                ("python", found.python),
                ("slurm", found.version),
                ("accounting", found.has_accounting),
            )
        ),
        "  nodesets:",
        *(
            f"    - {_nodeset(name, each)}"
            for name, each in zip(names, found.nodesets, strict=True)
        ),
        "  partitions:",
    ]
    for each in found.partitions:
        of = [
            n
            for n, nodes in zip(names, found.nodesets, strict=True)
            if each.name in nodes.partitions
        ]
        limits = f"name: {json.dumps(each.name)}, nodesets: {json.dumps(of)}"
        limits += f", default: {json.dumps(each.default)}, max_time: {json.dumps(each.max_time)}"
        limits += ", whole_nodes: true" if each.whole_nodes else ""
        who = "" if each.accounts is None else f" accounts {', '.join(sorted(each.accounts))}"
        who += "" if each.qos is None else f" QOS {', '.join(each.qos)}"
        state = "" if each.is_up else " not up"
        lines.append(f"    - {{{limits}}}{f'  #{who}{state}' if who or state else ''}")
    return "".join(f"  {line}\n" for line in lines)


def nodeset_names(nodesets: Sequence[FoundNodeset]) -> tuple[str, ...]:
    """A name for each, the same at the next attach: its GPUs, then a partition, then a number."""
    kinds = [
        _SLURM_NAME.sub("-", (each.gpu_type or "").lower()).strip("-") if each.gpus else "cpu"
        for each in nodesets
    ]
    # YAML takes 3090, and 1e3, for a number.
    kinds = [kind if kind[:1].isalpha() else f"gpu-{kind}".strip("-") for kind in kinds]
    names: list[str] = []
    for kind, nodeset in zip(kinds, nodesets, strict=True):
        name = kind
        if kinds.count(kind) > 1:
            name = f"{kind}-{_SLURM_NAME.sub('-', nodeset.partitions[0].lower()).strip('-')}"
        number, first = 1, name
        while name in names:
            number += 1
            name = f"{first}-{number}"
        names.append(name)
    return tuple(names)


def _nodeset(name: str, nodeset: FoundNodeset) -> str:
    text = (
        f"name: {name}, nodes: {json.dumps(compress(nodeset.nodes))}, count: {len(nodeset.nodes)}"
    )
    text += f", cpus: {nodeset.cpus}, memory_mib: {nodeset.memory_mib}"
    if nodeset.gpus:
        text += f", gpus: {nodeset.gpus}"
        text += "" if nodeset.gpu_type is None else f", gpu_type: {json.dumps(nodeset.gpu_type)}"
    return f"{{{text}}}"


def _own_text(found: Found, charge: Charge) -> str:
    """What the user changes: account, prices, jobs, the reference chat, a budget."""
    names = nodeset_names(found.nodesets)
    usable = [
        (name, each)
        for name, each in zip(names, found.nodesets, strict=True)
        if charge.partition in each.partitions
    ]
    served, nodes = max(usable, key=lambda each: (each[1].gpus, each[1].cpus))
    gpus = f", gpus_per_node: {min(1, nodes.gpus)}" if nodes.gpus else ""
    cpus = ", cpus_per_task: 1" if not nodes.gpus else ""
    two = min(2, len(nodes.nodes))
    where = f"partition: {json.dumps(charge.partition)}"
    chosen = {"account": charge.account, "qos": charge.qos}
    named = {name: value for name, value in chosen.items() if value is not None}
    platform, preset = attached_hardware(nodes.gpu_type, nodes.gpus, nodes.cpus, nodes.memory_mib)
    return f"""\
  # Yours from here; every key is in docs/stack.md, every step in docs/attach.md.
  # Of every job and session; without account or qos Slurm takes your default ones.
  soperator-stack:charge: {json.dumps(named)}
  # UNPRICED, as nobody said what a node costs (to runs and prices the largest is {platform} {preset}).
  # Say it by one of these forms for each nodeset; totals are lower bounds until all have a price:
  #   - {{nodeset: {served}, platform: gpu-h100-sxm, preset: 8gpu-128vcpu-1600gb}}
  #   - {{nodeset: {served}, usd_per_node_hour: 20.00, source: "contract 12", date: "2026-11-01"}}
  #   - {{nodeset: {served}, usd_per_gpu_hour: 2.50, source: "contract 12", date: "2026-11-01"}}
  soperator-stack:node_prices: []
  soperator-stack:jobs:
    - {{name: look, module: workloads.look, recipe: look, {where}, time_limit: "00:05:00"}}
    - {{name: prepare-data, module: workloads.data, recipe: bfcl_smollm2, {where}, time_limit: "00:20:00"}}
    - {{name: finetune, module: workloads.train, recipe: smollm2_135m_lora_2xcpu, {where}, nodes: {two}{gpus}{cpus}, time_limit: "00:30:00", after: prepare-data}}
    - {{name: evaluate, module: workloads.evaluate, recipe: bfcl_smollm2, {where}{gpus}{cpus}, time_limit: "00:30:00", after: finetune}}
    - {{name: serve, module: workloads.serve, recipe: smollm2_135m_serve_cpu, {where}{gpus}, cpus_per_task: 2, time_limit: "02:00:00"}}
    - {{name: load, module: workloads.load, recipe: smollm2_135m_load_cpu, {where}, time_limit: "00:30:00"}}
    - {{name: accept, module: workloads.accept, recipe: {"accept_gpu" if nodes.gpus else "accept_cpu"}, {where}, nodes: {two}{gpus}{cpus}, time_limit: "00:30:00", restarts: 0}}
  soperator-stack:chat: {{model: SmolLM2-135M-Instruct, context_tokens: 8000, output_tokens: 2000, serving_nodeset: {served}}}
  # soperator-stack:budget: {{usd_per_month: 100}}
  soperator-stack:prices: {_PRICES}
"""  # noqa: E501


def write(
    folder: Path, name: str, door: Endpoint, place: str, found: Found, charge: Charge
) -> tuple[Path, bool, StackSpec]:
    """The file, whether it was there, and the stack that it declares; the old one stays if not.

    `place` is the stack's folder there.
    """
    path = stack_path(folder, name)
    part = found_text(door, place, found)
    part = f"{_BEGIN}{_digest(part)})\n{part}{_END}\n"
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    if before is None:
        text = f"# The cluster behind {door.user}@{door.host}, which others run; made by the command attach.\nconfig:\n{part}{_own_text(found, charge)}"  # noqa: E501
    else:
        was = part_of(path, before)
        text = f"{before[: was.start()]}{part}{before[was.end() :]}"
    files.write(path, text)
    try:
        return path, before is not None, load_stack(name, folder)
    except BaseException:
        # What was there goes on working: a nodeset that a price names may be gone.
        if before is None:
            path.unlink()
        else:
            files.write(path, before)
        raise


def part_of(path: Path, text: str) -> re.Match[str]:
    """What an earlier attach found; JobsError where there is none, or a hand changed it."""
    found = _PART.search(text)
    if found is None:
        raise JobsError(
            f"{path}: is not the file of an attached cluster, or lost its two marks; choose "
            "another name with --stack, or move it away and attach again"
        )
    if _digest(found["text"]) != found["digest"]:
        raise JobsError(
            f"{path}: the lines of what was found were edited, and attaching again would lose "
            "that; move your edits below the line 'end of what was found' (charge, node_prices, "
            "storage.places), or move the file away and attach again"
        )
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

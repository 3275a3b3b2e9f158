"""The stack file of an attached cluster: what was found between two marks, the user's below them.

Attaching again writes the found part anew and nothing else; one that was edited is not overwritten.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

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
_SLURM_NAME: Final = re.compile(r"[^a-z0-9]+")


def found_text(door: Endpoint, place: str, found: Found) -> str:
    """The lines of `soperator-stack:attached` with comments for what only a person reads."""
    accounts = ", ".join(
        f"{each.account} ({', '.join(each.qos)})" if each.qos else each.account
        for each in found.associations
    )
    folders = [
        f"{each.path} ({each.filesystem}, {each.free_bytes / 2**30:,.1f} GiB free"
        f"{'' if each.problem is None else f'; takes no file: {each.problem}'})"
        for each in found.folders
    ]
    default = f" (default {found.default_account})" if found.default_account else ""
    nodesets = list(zip(nodeset_names(found.nodesets), found.nodesets, strict=True))
    return _filled(
        "attached_found.yaml.j2",
        door=door,
        place=place,
        found=found,
        accounts=accounts,
        default=default,
        folders=folders,
        host_key=fingerprint(door.host_key),
        nodesets=nodesets,
        names_in=lambda partition: [n for n, each in nodesets if partition in each.partitions],
        compress=compress,
    )


def _filled(template: str, **values: Any) -> str:
    path = Path(__file__).with_name(template)
    return files.fill(path, {"json": json.dumps}, **values).removesuffix("\n") + "\n"


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


def _own_text(found: Found, charge: Charge) -> str:
    """What the user changes: account, prices, jobs, the reference chat, a budget."""
    names = nodeset_names(found.nodesets)
    usable = [
        (name, each)
        for name, each in zip(names, found.nodesets, strict=True)
        if charge.partition in each.partitions
    ]
    served, nodes = max(usable, key=lambda each: (each[1].gpus, each[1].cpus))
    chosen = {"account": charge.account, "qos": charge.qos}
    platform, preset = attached_hardware(nodes.gpu_type, nodes.gpus, nodes.cpus, nodes.memory_mib)
    return _filled(
        "attached_own.yaml.j2",
        charge={name: value for name, value in chosen.items() if value is not None},
        partition=charge.partition,
        nodes=nodes,
        served=served,
        platform=platform,
        preset=preset,
    )


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

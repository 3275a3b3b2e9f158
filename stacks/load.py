"""Loads a stack: configuration mapping -> StackSpec, strictly, with every problem reported at once.

Owns names, types and single values, `file:PATH` keys, and what a stack of an attached cluster has
in the place of infrastructure. Rules across fields are in rules/.
    spec = load_stack("l40s-dev")
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Final, cast, get_args, get_type_hints

import yaml

from stacks.catalog import attached_hardware, canonical_platform, find_preset
from stacks.errors import UserError, nearest
from stacks.files import MAX_BYTES, is_map, parse_yaml, read_text
from stacks.spec import StackSpec
from stacks.spec.cluster import AttachedNodesetSpec, AttachedSpec, NodePriceSpec
from stacks.spec.decode import Decoder, Nodes
from stacks.spec.nodes import NodeGroupSpec
from stacks.spec.slurm import WHOLE_NODES
from stacks.spec.storage import PLACES

PROJECT: Final = "soperator-stack"
"""Pulumi project name: the namespace of our keys in a stack file."""
STACKS_DIR: Final = Path(__file__).parent


class StackError(UserError):
    """A stack that cannot be loaded, with every problem found."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems: Final = problems


def stack_names(stacks_dir: Path = STACKS_DIR) -> tuple[str, ...]:
    """Names of the stacks that have a file, sorted."""
    return tuple(
        sorted(
            path.name.removeprefix("Pulumi.").removesuffix(".yaml")
            for path in stacks_dir.glob("Pulumi.*.yaml")
        )
    )


def load_stack(
    name: str,
    stacks_dir: Path = STACKS_DIR,
    *,
    environ: Mapping[str, str] | None = None,
) -> StackSpec:
    """The stack of `Pulumi.<name>.yaml`; `environ` resolves key files, the process's by default."""
    path = stacks_dir / f"Pulumi.{name}.yaml"
    if name not in stack_names(stacks_dir):
        have = stack_names(stacks_dir)
        hint = nearest(name, have)
        # Without a likely name the hint lists them all.
        rest = f" (have: {', '.join(have)})" if "did you mean" in hint else ""
        raise StackError((f"{name}: no such stack in {stacks_dir}{hint}{rest}",))
    try:
        document = parse_yaml(read_text(path, at_most_bytes=MAX_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise StackError((f"{name}: {path} cannot be read: {error}",)) from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise StackError((f"{name}: {path} is not valid YAML: {reason}",)) from error
    config = document.get("config") if is_map(document) else None
    if not is_map(config):
        raise StackError((f"{name}: {path} has no 'config:' mapping of '{PROJECT}:<key>' entries",))
    return load_config(config, name, environ=environ)


def load_config(
    mapping: Mapping[str, object],
    name: str,
    *,
    environ: Mapping[str, str] | None = None,
) -> StackSpec:
    """The stack of a Pulumi configuration: '<project>:<key>' to a value or its JSON text."""
    decoder = _StackDecoder(environ=os.environ if environ is None else environ)
    values: dict[str, object] = {"name": name}
    hints = get_type_hints(StackSpec)
    for full_key, value in cast("Mapping[object, object]", mapping).items():
        if not isinstance(full_key, str):
            decoder.refuse(f"{name}.{full_key}", f"a key is text; write '{PROJECT}:<key>'")
            continue
        namespace, separator, key = full_key.partition(":")
        if not separator:
            decoder.refuse(f"{name}.{full_key}", f"unknown key; write '{PROJECT}:{full_key}'")
        elif namespace == PROJECT and key == "name":
            decoder.refuse(f"{name}.name", "unknown key; the file name is the stack's name")
        elif namespace == PROJECT:
            hint = hints.get(key)
            is_text = hint is None or hint is str or str in get_args(hint)
            try:
                values[key] = _from_text(value, text_wanted=is_text)
            except RecursionError:
                decoder.refuse(f"{name}.{key}", "JSON that is nested too deep to be read")
        elif get_close_matches(namespace.strip().lower(), [PROJECT], cutoff=0.8):
            # Other programs' keys are theirs; this one would silently have no effect.
            message = f"unknown namespace '{namespace}'; write '{PROJECT}:{key}'"
            decoder.refuse(f"{name}.{full_key}", message)
    if "attached" in values:
        values = _without_infrastructure(values, decoder, name)
    spec = decoder.record(StackSpec, values, name)
    if decoder.problems or spec is None:
        raise StackError(tuple(decoder.problems))
    return spec


_BUILT: Final = (
    *("nebius", "cluster", "nodes", "login", "slurm", "soperator", "nfs", "quotas", "lifetime"),
    "live_prices",
)
"""Keys of what only a stack that is built has."""
_REGION: Final = "eu-north1"
"""Whose prices count where nodes are declared to be a preset."""
_NO_GROUP: Final = {"platform": "cpu-d3", "preset": "2vcpu-8gb", "nodes": 1}
_NO_DISK: Final = {"boot_disk": {"size_gib": 1}}


def _without_infrastructure(
    values: Mapping[str, object], decoder: Decoder, name: str
) -> dict[str, object]:
    """The values of a stack of an attached cluster with all that StackSpec needs beside them.

    What stands for a role, a jail or a project is never made, priced or checked: `attached` says
    that there is none.
    """
    for key in _BUILT:
        if key in values:
            decoder.refuse(
                f"{name}.{key}",
                "the stack is attached to a cluster that others run, so nothing of it is declared; "
                "take the key out",
            )
    path = f"{name}.attached"
    attached = decoder.record(AttachedSpec, values["attached"], path)
    hint = tuple[NodePriceSpec, ...]
    prices = decoder.value(hint, values.get("node_prices", ()), f"{name}.node_prices", "")
    storage = values.get("storage", {})
    places = storage.get("places", {}) if is_map(storage) and storage.keys() <= {"places"} else None
    if not is_map(places):
        problem = "an attached stack has places alone; write storage.places"
        decoder.refuse(f"{name}.storage", problem)
    if attached is None or decoder.problems or not is_map(places):
        raise StackError(tuple(decoder.problems))
    by_name = _prices_by_nodeset(attached, cast("tuple[NodePriceSpec, ...]", prices), decoder, name)
    partitions = [
        {
            "name": each.name,
            "nodesets": list(each.nodesets),
            "config": f"Default={'YES' if each.default else 'NO'} MaxTime={each.max_time}"
            f"{f' {WHOLE_NODES}' if each.whole_nodes else ''}",
        }
        for each in attached.partitions
    ]
    roles = {role: {**_NO_GROUP, **_NO_DISK} for role in ("system", "controller", "login")}
    workers = [_worker(each, by_name.get(each.name)) for each in attached.nodesets]
    folder = attached.folder
    return {
        "code_path": f"{folder}/code",
        "python_env_path": f"{folder}/venv",
        **values,
        "nebius": {"tenant_id": "none", "project_id": "none", "region": _REGION},
        "cluster": {},
        "nodes": {**roles, "workers": workers},
        "login": {"ssh_public_keys": [], "ssh_port": attached.port},
        "slurm": {"partitions": partitions, "accounting": attached.accounting},
        "storage": {
            "jail": {"size_gib": 1},
            "controller_spool": {"size_gib": 1},
            "places": {**{each: f"{folder}/{each}" for each in PLACES}, **places},
        },
    }


def _worker(nodeset: AttachedNodesetSpec, price: NodePriceSpec | None) -> dict[str, object]:
    """The nodeset as a group of workers; none is paid for while no job of the stack has it."""
    platform, preset = attached_hardware(
        nodeset.gpu_type, nodeset.gpus, nodeset.cpus, nodeset.memory_mib
    )
    if price is not None and price.platform is not None:
        platform, preset = price.platform, price.preset or ""
    sizes = {"min_nodes": 0, "max_nodes": nodeset.count}
    return {"name": nodeset.name, "platform": platform, "preset": preset, **sizes, **_NO_DISK}


def _prices_by_nodeset(
    attached: AttachedSpec, prices: Sequence[NodePriceSpec], decoder: Decoder, name: str
) -> dict[str, NodePriceSpec]:
    """Each price by its nodeset; one that says nothing, two things or the impossible is refused."""
    nodesets = {each.name: each for each in attached.nodesets}
    for index, price in enumerate(prices):
        path = f"{name}.node_prices[{index}]"
        nodeset = nodesets.get(price.nodeset)
        if nodeset is None:
            known = tuple(nodesets)
            decoder.refuse(
                f"{path}.nodeset",
                f"'{price.nodeset}' is not a nodeset of the cluster (has: {', '.join(known)})"
                f"{nearest(price.nodeset, known)}",
            )
            continue
        is_preset = price.platform is not None or price.preset is not None
        per_node, per_gpu = price.usd_per_node_hour, price.usd_per_gpu_hour
        if [is_preset, per_node is not None, per_gpu is not None].count(True) != 1:
            decoder.refuse(
                path,
                "give platform with preset, or usd_per_node_hour, or usd_per_gpu_hour: one of the "
                "three; without an entry the nodes are unpriced",
            )
        elif is_preset:
            preset = find_preset(price.platform or "", price.preset or "")
            if preset is None or preset.gpus != nodeset.gpus:
                decoder.refuse(
                    f"{path}.preset",
                    f"'{price.platform}' '{price.preset}' is not a platform with a preset of "
                    f"{nodeset.gpus} GPUs, which a node of '{price.nodeset}' has; "
                    "see stacks/catalog.py",
                )
        elif per_gpu is not None and not nodeset.gpus:
            problem = f"the nodes of '{price.nodeset}' have no GPU; give usd_per_node_hour"
            decoder.refuse(f"{path}.usd_per_gpu_hour", problem)
        elif price.source is None or price.date is None:
            problem = "give source and date (YYYY-MM-DD) of the contract beside the price"
            decoder.refuse(path, problem)
    found = {price.nodeset: price for price in prices}
    if len(found) < len(prices):
        problem = "a nodeset stands there twice; keep one of its entries"
        decoder.refuse(f"{name}.node_prices", problem)
    if decoder.problems:
        raise StackError(tuple(decoder.problems))
    return found


def _from_text(value: object, *, text_wanted: bool) -> object:
    """JSON text -> value where a mapping or a list is wanted; anything else unchanged."""
    if text_wanted or not isinstance(value, str):
        return value
    try:
        return cast("object", json.loads(value, parse_float=Decimal))
    except (ValueError, ArithmeticError):  # no JSON, or a number with more digits than are read
        return value


_ONE_OR_MORE: Final = ("after",)
"""Lists that may be given as the text of their only entry."""
RENAMED_BOOKS: Final[Mapping[str, str]] = {"seed000": "nebius-2026-09"}
"""Old name of a price book, which stack files and states may have -> its name now."""
_GONE: Final[Mapping[str, str]] = {
    "attached.scrontab": "gone, as schedules of an attached cluster are refused; delete the line",
    # nebius/soperator, helm/slurm-cluster/templates/slurm-cluster-cr.yaml at 4.1.7 and of 5.0.0:
    # the resource has a field for it, the chart has no value.
    "login.sshd_config_map": (
        "gone, as Soperator's chart takes no sshd configuration for login nodes and the key "
        "changed nothing; remove it (that of workers is nodes.workers[].sshd_config_map)"
    ),
}
"""Key that a stack had once -> why it has it no more, and what to do."""


@dataclass(slots=True, kw_only=True)
class _StackDecoder(Decoder):
    """What a stack file has beyond types: `nodes: N`, other names of platforms, files of keys."""

    environ: Mapping[str, str]

    def prepared(self, cls: type, values: dict[str, object], path: str) -> dict[str, object]:
        """`nodes: N` of a node group -> min_nodes and max_nodes."""
        if "nodes" not in values or not issubclass(cls, NodeGroupSpec):
            return values
        if values.keys() & {"min_nodes", "max_nodes"}:
            self.refuse(f"{path}.nodes", "give either nodes or min_nodes and max_nodes, not both")
        count = self.value(Nodes, values.pop("nodes"), f"{path}.nodes")
        # A refused count is replaced by a valid one, so that it is reported once, not three times.
        stand_in = count if count is not None else 1
        return {**values, "min_nodes": stand_in, "max_nodes": stand_in}

    def unknown(self, key: str, allowed: tuple[str, ...], path: str) -> None:
        """What is gone from the stack says why."""
        _, _, name = f"{path}.{key}".partition(".")
        if name in _GONE:
            self.refuse(f"{path}.{key}", _GONE[name])
            return
        Decoder.unknown(self, key, (*allowed, *["nodes"] * ("min_nodes" in allowed)), path)

    def value(self, hint: object, value: object, path: str, key: str = "") -> object:
        """As the Decoder; a platform by the API's own name, a price book by its name of now."""
        found = Decoder.value(self, hint, value, path, key)
        if key == "platform" and isinstance(found, str):
            return canonical_platform(found)
        if key == "prices" and isinstance(found, str):
            return RENAMED_BOOKS.get(found, found)
        return found

    def items(self, hint: object, value: object, path: str, key: str) -> tuple[object, ...]:
        """As the Decoder; a list may be its only entry, and keys the name of their file."""
        if key in _ONE_OR_MORE and isinstance(value, str):
            value = [value]
        items = Decoder.items(self, hint, value, path, key)
        if key != "ssh_public_keys":
            return items
        # Each line once, with `file:PATH` replaced by the lines of the file.
        keys: list[str] = []
        for index, line in enumerate(item for item in items if isinstance(item, str)):
            if line.startswith(_KEY_FILE_PREFIX):
                name = line.removeprefix(_KEY_FILE_PREFIX)
                keys += self._key_file(name, f"{path}[{index}]")
            else:
                keys.append(line.strip())
        return tuple(dict.fromkeys(keys))

    def _key_file(self, name: str, path: str) -> list[str]:
        expanded, unset = _expand(name, self.environ)
        if unset:
            self.refuse(path, f"'{name}': ${unset} is not set; export it or give a path")
            return []
        try:
            text = read_text(expanded, at_most_bytes=_KEY_FILE_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror or "unreadable") if isinstance(error, OSError) else "not text"
            self.refuse(
                path,
                f"cannot read the SSH public key {expanded} ({reason.lower()}); make one with "
                f"'ssh-keygen -t ed25519' or set {KEY_FILE_VARIABLE}",
            )
            return []
        lines = [line.strip() for line in text.splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            self.refuse(path, f"{expanded} holds no key; make one with 'ssh-keygen -t ed25519'")
        return keys


KEY_FILE_VARIABLE: Final = "SOPERATOR_SSH_PUBLIC_KEY_FILE"
_DEFAULT_KEY_FILE: Final = "~/.ssh/id_ed25519.pub"
_KEY_FILE_PREFIX: Final = "file:"
_KEY_FILE_BYTES: Final = 1 << 20


def _expand(name: str, environ: Mapping[str, str]) -> tuple[Path, str | None]:
    """The path with $VARS and ~ replaced, and the first variable that is not set."""
    values = {KEY_FILE_VARIABLE: _DEFAULT_KEY_FILE, **{k: v for k, v in environ.items() if v}}
    variable = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
    text = variable.sub(lambda each: values.get(each[1] or each[2], ""), name)
    if text == "~" or text.startswith("~/"):
        text = values.get("HOME", str(Path.home())) + text[1:]
    named = (each[1] or each[2] for each in variable.finditer(name))
    return Path(text), next((each for each in named if each not in values), None)

"""A new stack file from a few answers, and its write into a project.

Left open are: one nodeset, the roles at the sizes that the recipe calls sufficient, 3,072 GiB of
filesystems under the 5 TiB quota of a new project.

Questions of `soperator init`, with prices beside the choices: fill(options, ...) -> Answers.
Asks only on a terminal; elsewhere what is missing is refused at once, every option in one go.

In the file of an attached cluster what was found stands between two marks, the user's below them.
Attaching again writes the found part anew and nothing else; one that was edited is not overwritten.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from cost.prices.book import HOURS_PER_MONTH, PriceBook, UnknownPrice, layered
from cost.report.layout import aligned
from cost.resources.estimate import estimate, price_problems
from cost.resources.lines import preset_rate
from infra import files
from infra.clients.errors import JobsError
from infra.clients.passphrase import SALT, make_salt, opens
from infra.clients.ssh import Endpoint
from infra.clients.ssh_key import fingerprint
from infra.operate.attach import Charge, Found, FoundNodeset, compress
from infra.setup.project.project import Place
from stacks.catalog import FABRICS, PLATFORMS, Preset, attached_hardware
from stacks.check import check
from stacks.errors import Level, Problem, UserError
from stacks.files import fill as fill_template
from stacks.files import parse_yaml
from stacks.load import load_config, load_stack
from stacks.rules.cluster import STACK_NAME_MAX
from stacks.rules.naming import name_problem
from stacks.spec import StackSpec


def stack_text(answers: Answers, salt: str) -> str:
    """The whole file; `salt` belongs to the passphrase of the project's state."""
    keys = json.dumps(list(answers.ssh_public_keys))
    template = Path(__file__).with_name("stack.yaml.j2")
    return f"{fill_template(template, answers=answers, salt=salt, ssh_public_keys=keys)}\n"


_ANY_SALT: Final = "v1:AAAAAAAAAAA=:v1:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="


def stack_path(folder: Path, name: str) -> Path:
    """The file of the stack."""
    return folder / f"Pulumi.{name}.yaml"


def check_stack(
    answers: Answers, environ: Mapping[str, str]
) -> tuple[StackSpec, tuple[Problem, ...]]:
    """The stack that the answers declare and its warnings; UserError where it has errors."""
    document = parse_yaml(stack_text(answers, _ANY_SALT))
    assert isinstance(document, dict)
    spec = load_config(document["config"], answers.name, environ=environ)
    return spec, _warnings(spec)


def kept_stack(
    name: str, folder: Path, project_id: str, environ: Mapping[str, str]
) -> tuple[StackSpec, tuple[Problem, ...]]:
    """The stack of a file that is there, and its warnings; UserError where it cannot be deployed
    to the project.
    """
    spec = load_stack(name, folder, environ=environ)
    if spec.nebius.project_id != project_id:
        raise UserError(
            f"--project: '{project_id}', but {stack_path(folder, name)} has nebius.project_id "
            f"'{spec.nebius.project_id}'; give that one, or choose another --name"
        )
    return spec, _warnings(spec)


def _warnings(spec: StackSpec) -> tuple[Problem, ...]:
    """What may be wrong; UserError for what is."""
    problems = price_problems(check(spec), estimate(spec, layered(spec)))
    errors = [str(problem) for problem in problems if problem.level is Level.ERROR]
    if errors:
        raise UserError("\n".join(errors))
    return problems


def refuse_other_file(answers: Answers, folder: Path) -> None:
    """UserError where the stack's file exists and says something else."""
    path = stack_path(folder, answers.name)
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    found = SALT.search(text)
    if found is None or text != stack_text(answers, found.group(1)):
        raise UserError(
            f"{path}: exists and differs from these answers; it is never overwritten: choose "
            "another --name, or edit the file (docs/stack.md) and give --project and --name only"
        )


def write_stack(path: Path, answers: Answers | None, passphrase: str) -> bool:
    """Whether it wrote the file; UserError where the project's passphrase does not open the secrets
    of the one that is there, as it is without answers.
    """
    if not path.is_file():
        if answers is None:
            raise UserError(
                f"{path}: was removed meanwhile; bring it back, or give all options of a new stack"
            )
        files.write(path, stack_text(answers, make_salt(passphrase)))
        return True
    found = SALT.search(path.read_text(encoding="utf-8"))
    if found is None or not opens(passphrase, found.group(1)):
        raise UserError(
            f"{path}: its encryptionsalt is of another passphrase; bring the passphrase file "
            "of whoever made it, or choose another --name"
        )
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One platform and preset that workers may have in the region."""

    platform: str
    preset: Preset
    usd_per_hour: Decimal | None
    """For one node on demand, without its disk; None where no price is known."""
    fabrics: tuple[str, ...]
    """Fabrics that its nodes may join there."""

    @property
    def name(self) -> str:
        """As the option takes it, such as `gpu-h100-sxm/8gpu-128vcpu-1600gb`."""
        return f"{self.platform}/{self.preset.name}"

    @property
    def price(self) -> str:
        """US dollars an hour and a month for one node, as printed."""
        if self.usd_per_hour is None:
            return "UNPRICED"
        month = self.usd_per_hour * HOURS_PER_MONTH
        return f"${self.usd_per_hour:,.2f} an hour, ${month:,.2f} a month"


def worker_choices(region: str, book: PriceBook) -> tuple[Choice, ...]:
    """Every preset with GPUs in the region, then those without."""
    found: list[Choice] = []
    for platform in PLATFORMS.values():
        if region not in platform.regions:
            continue
        for preset in platform.presets.values():
            rate = preset_rate(platform.name, preset.name, book)
            fabrics = tuple(
                fabric.name
                for fabric in FABRICS.values()
                if preset.allows_gpu_cluster
                and (fabric.region, fabric.platform) == (region, platform.name)
            )
            found.append(
                Choice(
                    platform=platform.name,
                    preset=preset,
                    usd_per_hour=None if isinstance(rate, UnknownPrice) else rate.usd,
                    fabrics=fabrics,
                )
            )
    return tuple(sorted(found, key=lambda choice: not choice.preset.gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a new stack is asked for."""

    name: str
    place: Place
    choice: Choice
    nodes: int
    fabric: str | None
    ssh_public_keys: tuple[str, ...]
    """OpenSSH lines, or `file:PATH`."""


Ask = Callable[[str, str], str]
"""Question and default -> the answer; the default may be empty."""
_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line gave; None asks."""

    name: str | None
    worker: str | None
    """`PLATFORM/PRESET`."""
    nodes: int | None
    fabric: str | None
    ssh_keys: tuple[str, ...]

    @property
    def names_only(self) -> bool:
        """Whether nothing is said of the stack but its name."""
        said = (self.worker, self.nodes, self.fabric, self.ssh_keys or None)
        return self.name is not None and all(value is None for value in said)


def fill(options: Options, place: Place, choices: Sequence[Choice], ask: Ask | None) -> Answers:
    """Every answer; without `ask` the missing ones are an UserError that lists the choices."""
    given = {
        "--name": options.name,
        "--worker": options.worker,
        "--nodes": options.nodes,
        "--ssh-key": options.ssh_keys or None,
    }
    missing = [option for option, value in given.items() if value is None]
    lines = choice_lines(choices)
    have = "\n".join(f"  {line}" for line in lines)
    if missing and ask is None:
        raise UserError(
            f"{', '.join(missing)}: not given, and there is no terminal to ask on; give them\n"
            f"--worker is one of, for one node in {place.region}:\n{have}"
        )
    answer = ask or (lambda question, default: default)
    name = options.name or answer("Name of the stack", "prod")
    worker = options.worker or answer("\n".join((*lines, "Workers, PLATFORM/PRESET")), "")
    choice = next((each for each in choices if each.name == worker), None)
    problems = _problems(options, name)
    if choice is None:
        problems.append(f"--worker: '{worker}' is not offered in {place.region}; one of:\n{have}")
    elif ask is None and _wants_fabric(options, choice, options.nodes or 0):
        problems.append(
            f"--fabric: {choice.name} joins an InfiniBand fabric; give one of: "
            f"{', '.join(choice.fabrics)}"
        )
    if problems or choice is None:
        raise UserError("\n".join(problems))
    nodes = options.nodes or _whole(answer(f"Number of workers ({choice.price} each)", "2"))
    keys = options.ssh_keys or (answer("Public key of who may enter", _own_key()),)
    fabric = options.fabric
    if _wants_fabric(options, choice, nodes):
        fabric = answer(f"Fabric ({', '.join(choice.fabrics)})", choice.fabrics[0])
    return Answers(
        name=name,
        place=place,
        choice=choice,
        nodes=nodes,
        fabric=fabric,
        ssh_public_keys=tuple(_key(each) for each in keys),
    )


def _problems(options: Options, name: str) -> list[str]:
    """What is wrong with a name and with the keys that were given; the rules look at the rest."""
    problem = name_problem(name, longest=STACK_NAME_MAX)
    found = [] if problem is None else [f"--name: {problem}"]
    found += [
        f"--ssh-key: '{each}' is no file; make one with `ssh-keygen -t ed25519` and give the path "
        "of its .pub, or give the line of a key itself"
        for each in options.ssh_keys
        if _key(each) != each and not Path(each).expanduser().is_file()
    ]
    return found


def choice_lines(choices: Sequence[Choice]) -> list[str]:
    """One line a preset with GPUs, with its price; CPU presets as many as fit."""
    shown = [each for each in choices if each.preset.gpus]
    shown += [each for each in choices if not each.preset.gpus][: max(2, _SHOWN - len(shown))]
    return aligned([(each.name, each.price) for each in shown])


def _wants_fabric(options: Options, choice: Choice, nodes: int) -> bool:
    return options.fabric is None and bool(choice.fabrics) and nodes > 1


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise UserError(f"--nodes: '{text}' is not a number of nodes; give 1 or more")
    return int(text)


def _own_key() -> str:
    found = sorted((Path.home() / ".ssh").glob("id_*.pub"))
    return str(found[0]) if found else ""


def _key(text: str) -> str:
    """A key line as it is; a path as the loader reads it."""
    return text if " " in text or text.startswith("file:") else f"file:{text}"


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
    return fill_template(path, {"json": json.dumps}, **values).removesuffix("\n") + "\n"


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


def write_attached(
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

"""A new stack file from a few answers, and its write into a project.

Left open are: one nodeset, the roles at the sizes that the recipe calls sufficient, 3,072 GiB of
filesystems under the 5 TiB quota of a new project.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cost.prices.book import layered
from cost.resources.estimate import price_problems
from infra.clients.passphrase import SALT, make_salt, opens
from infra.files import fill
from stacks.check import check
from stacks.errors import Level, Problem, UserError
from stacks.files import parse_yaml
from stacks.load import StackError, load_config, load_stack
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a new stack is asked for."""

    name: str
    tenant_id: str
    project_id: str
    region: str
    platform: str
    preset: str
    gpus: int
    """GPUs of the preset."""
    shared_memory_gib: int
    """Size of /dev/shm in each worker."""
    nodes: int
    fabric: str | None
    ssh_public_keys: tuple[str, ...]
    """OpenSSH lines, or `file:PATH`."""
    prices: str = "nebius"


def stack_text(answers: Answers, salt: str) -> str:
    """The whole file; `salt` belongs to the passphrase of the project's state."""
    keys = json.dumps(list(answers.ssh_public_keys))
    template = Path(__file__).with_name("stack.yaml.j2")
    return f"{fill(template, answers=answers, salt=salt, ssh_public_keys=keys)}\n"


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
    try:
        spec = load_config(document["config"], answers.name, environ=environ)
    except StackError as error:
        raise UserError(str(error)) from error
    return spec, _warnings(spec)


def kept_stack(
    name: str, folder: Path, project_id: str, environ: Mapping[str, str]
) -> tuple[StackSpec, tuple[Problem, ...]]:
    """The stack of a file that is there, and its warnings; UserError where it cannot be deployed
    to the project.
    """
    try:
        spec = load_stack(name, folder, environ=environ)
    except StackError as error:
        raise UserError(str(error)) from error
    if spec.nebius.project_id != project_id:
        raise UserError(
            f"--project: '{project_id}', but {stack_path(folder, name)} has nebius.project_id "
            f"'{spec.nebius.project_id}'; give that one, or choose another --name"
        )
    return spec, _warnings(spec)


def _warnings(spec: StackSpec) -> tuple[Problem, ...]:
    """What may be wrong; UserError for what is."""
    problems = price_problems(check(spec), spec, layered(spec))
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


def write_stack(answers: Answers, folder: Path, passphrase: str) -> bool:
    """Whether it wrote the file, which may be there; UserError for a lost passphrase."""
    path = stack_path(folder, answers.name)
    if path.is_file():
        refuse_other_passphrase(path, passphrase)
        return False
    path.write_text(stack_text(answers, make_salt(passphrase)), encoding="utf-8")
    return True


def refuse_other_passphrase(path: Path, passphrase: str) -> None:
    """UserError where the project's passphrase does not open the secrets of a stack file."""
    found = SALT.search(path.read_text(encoding="utf-8"))
    if found is None or not opens(passphrase, found.group(1)):
        raise UserError(
            f"{path}: its encryptionsalt is of another passphrase; bring the passphrase file "
            "of whoever made it, or choose another --name"
        )

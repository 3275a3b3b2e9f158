"""Writes a stack file, once: check_stack(...), write_stack(...), kept_stack(...).

Owns what happens where the file is there already: the same answers change nothing, others are
refused, and without answers the file counts as it was edited. The text is stack_file.py's, the
rules are those of every stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cost.estimate import price_problems
from cost.price_layers import layered
from infra.init.stack_file import Answers, stack_text
from infra.passphrase import SALT, make_salt, opens
from stacks.check import check
from stacks.errors import UserError
from stacks.load import StackError, load_config, load_stack
from stacks.problem import Level, Problem
from stacks.spec import StackSpec
from stacks.yaml_text import parse_yaml

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

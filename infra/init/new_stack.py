"""Writes a stack file, once: check_stack(...), write_stack(...).

Owns what happens where the file is there already: the same answers change nothing, others are
refused. The text is stack_file.py's, the rules are those of every stack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cost.estimate import price_problems
from cost.price_layers import layered
from infra.init.errors import InitError
from infra.init.stack_file import Answers, stack_text
from infra.passphrase import make_salt, opens
from stacks.check import check
from stacks.load import StackError, load_config
from stacks.problem import Level, Problem
from stacks.spec import StackSpec
from stacks.yaml_text import parse_yaml

_SALT: Final = re.compile(r"^encryptionsalt: (\S+)$", re.MULTILINE)
_ANY_SALT: Final = "v1:AAAAAAAAAAA=:v1:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="


def stack_path(folder: Path, name: str) -> Path:
    """The file of the stack."""
    return folder / f"Pulumi.{name}.yaml"


def check_stack(
    answers: Answers, environ: Mapping[str, str]
) -> tuple[StackSpec, tuple[Problem, ...]]:
    """The stack that the answers declare and its warnings; InitError where it has errors."""
    document = parse_yaml(stack_text(answers, _ANY_SALT))
    assert isinstance(document, dict)
    try:
        spec = load_config(document["config"], answers.name, environ=environ)
    except StackError as error:
        raise InitError(str(error)) from error
    problems = price_problems(check(spec), spec, layered(spec))
    errors = [str(problem) for problem in problems if problem.level is Level.ERROR]
    if errors:
        raise InitError("\n".join(errors))
    return spec, problems


def refuse_other_file(answers: Answers, folder: Path) -> None:
    """InitError where the stack's file exists and says something else."""
    path = stack_path(folder, answers.name)
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    found = _SALT.search(text)
    if found is None or text != stack_text(answers, found.group(1)):
        raise InitError(
            f"{path}: exists and differs from these answers; it is never overwritten: choose "
            "another --name, or edit the file (docs/stack.md)"
        )


def write_stack(answers: Answers, folder: Path, passphrase: str) -> bool:
    """Writes the file unless it is there; whether it was written. InitError for a lost passphrase.

    The passphrase of the project must open the salt of a file that is there.
    """
    path = stack_path(folder, answers.name)
    if path.is_file():
        found = _SALT.search(path.read_text(encoding="utf-8"))
        if found is None or not opens(passphrase, found.group(1)):
            raise InitError(
                f"{path}: its encryptionsalt is of another passphrase; bring the passphrase file "
                "of whoever made it, or choose another --name"
            )
        return False
    path.write_text(stack_text(answers, make_salt(passphrase)), encoding="utf-8")
    return True

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
from stacks.check import check
from stacks.errors import Level, Problem, UserError
from stacks.files import parse_yaml
from stacks.load import StackError, load_config, load_stack
from stacks.spec import StackSpec

_MODEL_JOBS: Final = """\
  soperator-stack:jobs:
    - {name: prepare-data, module: workloads.data, recipe: glaive_qwen2_7b, nodes: 1, cpus_per_task: 8, time_limit: "02:00:00"}
    - {name: finetune, module: workloads.train, recipe: qwen2_7b_lora_16xh100, nodes: NODES, gpus_per_node: GPUS, time_limit: "06:00:00", after: prepare-data}
    - {name: evaluate, module: workloads.evaluate, recipe: glaive_qwen2_7b, nodes: 1, gpus_per_node: ONE, time_limit: "02:00:00", after: finetune}
"""  # noqa: E501


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
    fabric = "" if answers.fabric is None else f"\n        infiniband_fabric: {answers.fabric}"
    jobs = (
        _MODEL_JOBS.replace("NODES", str(answers.nodes))
        .replace("GPUS", str(answers.gpus))
        .replace("ONE", str(min(1, answers.gpus)))
    )
    return f"""\
# Made by `soperator init`; every key is in docs/stack.md.
config:
  soperator-stack:nebius: {{tenant_id: {answers.tenant_id}, project_id: {answers.project_id}, region: {answers.region}}}
  soperator-stack:cluster: {{kubernetes_version: "1.33", soperator_version: 4.1.7}}
  soperator-stack:storage:
    jail: {{size_gib: 512}}
    controller_spool: {{size_gib: 128}}
    accounting: {{size_gib: 128}}
    submounts:
      - {{name: data, mount_path: /mnt/data, size_gib: 2048}}
      - {{name: home, mount_path: /home, size_gib: 256}}
    places:
      data: /mnt/data/data
      model: /mnt/data/models
      chkpt: /mnt/data/checkpoints
      elastic: /mnt/data/checkpoints/elastic
      logs: /mnt/data/logs
      results: /mnt/data/results
      cache: /mnt/data/cache
      scratch: /mnt/data/scratch
  soperator-stack:nodes:
    system: {{platform: cpu-d3, preset: 8vcpu-32gb, min_nodes: 3, max_nodes: 9, boot_disk: {{size_gib: 128}}}}
    controller: {{platform: cpu-d3, preset: 4vcpu-16gb, nodes: 1, boot_disk: {{size_gib: 128}}}}
    login: {{platform: cpu-d3, preset: 16vcpu-64gb, nodes: 1, boot_disk: {{size_gib: 256}}}}
    accounting: {{platform: cpu-d3, preset: 8vcpu-32gb, nodes: 1, boot_disk: {{size_gib: 128}}}}
    workers:
      - name: worker
        platform: {answers.platform}
        preset: {answers.preset}
        nodes: {answers.nodes}{fabric}
        shared_memory_gib: {answers.shared_memory_gib}
        boot_disk: {{size_gib: 512}}
  soperator-stack:login:
    ssh_public_keys: {json.dumps(list(answers.ssh_public_keys))}
  soperator-stack:slurm:
    accounting: true
    partitions:
      - {{name: main, config: "Default=YES PriorityTier=10 MaxTime=INFINITE State=UP OverSubscribe=YES"}}
      - {{name: hidden, config: "Default=NO PriorityTier=10 PreemptMode=OFF Hidden=YES MaxTime=INFINITE State=UP OverSubscribe=YES"}}
{jobs}\
  soperator-stack:chat:
    model: Qwen2-7B-Instruct
    context_tokens: 8000
    output_tokens: 2000
    serving_nodeset: worker
  soperator-stack:prices: {answers.prices}
  soperator-stack:code_path: /home/shared/finetune_code
  soperator-stack:python_env_path: /opt/soperator/venv
# Of the passphrase that `soperator init` made for the project.
encryptionsalt: {salt}
"""  # noqa: E501


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

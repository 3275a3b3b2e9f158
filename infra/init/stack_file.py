"""The text of a new stack file from a few answers: stack_text(answers, salt).

Owns the defaults that the answers leave open: one nodeset, the roles at the sizes that the recipe
calls sufficient, 3,072 GiB of filesystems under the 5 TiB quota of a new project. Does not write.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

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

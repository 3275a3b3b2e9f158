"""A small valid stack as plain configuration, to break one value at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from stacks.load import load_config
from stacks.spec import StackSpec
from tests.conftest import PUBLIC_KEY

CONFIG: dict[str, Any] = {
    "nebius": {"tenant_id": "tenant-e00", "project_id": "project-e00", "region": "eu-north1"},
    "cluster": {"kubernetes_version": "1.33"},
    "storage": {
        "jail": {"size_gib": 256},
        "controller_spool": {"size_gib": 128},
        "accounting": {"size_gib": 128},
        "submounts": [
            {"name": "data", "mount_path": "/mnt/data", "size_gib": 100},
            {"name": "home", "mount_path": "/home", "size_gib": 100},
        ],
        "memory": {"mount_path": "/mnt/ram", "size_gib": 12},
        "places": {
            "data": "/mnt/data",
            "model": "/mnt/data/model",
            "chkpt": "/mnt/data/chkpt",
            "elastic": "/mnt/data/elastic",
            "logs": "/mnt/data/logs",
            "results": "/mnt/data/results",
            "cache": "/mnt/data/cache",
            "scratch": "/mnt/memory",
        },
    },
    "nodes": {
        "system": {
            "platform": "cpu-d3",
            "preset": "8vcpu-32gb",
            "min_nodes": 3,
            "max_nodes": 9,
            "boot_disk": {"size_gib": 128},
        },
        "controller": {
            "platform": "cpu-d3",
            "preset": "4vcpu-16gb",
            "nodes": 1,
            "boot_disk": {"size_gib": 128},
        },
        "login": {
            "platform": "cpu-d3",
            "preset": "16vcpu-64gb",
            "nodes": 1,
            "boot_disk": {"size_gib": 256},
        },
        "accounting": {
            "platform": "cpu-d3",
            "preset": "8vcpu-32gb",
            "nodes": 1,
            "boot_disk": {"size_gib": 128},
        },
        "workers": [
            {
                "name": "worker",
                "platform": "gpu-h100-sxm",
                "preset": "8gpu-128vcpu-1600gb",
                "nodes": 2,
                "infiniband_fabric": "fabric-6",
                "boot_disk": {"size_gib": 512},
            }
        ],
    },
    "login": {"ssh_public_keys": [PUBLIC_KEY]},
    "slurm": {
        "partitions": [
            {"name": "main", "config": "Default=YES State=UP"},
            {"name": "hidden", "config": "Default=NO Hidden=YES State=UP"},
        ]
    },
    "jobs": [
        {"name": "prepare", "module": "workloads.data", "recipe": "r"},
        {
            "name": "finetune",
            "module": "workloads.train",
            "recipe": "r",
            "nodes": 2,
            "gpus_per_node": 8,
            "after": "prepare",
        },
    ],
    "chat": {"model": "M", "context_tokens": 8000, "output_tokens": 2000},
    "prices": "nebius-2026-09",
    "code_path": "/home/shared/code",
    "python_env_path": "/opt/venv",
}

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def config() -> dict[str, Any]:
    """The valid configuration, free to change."""
    return copy.deepcopy(CONFIG)


def namespaced(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with Pulumi's key prefix."""
    return {f"soperator-stack:{key}": value for key, value in config.items()}


def load(config: dict[str, Any], name: str = "demo") -> StackSpec:
    """The stack of the configuration."""
    return load_config(namespaced(config), name, environ={})


def changed(change: Change) -> StackSpec:
    """The valid stack after one change of its configuration."""
    config = copy.deepcopy(CONFIG)
    change(config)
    return load(config)

"""What a stack declares survives being written as configuration and loaded again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks.catalog import PLATFORM_ALIASES
from stacks.files import parse_yaml
from stacks.load import load_config
from stacks.spec import LifetimeSpec, StackSpec
from stacks.spec.cluster import (
    AlertsSpec,
    ChecksProfile,
    ClusterSpec,
    GpuDrivers,
    JailFileSpec,
    Maintenance,
    NebiusSpec,
    NfsHomeSpec,
    Observability,
    SoperatorSpec,
    SssdSpec,
    UserSpec,
)
from stacks.spec.cost import AssumedSpeedSpec, ChatSpec
from stacks.spec.nodes import (
    Billing,
    BootDiskSpec,
    DataDisksSpec,
    ImageDiskSpec,
    LocalDiskSpec,
    LocalNvmeSpec,
    NfsSpec,
    NodeGroupSpec,
    NodesSpec,
    NodeUserSpec,
    Reservation,
    ReservationSpec,
    StrategySpec,
    VolumeFilesystem,
    WorkerSpec,
)
from stacks.spec.slurm import (
    AccountSpec,
    AxisSpec,
    Goal,
    JobSpec,
    LoginSpec,
    PartitionSpec,
    QosSpec,
    SearchSpec,
    SlurmSpec,
    SshServiceType,
    TrialSpec,
)
from stacks.spec.storage import (
    BackupSpec,
    DiskType,
    FilesystemSpec,
    FilesystemType,
    MemoryMountSpec,
    StorageSpec,
    SubmountSpec,
)
from tests.nightly import law

# Printable text with a letter in it: what YAML and JSON must both keep.
texts = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1).filter(
    lambda text: not text.startswith("file:")
)
# Hypothesis also tries texts of the code itself, among them an alias, which loads as its platform.
platforms = texts.filter(lambda text: text not in PLATFORM_ALIASES)
sizes = st.integers(1, 10**6)
speeds = st.decimals("0.001", "1000000", places=3)
boot_disks = st.builds(BootDiskSpec, size_gib=sizes, type=st.sampled_from(DiskType))
life = {
    "size_gib": st.none() | sizes,
    "existing_id": st.none() | texts,
    "type": st.sampled_from(FilesystemType),
    "forbid_deletion": st.booleans(),
}
filesystems = st.builds(FilesystemSpec, **life)
hardware = {
    "platform": platforms,
    "preset": texts,
    "boot_disk": boot_disks,
    "min_nodes": st.integers(0, 100),
    "max_nodes": st.integers(1, 100),
    "billing": st.sampled_from(Billing),
    "labels": st.dictionaries(texts, texts, max_size=2),
    "public_ip": st.booleans(),
}
volumes = st.sampled_from(VolumeFilesystem)
counts = st.none() | st.integers(0, 100)
groups = st.builds(NodeGroupSpec, **hardware)
workers = st.builds(
    WorkerSpec,
    **hardware,
    name=texts,
    infiniband_fabric=st.none() | texts,
    shared_memory_gib=sizes,
    features=st.lists(texts, max_size=2).map(tuple),
    created_nodes=counts,
    gpu_cluster_id=st.none() | texts,
    strategy=st.builds(
        StrategySpec,
        max_unavailable_percent=counts,
        max_unavailable_nodes=counts,
        max_surge_percent=counts,
        max_surge_nodes=counts,
        drain_timeout_s=counts,
    ),
    reservation=st.none()
    | st.builds(
        ReservationSpec,
        policy=st.sampled_from(Reservation),
        ids=st.lists(texts, max_size=2).map(tuple),
    ),
    max_pods=st.none() | sizes,
    nvidia_config_lines=st.lists(texts, max_size=2).map(tuple),
    local_nvme=st.none() | st.builds(LocalNvmeSpec, mount_path=texts, filesystem=volumes),
    local_disks=st.lists(
        st.builds(
            LocalDiskSpec,
            name=texts,
            mount_path=texts,
            size_gib=sizes,
            type=st.sampled_from(DiskType),
            filesystem=volumes,
            folders=st.lists(texts, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    gres_lines=st.lists(texts, max_size=2).map(tuple),
    extra=st.none() | texts,
    sshd_config_map=st.none() | texts,
    image_disk=st.none() | st.builds(ImageDiskSpec, size_gib=sizes, filesystem=volumes),
)
node_users = st.builds(
    NodeUserSpec, name=texts, ssh_public_keys=st.lists(texts, max_size=2, unique=True).map(tuple)
)
stacks = st.builds(
    StackSpec,
    name=st.just("demo"),
    nebius=st.builds(
        NebiusSpec, tenant_id=texts, project_id=texts, region=texts, discover_network=st.booleans()
    ),
    cluster=st.builds(
        ClusterSpec,
        kubernetes_version=texts,
        etcd_size=sizes,
        audit_logs=st.booleans(),
        public_endpoint=st.booleans(),
        allowed_cidrs=st.lists(texts, max_size=2).map(tuple),
        os=texts,
        gpu_drivers=st.sampled_from(GpuDrivers),
        drivers_preset=texts,
    ),
    storage=st.builds(
        StorageSpec,
        jail=filesystems,
        controller_spool=filesystems,
        accounting=st.none() | filesystems,
        submounts=st.lists(
            st.builds(SubmountSpec, name=texts, mount_path=texts, **life),
            max_size=2,
        ).map(tuple),
        memory=st.none() | st.builds(MemoryMountSpec, mount_path=texts, size_gib=sizes),
        backup=st.none()
        | st.builds(
            BackupSpec,
            keep_daily=st.integers(1, 3650),
            size_gib=sizes,
            schedule=texts,
            prune_schedule=texts,
            password_version=sizes,
            key_version=sizes,
            key_days=st.integers(1, 3650),
        ),
        places=st.dictionaries(texts, texts, max_size=3),
        purge_on_destroy=st.booleans(),
        registry_gib=st.none() | sizes,
    ),
    nodes=st.builds(
        NodesSpec,
        system=groups,
        controller=groups,
        login=groups,
        accounting=st.none() | groups,
        workers=st.lists(workers, max_size=2).map(tuple),
        nfs=st.none() | groups,
        ssh_users=st.lists(node_users, max_size=2).map(tuple),
        paused=st.booleans(),
    ),
    login=st.builds(
        LoginSpec,
        ssh_public_keys=st.lists(texts, max_size=2, unique=True).map(tuple),
        service=st.sampled_from(SshServiceType),
        ssh_port=sizes,
        allowed_cidrs=st.lists(texts, max_size=2).map(tuple),
    ),
    slurm=st.builds(
        SlurmSpec,
        partitions=st.lists(st.builds(PartitionSpec, name=texts), max_size=2).map(tuple),
        accounting=st.booleans(),
        accounts=st.lists(
            st.builds(
                AccountSpec,
                name=texts,
                users=st.lists(texts, max_size=2).map(tuple),
                fair_share=sizes,
                qos=st.lists(texts, max_size=2).map(tuple),
                max_gpus=st.none() | sizes,
            ),
            max_size=2,
        ).map(tuple),
        qos=st.lists(
            st.builds(
                QosSpec, name=texts, priority=st.integers(0, 100), max_wall=st.none() | texts
            ),
            max_size=2,
        ).map(tuple),
        suspend_after_s=sizes,
        config_lines=st.lists(texts, max_size=2).map(tuple),
    ),
    lifetime=st.none()
    | st.builds(LifetimeSpec, until=st.none() | texts, idle_hours=st.none() | sizes),
    soperator=st.builds(
        SoperatorSpec,
        cuda_version=texts,
        checks=st.sampled_from(ChecksProfile),
        delete_unready_nodes=st.booleans(),
        observability=st.sampled_from(Observability),
        slack_notifier=st.booleans(),
        alerts=st.none()
        | st.builds(
            AlertsSpec,
            min_gpu_utilization_percent=sizes,
            stalled_step_minutes=sizes,
            checkpoint_minutes=sizes,
            drained_minutes=sizes,
        ),
        nfs_home=st.none() | st.builds(NfsHomeSpec, size_gib=sizes, threads=sizes),
        apparmor=st.booleans(),
        sssd=st.none() | st.builds(SssdSpec, config_secret=texts, ca_config_map=st.none() | texts),
        maintenance=st.sampled_from(Maintenance),
        jail_files=st.lists(
            st.builds(JailFileSpec, path=texts, content=texts, mode=texts), max_size=2
        ).map(tuple),
        users=st.lists(
            st.builds(
                UserSpec,
                name=texts,
                ssh_public_keys=st.lists(texts, max_size=2, unique=True).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
    ),
    nfs=st.none()
    | st.builds(
        NfsSpec,
        platform=platforms,
        preset=texts,
        boot_disk=boot_disks,
        billing=st.sampled_from(Billing),
        public_ip=st.booleans(),
        data_disks=st.builds(
            DataDisksSpec,
            size_gib=sizes,
            count=st.integers(1, 1000),
            type=st.sampled_from(DiskType),
        ),
        mount_path=texts,
    ),
    jobs=st.lists(
        st.builds(
            JobSpec,
            name=texts,
            module=texts,
            recipe=texts,
            gpus_per_node=st.integers(0, 8),
            cpus_per_task=st.none() | st.integers(1, 128),
            after=st.lists(texts, max_size=2).map(tuple),
            schedule=st.none() | texts,
            least_nodes=st.none() | st.integers(1, 100),
            restarts=st.integers(0, 9),
            save_s=sizes,
            environment=st.dictionaries(texts, texts, max_size=2),
            container=st.none() | texts,
        ),
        max_size=2,
    ).map(tuple),
    searches=st.lists(
        st.builds(
            SearchSpec,
            name=texts,
            job=texts,
            metric=texts,
            goal=st.sampled_from(Goal),
            grid=st.lists(
                st.builds(
                    AxisSpec, key=texts, values=st.lists(texts, min_size=1, max_size=2).map(tuple)
                ),
                max_size=2,
            ).map(tuple),
            trials=st.lists(
                st.builds(TrialSpec, settings=st.lists(texts, max_size=2).map(tuple)), max_size=2
            ).map(tuple),
            at_once=sizes,
            max_usd=st.none() | speeds,
        ),
        max_size=2,
    ).map(tuple),
    chat=st.builds(
        ChatSpec,
        model=texts,
        context_tokens=sizes,
        output_tokens=sizes,
        speeds=st.lists(
            st.builds(AssumedSpeedSpec, scenario=texts, output_tokens_per_s=speeds, source=texts),
            max_size=2,
        ).map(tuple),
    ),
    prices=texts,
    code_path=texts,
    python_env_path=texts,
    bill_heading=st.none() | texts,
)


def plain(value: Any) -> Any:
    """A spec as the values that a configuration file holds."""
    if is_dataclass(value):
        return {
            item.name: plain(getattr(value, item.name))
            for item in fields(value)
            if getattr(value, item.name) is not None
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, str) else value


def written(spec: StackSpec) -> dict[str, Any]:
    values = plain(spec)
    del values["name"]
    return {f"soperator-stack:{key}": value for key, value in values.items()}


@pytest.mark.feature("S002-22")
@law(60)
@given(stacks)
def test_a_stack_written_as_yaml_loads_as_itself(spec: StackSpec):
    # JSON is YAML with every text in quotes, so no text is taken for a number.
    document: Any = parse_yaml(json.dumps(written(spec), ensure_ascii=False))
    assert load_config(document, "demo", environ={}) == spec


@law(60)
@given(stacks)
def test_a_stack_handed_over_by_the_engine_loads_as_itself(spec: StackSpec):
    from_engine = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in written(spec).items()
    }
    assert load_config(from_engine, "demo", environ={}) == spec

"""One whole stack: network, filesystems, kube cluster, nodes, Soperator, Slurm, the user's door."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pulumi

from cost.resources.estimate import Estimate
from infra.components.base import UNLABELLED, Kubernetes, Part
from infra.components.buckets import Backups, Buckets, RunConfigs
from infra.components.kube_cluster import (
    KubeCluster,
    Network,
    NodeGroups,
    NvidiaOperators,
    Teardown,
)
from infra.components.soperator import Login, Monitoring, SlurmCluster, Soperator
from infra.components.storage import Filesystems, NfsServer, Registry
from infra.providers.engine.resources import KeyPair, OwnResource
from infra.providers.nebius.adoption import STATE_ID
from infra.render.charts import is_stopped
from infra.render.login import job_commands, members, mounts, nodesets, ssh_command
from stacks.spec import StackSpec


class Stack(Part):
    """Everything that a stack file declares, in dependency order."""

    login: dict[str, object]
    """Stack outputs, but for the bill and the warnings."""

    def __init__(
        self,
        spec: StackSpec,
        *,
        burn: Estimate,
        root: Path,
        build_folder: Path,
        slack_webhook_url: pulumi.Input[str] | None = None,
        rolls_in_stages: bool = False,
    ) -> None:
        name = spec.name
        labels = pulumi.ResourceOptions(transformations=[self._label])
        super().__init__(spec, labels)
        mine = pulumi.ResourceOptions(parent=self)
        # A random id of the state; refused where another state has resources of the stack.
        whose = {
            "project_id": spec.nebius.project_id,
            "stack": name,
            "project": pulumi.get_project(),
        }
        self._state = OwnResource("soperator:cloud:StateId", f"{name}-state", whose, mine)
        network = Network(spec, mine)
        filesystems = Filesystems(spec, mine)
        buckets = Buckets(spec, mine)
        kube = KubeCluster(spec, network, mine)
        nodes = NodeGroups(
            spec, kube, network, filesystems.ids, in_stages=rolls_in_stages, opts=mine
        )
        drivers = NvidiaOperators(spec, kube, self._after(nodes))
        host_key = KeyPair(f"{name}-host-key", comment=f"{name} login", opts=mine)
        deploy_key = KeyPair(f"{name}-deploy-key", comment=f"{name} deploy", opts=mine)
        provider = Kubernetes(f"{name}-kubernetes", kube.kubeconfig, mine)
        teardown = Teardown(spec, kube, self._after(nodes, drivers))
        nfs = None if spec.nfs is None else NfsServer(spec, spec.nfs, network, mine)
        # Deleted in the opposite order: what runs in the cluster, what it leaves, the nodes. A pod
        # whose NFS server has gone cannot let go of its files.
        inside = self._after(teardown, nfs)
        soperator = Soperator(spec, provider, inside)
        slurm = SlurmCluster(
            spec,
            provider,
            network,
            host_key,
            deploy_key,
            soperator.releases,
            slack_webhook_url=slack_webhook_url,
            nfs_address=None if nfs is None else nfs.address,
            opts=inside,
        )
        monitoring = None
        if (metrics := soperator.releases.get("metrics")) is not None:
            monitoring = Monitoring(
                spec,
                burn,
                provider,
                metrics=metrics,
                slack_webhook_url=slack_webhook_url,
                opts=inside,
            )
        registry = None if spec.storage.registry_gib is None else Registry(spec, mine)
        configs = None
        if buckets.configs is not None:
            configs = RunConfigs(spec, buckets.configs, root, mine)
        # The claim of the jail is there, and the copies stop before it goes.
        backups, backup = None, spec.storage.backup
        if backup is not None and buckets.backups is not None:
            backups = Backups(spec, backup, buckets.backups, provider, self._after(slurm))
        # A stopped cluster has no door; what it proves and delivers comes back with its pods.
        login = None
        if not is_stopped(spec):
            login = Login(
                spec,
                network,
                host_key,
                deploy_key,
                root=root,
                build_folder=build_folder,
                opts=self._after(slurm),
            )
        # Refuses to be deleted once another state has resources of the stack.
        OwnResource(
            "soperator:cloud:StateGuard",
            f"{name}-guard",
            {**whose, "state_id": self._state.id},
            self._after(teardown, soperator, slurm, monitoring, configs, backups, login),
        )
        port = spec.login.ssh_port
        self.outputs = {
            "login_ip": network.login_ip,
            "ssh_port": port,
            "login_host_key": host_key.public_key,
            "ssh_command": network.login_ip.apply(lambda ip: ssh_command(ip, port)),
            "kubeconfig": kube.kubeconfig,
            "mounts": mounts(spec),
            "places": dict(spec.storage.places),
            "users": {each.name: list(each.ssh_public_keys) for each in members(spec)},
            "code_path": spec.code_path,
            "code_hash": "" if login is None else login.code_hash,
            "jobs": job_commands(spec),
            "nodesets": nodesets(spec),
            "ready": "stopped: no pod of Slurm runs" if login is None else login.ready,
        }
        if registry is not None:
            self.outputs["registry"] = registry.address
        if configs is not None:
            self.outputs["run_configs"] = configs.keys
            self.outputs["run_config_store"] = configs.store
        if backups is not None:
            self.outputs["backup_password"] = backups.password
        self.register_outputs({})

    def _label(
        self, made: pulumi.ResourceTransformationArgs
    ) -> pulumi.ResourceTransformationResult | None:
        """A Nebius resource with the labels of the state that has it and of whose it is."""
        if not made.type_.startswith("nebius:") or made.type_ in UNLABELLED:
            return None
        company = self._spec.nebius.company_name
        whose = {} if company is None else {"company": company}
        labels = {STATE_ID: self._state.id, **whose}
        props: dict[str, Any] = dict(made.props)
        props["metadata"] = {**props["metadata"], "labels": labels}
        return pulumi.ResourceTransformationResult(props, made.opts)


_HALF_WRITTEN: Final = "failed to load checkpoint"
"""The engine writes its state file while the program runs, and not in one step."""
_AGAIN_S: Final = (0.1, 0.3, 1.0)


def deployed_outputs() -> Mapping[str, Any]:
    """Outputs of the last deployment; empty where there was none.

    The engine's own invoke: unlike a StackReference it registers no resource, and it answers in a
    preview. Full name: on a shared backend the default organization may be another.
    """
    parts = (pulumi.get_organization(), pulumi.get_project(), pulumi.get_stack())
    for pause_s in (*_AGAIN_S, None):
        try:
            return _read("/".join(parts))
        except Exception as error:  # what the SDK raises for a failed invoke
            if pause_s is None or _HALF_WRITTEN not in str(error):
                raise
            time.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def _read(name: str) -> Mapping[str, Any]:
    answer = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": name}).value
    return (answer or {}).get("outputs") or {}

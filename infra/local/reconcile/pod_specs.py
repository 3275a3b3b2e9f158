"""Pods as the Soperator operator 4.1.7 renders them: volumes, mounts, init containers, names.

Follows nebius/soperator 4.1.7, internal/render (read 2026-11-22): what a kubelet and the API server
check, in the order of the operator, so that indices in their words are the real ones. Leaves out
what nothing here checks: environment, ports, probes, security contexts. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from infra.local.reconcile.snapshot import Object, name_of
from stacks.machines import JAIL_UPPER, MEMORY

MADE: Final = "local.soperator/made-of"
"""Annotation of what the reconciler makes: a digest of what it was made of."""
KRUISE: Final = ("apps.kruise.io/v1beta1", "StatefulSet")
_HOST_KEYS: Final = tuple(
    f"ssh_host_{kind}_key{suffix}"
    for kind in ("ecdsa", "ed25519", "rsa")
    for suffix in ("", ".pub")
)
_BY_OPERATOR: Final = frozenset(
    ("munge-key", "rest-jwt-key", "slurm-configs", "security-limits", "ssh-root-keys", "sysctl")
)
"""Volumes out of Secrets and ConfigMaps that the operator makes before the pods."""
_IMEX: Final = (
    ("nvidia-imex-cli", "/usr/bin/nvidia-imex-ctl"),
    ("nvidia-imex-config", "/etc/nvidia-imex"),
)
NOT_HERE: Final = frozenset(f"{volume}-jail" for volume, _ in _IMEX)
"""Volumes of a node's own folders that the operator shows in the jail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """What owns equal pods, and their specification."""

    owner: tuple[str, str] = KRUISE
    """apiVersion and kind."""
    name: str
    source: Object
    """The custom resource that it comes from."""
    component: str
    spec: Object
    claims: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Templates of claims: volume and specification."""
    own: frozenset[str] = _BY_OPERATOR
    """Volumes whose Secret or ConfigMap the operator itself makes."""

    @property
    def main(self) -> str:
        """Name of the container that the pod is for."""
        return self.spec["containers"][0]["name"]


@dataclass(slots=True)
class _Pod:
    """A pod while it is rendered."""

    volumes: list[Object] = field(default_factory=list[Object])
    mounts: list[Object] = field(default_factory=list[Object])
    claims: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list[Any])
    own: set[str] = field(default_factory=lambda: set(_BY_OPERATOR))

    def add(self, name: str, path: str = "", source: Mapping[str, Any] | None = None) -> None:
        """A volume, mounted where a path is given."""
        if source is not None:
            self.volumes.append({**source, "name": name})
        if path:
            self.mounts.append({"name": name, "mountPath": path})

    def mount(self, item: Mapping[str, Any], source: Mapping[str, Any] | None, under: str) -> None:
        """A declared mount, with its source or a template of a claim of its own."""
        name = item["name"]
        if source is not None:
            self.volumes.append({**source, "name": name})
        elif (template := item.get("volumeClaimTemplateSpec")) is not None:
            self.claims.append((name, template))
        path = f"{under}/{item['mountPath'].strip('/')}" if under else item["mountPath"]
        made = {"name": name, "mountPath": path}
        extra = {key: item[key] for key in ("subPath", "readOnly") if item.get(key)}
        self.mounts.append(made | extra)


def controller(cluster: Object, sources: Mapping[str, Any], *, accounting: bool) -> PodSet:
    """slurmctld; with accounting it waits for sacctmgr's answer."""
    node, name = cluster["spec"]["slurmNodes"]["controller"], name_of(cluster)
    pod = _Pod()
    _munge(pod, name, f"{name}-controller-security-limits")
    pod.add("rest-jwt-key", "/mnt/rest-jwt-key", _secret(f"{name}-rest-jwt-key", "rest_jwt.key"))
    sssd = _sssd(pod, node, f"{name}-sssd-conf")
    spool = node["volumes"]["spool"]
    if (template := spool.get("volumeClaimTemplateSpec")) is not None:
        pod.claims.append(("controller-spool", template))
        source = None
    else:
        source = sources.get(spool.get("volumeSourceName", ""))
    pod.mounts.insert(0, {"name": "controller-spool", "mountPath": "/var/spool/slurmctld"})
    pod.mounts.insert(1, {"name": "jail", "mountPath": "/mnt/jail"})
    if source is not None:
        pod.add("controller-spool", source=source)
    pod.add("jail", source=sources.get("jail"))
    for item in node["volumes"].get("customMounts") or []:
        pod.mount(item, sources.get(item.get("volumeSourceName", "")), "")
    waits = [_waiter("wait-for-accounting", _image(node["slurmctld"]))] if accounting else []
    return PodSet(
        name="controller",
        source=cluster,
        component="controller",
        spec=_spec(pod, node, "slurmctld", node["slurmctld"], sssd=sssd, waits=waits)
        | {"subdomain": f"{name}-controller-svc"}
        | _filter(cluster, node),
        claims=tuple(pod.claims),
        own=frozenset(pod.own),
    )


def login(cluster: Object, sources: Mapping[str, Any], *, has_host_keys: bool) -> PodSet:
    """sshd; the operator makes host keys that nobody made, and takes a Secret that is there."""
    node, name = cluster["spec"]["slurmNodes"]["login"], name_of(cluster)
    namespace = cluster["metadata"]["namespace"]
    pod = _Pod()
    pod.add("jail", "/mnt/jail")
    _munge(pod, name, f"{name}-login-security-limits")
    _ssh(pod, cluster, node["sshd"], has_host_keys=has_host_keys)
    pod.add("ssh-configs", "/mnt/ssh-configs", _config(f"{name}-ssh-configs"))
    pod.own.add("ssh-configs")
    sssd = _sssd(pod, node, f"{name}-sssd-conf")
    pod.add("jail", source=sources.get("jail"))
    for item in node["volumes"].get("jailSubMounts") or []:
        pod.mount(item, sources.get(item.get("volumeSourceName", "")), JAIL_UPPER)
    for item in node["volumes"].get("customMounts") or []:
        pod.mount(item, sources.get(item.get("volumeSourceName", "")), "")
    return PodSet(
        name="login",
        source=cluster,
        component="login",
        spec=_spec(pod, node, "sshd", node["sshd"], sssd=sssd)
        | {
            "subdomain": f"{name}-login-headless-svc",
            "dnsConfig": {"searches": _searches(name, namespace)},
        }
        | _filter(cluster, node),
        claims=tuple(pod.claims),
        own=frozenset(pod.own),
    )


def worker(cluster: Object, nodeset: Object, *, has_host_keys: bool) -> PodSet:
    """slurmd of a NodeSet; topology/tree gives it a ConfigMap more."""
    node, name, own = nodeset["spec"], name_of(cluster), name_of(nodeset)
    slurmd, volumes = node["slurmd"], node["slurmd"]["volumes"]
    pod = _Pod()
    pod.add("worker-spool", "/var/spool/slurmd")
    pod.add("jail", "/mnt/jail")
    _munge(pod, name, f"{name}-nodeset-{own}-security-limits")
    _ssh(pod, cluster, slurmd, has_host_keys=has_host_keys)
    pod.add("boot", "/boot", _host("/boot"))
    memory = {"medium": "Memory"}
    if "sharedMemorySize" in volumes:
        memory["sizeLimit"] = volumes["sharedMemorySize"]
    pod.add("dev-shm", "/dev/shm", {"emptyDir": memory})  # noqa: S108
    pod.add("sysctl", "/etc/sysctl.conf", _config(f"{name}-sysctl"))
    pod.mounts[-1]["subPath"] = "sysctl.conf"
    for volume, path, key, default in (
        ("supervisord-config", "/etc/supervisor/conf.d/", "configMapRefSupervisord", "supervisord"),
        ("ssh-configs-worker", "/mnt/ssh-configs", "configMapRefSshd", "ssh-configs-worker"),
    ):
        pod.add(volume, path, _config(node.get(key) or f"{name}-{default}"))
        if not node.get(key):
            pod.own.add(volume)
    sssd = _sssd(pod, node, f"{name}-nodeset-{own}-sssd-conf")
    if (node.get("gpu") or {}).get("enabled"):
        pod.add("nvidia", "/run/nvidia", _host("/run/nvidia"))
        for volume, path in _IMEX:
            pod.add(volume, path, _host(path))
            pod.add(f"{volume}-jail", f"{JAIL_UPPER}{path}", _host(path))
    if (cluster["spec"].get("slurmConfig") or {}).get("topologyPlugin", "topology/tree"):
        labels = {"configMap": {"name": "topology-node-labels", "optional": True}}
        pod.add("topology-node-labels", "/tmp/slurm/topology-node-labels", labels)  # noqa: S108
    pod.add("worker-spool", source=volumes["spool"])
    pod.add("jail", source=volumes["jail"])
    for item in volumes.get("jailSubMounts") or []:
        pod.mount(item, item.get("volumeSource"), JAIL_UPPER)
    for item in volumes.get("customVolumeMounts") or []:
        pod.mount(item, item.get("volumeSource"), "")
    spec = _spec(
        pod, node, "slurmd", slurmd, sssd=sssd, waits=[_waiter("worker-init", _image(slurmd))]
    )
    namespace = nodeset["metadata"]["namespace"]
    spec |= {
        "subdomain": f"{name}-nodeset-svc",
        "dnsConfig": {"searches": _searches(name, namespace)},
        "serviceAccountName": f"{name}-worker-sa",
        **{key: node[key] for key in ("nodeSelector", "affinity", "tolerations") if node.get(key)},
    }
    return PodSet(
        name=own,
        source=nodeset,
        component="nodeset",
        spec=spec,
        claims=tuple(pod.claims),
        own=frozenset(pod.own),
    )


def accounting(cluster: Object, sources: Mapping[str, Any]) -> PodSet:
    """slurmdbd, which waits for its database."""
    node, name = cluster["spec"]["slurmNodes"]["accounting"], name_of(cluster)
    pod = _Pod()
    pod.add("jail", source=sources.get("jail"))
    configs = [{"configMap": {"name": f"{name}-slurm-configs"}}]
    pod.add("slurm-configs", "/mnt/slurm-configs", {"projected": {"sources": configs}})
    _munge(pod, name)
    pod.add("rest-jwt-key", "/mnt/rest-jwt-key", _secret(f"{name}-rest-jwt-key", "rest_jwt.key"))
    pod.add("spool", "/var/spool/slurmdbd", {"emptyDir": {}})
    database = node["mariadbOperator"].get("image", "mariadb")
    waits = [{"name": "wait-for-database", "image": database}]
    return PodSet(
        owner=("apps/v1", "ReplicaSet"),
        name="accounting",
        source=cluster,
        component="accounting",
        spec=_spec(pod, node, "accounting", node["slurmdbd"], first=waits)
        | {"hostname": "accounting"}
        | _filter(cluster, node),
        own=frozenset(pod.own),
    )


def database(cluster: Object) -> PodSet:
    """MariaDB, as mariadb-operator 25.10.2 makes it of what the operator asks for."""
    node = cluster["spec"]["slurmNodes"]["accounting"]
    wanted, name = node["mariadbOperator"], f"{name_of(cluster)}-acct-db"
    template = (wanted.get("storage") or {}).get("volumeClaimTemplate")
    mounts = [{"name": "storage", "mountPath": "/var/lib/mysql"}]
    main: Object = {
        "name": "mariadb",
        "image": wanted.get("image", "mariadb"),
        "volumeMounts": mounts,
    }
    main["resources"] = {"requests": dict(wanted.get("resources") or {})}
    empty = [] if template else [{"name": "storage", "emptyDir": {}}]
    return PodSet(
        owner=("apps/v1", "StatefulSet"),
        name=name,
        source=cluster,
        component="mariadb-operator",
        spec={"containers": [main], "volumes": empty, "subdomain": f"{name}-internal"}
        | _filter(cluster, node),
        claims=(("storage", template),) if template else (),
    )


def _munge(pod: _Pod, cluster: str, limits: str | None = None) -> None:
    """What each pod with a program of Slurm has; `limits` is a ConfigMap."""
    pod.add("munge-key", source=_secret(f"{cluster}-munge", "munge.key"))
    pod.add("munge-socket", "/run/munge", {"emptyDir": {}})
    if limits is not None:
        pod.add("security-limits", "/etc/security/limits.conf", _config(limits))
        pod.mounts[-1]["subPath"] = "limits.conf"


def _ssh(pod: _Pod, cluster: Object, container: Mapping[str, Any], *, has_host_keys: bool) -> None:
    """What login and worker pods have in common for sshd, and the tmpfs of jobs."""
    name = name_of(cluster)
    keys = (cluster["spec"].get("secrets") or {}).get("sshdKeysName") or f"{name}-sshd-keys"
    pod.add("sshd-keys", "/etc/ssh/sshd_keys", _secret(keys, *_HOST_KEYS))
    if not has_host_keys:
        pod.own.add("sshd-keys")
    pod.add("ssh-root-keys", "/root/.ssh/authorized_keys", _config(f"{name}-ssh-root-keys"))
    pod.mounts[-1]["subPath"] = "authorized_keys"
    memory: Object = {"medium": "Memory"}
    if limit := (container.get("resources") or {}).get("memory"):
        memory["sizeLimit"] = limit
    pod.add("in-memory", f"{JAIL_UPPER}{MEMORY}", {"emptyDir": memory})
    pod.add("tmp-disk", "/tmp", {"emptyDir": {}})  # noqa: S108


def _sssd(pod: _Pod, node: Mapping[str, Any], default: str) -> Sequence[Object]:
    """The sidecar, where it is declared, with the Secret and the ConfigMap that it reads."""
    if not node.get("sssd"):
        return ()
    secret = node.get("sssdConfSecretRefName")
    pod.add("sssd-socket", "/var/lib/sss/pipes", {"emptyDir": {}})
    pod.add("sssd-conf", "/etc/sssd", {"secret": {"secretName": secret or default}})
    if not secret:
        pod.own.add("sssd-conf")
    mounts = [dict(pod.mounts[-1]), dict(pod.mounts[-2])]
    if config := node.get("sssdLdapCAConfigMapRefName"):
        pod.add("sssd-ldap-ca", source=_config(config))
        mounts.append({"name": "sssd-ldap-ca", "mountPath": "/mnt/ldapCA"})
    return ({**_sidecar("sssd", node["sssd"]), "volumeMounts": mounts},)


def _spec(
    pod: _Pod,
    node: Mapping[str, Any],
    name: str,
    container: Mapping[str, Any],
    *,
    sssd: Sequence[Object] = (),
    first: Sequence[Object] = (),
    waits: Sequence[Object] = (),
) -> Object:
    munge = [
        {"name": "munge-key", "mountPath": "/mnt/munge-key", "readOnly": True},
        {"name": "munge-socket", "mountPath": "/run/munge"},
    ]
    amounts = dict(container.get("resources") or {})
    limits = amounts if name == "slurmd" else {k: v for k, v in amounts.items() if k != "cpu"}
    return {
        "initContainers": [
            *(dict(each) for each in node.get("customInitContainers") or ()),
            *first,
            {**_sidecar("munge", node["munge"]), "volumeMounts": munge},
            *sssd,
            *waits,
        ],
        "containers": [
            {
                "name": name,
                "image": _image(container),
                "volumeMounts": pod.mounts,
                "resources": {"requests": amounts, "limits": limits},
            }
        ],
        "volumes": pod.volumes,
    }


def _filter(cluster: Object, node: Mapping[str, Any]) -> Object:
    """Selector, affinity and tolerations of the node filter that the component names."""
    filters = {item["name"]: item for item in cluster["spec"]["k8sNodeFilters"]}
    chosen = filters.get(node["k8sNodeFilterName"], {})
    keys = ("nodeSelector", "affinity", "tolerations")
    return {key: chosen[key] for key in keys if chosen.get(key)}


def _searches(cluster: str, namespace: str) -> list[str]:
    """DNS search domains that make `worker-0` and `login-0` names."""
    services = (f"{cluster}-nodeset-svc", f"{cluster}-login-headless-svc")
    return [f"{service}.{namespace}.svc.cluster.local" for service in services]


def _sidecar(name: str, container: Mapping[str, Any]) -> Object:
    return {
        "name": name,
        "image": _image(container),
        "restartPolicy": "Always",
        "resources": {"requests": dict(container.get("resources") or {})},
    }


def _waiter(name: str, image: str) -> Object:
    mounts = [
        {"name": "jail", "mountPath": "/mnt/jail"},
        {"name": "munge-socket", "mountPath": "/run/munge"},
    ]
    return {"name": name, "image": image, "volumeMounts": mounts}


def _image(container: Mapping[str, Any]) -> str:
    image = container.get("image") or "unknown"
    return (
        image if isinstance(image, str) else f"{image['repository']}:{image.get('tag', 'latest')}"
    )


def _secret(name: str, *keys: str) -> Object:
    return {"secret": {"secretName": name, "items": [{"key": key, "path": key} for key in keys]}}


def _config(name: str) -> Object:
    return {"configMap": {"name": name}}


def _host(path: str) -> Object:
    return {"hostPath": {"path": path, "type": ""}}

"""The resource `soperator:kube:CustomResources`: definitions of a chart, upgraded with its version.

Stands before the chart's release, which is told to skip them. Its delete forgets them: they end
with the kube cluster, and without them every object of their kinds would end before.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Final
from urllib.parse import urljoin

import urllib3
import yaml

from infra.clients.errors import KubeError, UnreachableError
from infra.clients.kube import KubeClient, read_kubeconfig
from infra.clients.kube_rules import holds, name_of
from infra.providers.engine.provider import TEXT, UNKNOWN, Found, Provider, ProviderError, Values
from infra.providers.nebius.sdk import ENDPOINT_VARIABLE
from infra.render.names import kube_object
from stacks.errors import UserError

TYPE: Final = "soperator:kube:CustomResources"
_TEXTS: Final = ("chart", "version", "group", "kubeconfig")
_REPOSITORY: Final = "repository"
"""Of a chart that lies in no registry."""
_DIGESTS: Final = "definitions"
_YAML: Final = (".yaml", ".yml")


class CustomResourcesProvider(Provider):
    """Definitions of custom resources by chart and version."""

    rules: ClassVar = {**dict.fromkeys(_TEXTS, TEXT), _REPOSITORY: replace(TEXT, optional=True)}
    outputs: ClassVar = {_DIGESTS: UNKNOWN}

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """Applies the definitions; the id is the chart's name."""
        return inputs["chart"].rpartition("/")[2], self._applied(urn, inputs)

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        """Applies those of the new version over the old ones."""
        return self._applied(urn, new)

    def read(self, id: str, state: Values, inputs: Values) -> Found | None:
        """As it was, or None where the API server lacks one of them."""
        try:
            client = KubeClient(read_kubeconfig(state["kubeconfig"]))
            gone = missing(client, state.get(_DIGESTS) or {})
        except UnreachableError:
            return id, state, inputs
        except KubeError as error:
            raise ProviderError(f"custom resources of {id}: {error}") from error
        return None if gone else (id, state, inputs)

    def _applied(self, urn: str, inputs: Values) -> Values:
        try:
            crds = crds_of(
                inputs["chart"],
                inputs["version"],
                group=inputs["group"],
                repository=inputs.get(_REPOSITORY, ""),
            )
            client = KubeClient(read_kubeconfig(inputs["kubeconfig"]))
            apply_crds(
                client,
                crds,
                cancelled=self.cancelled,
                say=lambda line: self.engine.info(urn, line),
            )
        except (KubeError, LostVersionError) as error:
            what = f"custom resources of {inputs['chart']} {inputs['version']}"
            raise ProviderError(f"{what}: {error}") from error
        return {**inputs, _DIGESTS: dict(digests(crds))}


Object = dict[str, Any]
FOLDER: Final = "SOPERATOR_CRDS"
"""Variable that `soperator env` sets for the embedded cloud, whose charts come from no registry."""
KIND: Final = "CustomResourceDefinition"


def crds_of(
    source: str, version: str, *, group: str, repository: str = "", scheme: str = "https"
) -> list[Object]:
    """Every CustomResourceDefinition of a chart, sorted by name.

    The folder has those of all charts, of which `group` are this one's; of a chart that the
    embedded cloud only records it has none.
    """
    # A forgotten variable must not bring an emulated cloud's reduced definitions to a real one.
    folder = os.environ.get(FOLDER) if os.environ.get(ENDPOINT_VARIABLE) else None
    if folder:
        if not Path(folder).is_dir():
            raise ChartError(f"{FOLDER}={folder}: no such folder; run `soperator env` again")
        texts = (path.read_bytes() for path in sorted(Path(folder).glob("*.yaml")))
        ours = [crd for crd in _definitions(texts) if crd["spec"]["group"] == group]
        return sorted(ours, key=name_of)
    what = f"{source} {version}"
    archive = archive_of(source, version, repository=repository, scheme=scheme)
    found = _definitions(_files_of(archive, what))
    if not found:
        raise ChartError(f"{what}: no {KIND} in it; is it a chart with a folder crds/?")
    return sorted(found, key=name_of)


def _definitions(files: Iterable[bytes]) -> list[Object]:
    return [
        document
        for text in files
        for document in yaml.load_all(text, Loader=LOADER)
        if isinstance(document, dict) and document.get("kind") == KIND
    ]


def _files_of(archive: bytes, what: str) -> Iterator[bytes]:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar:
                # Of `<chart>/crds/`; charts inside of a chart have releases here.
                parts, is_yaml = PurePosixPath(member.name).parts, member.name.endswith(_YAML)
                if member.isfile() and is_yaml and len(parts) > 2 and parts[1] == "crds":
                    content = tar.extractfile(member)
                    assert content is not None
                    yield content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ChartError(f"{what}: its archive cannot be read: {error}") from error


_OCI: Final = re.compile(r"oci://(?P<host>[^/]+)/(?P<name>.+)")
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=30.0)
_RETRIES: Final = urllib3.Retry(
    3, backoff_factor=0.5, status_forcelist=(429, 502, 503, 504), raise_on_status=False
)
_MOST_BYTES: Final = 32 << 20
"""Of one chart or index; helm-soperator 4.1.7 has about 1 MB."""
_ANY: Final = ".*"
_ABSENT: Final = (
    "the registry has no such version; set cluster.soperator_version to a released one "
    "(github.com/nebius/soperator)"
)
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ChartError(UserError):
    """A chart that cannot be read; one line, with what to do."""


def archive_of(source: str, version: str, *, repository: str = "", scheme: str = "https") -> bytes:
    """The .tgz of a chart: `oci://HOST/NAME`, or its name in a repository."""
    with urllib3.PoolManager(timeout=_TIMEOUT, retries=_RETRIES) as http:
        if repository:
            url, digest = _found(http, repository, source, version)
            gone = f"{url} is not there; run the command again, or ask whoever keeps {repository}"
            archive = _get(http, url, "*/*", f"{source} {version}", absent=gone)
        else:
            archive, digest = _from_registry(http, source, version, scheme)
    if digest and f"sha256:{hashlib.sha256(archive).hexdigest()}" != digest:
        raise ChartError(f"{source} {version}: what came is not {digest}; run the command again")
    return archive


def _from_registry(
    http: urllib3.PoolManager, source: str, version: str, scheme: str
) -> tuple[bytes, str]:
    place = _OCI.fullmatch(source)
    if place is None:
        raise ChartError(f"{source}: is no chart in a registry, such as oci://HOST/NAME")
    root = f"{scheme}://{place['host']}/v2/{place['name']}"
    what = f"{source} {version}"
    address = f"{root}/manifests/{version}"
    text = _get(http, address, _MANIFEST, what)
    with _reading(what, address):
        manifest = json.loads(text)
        digests = [
            str(each["digest"])
            for each in manifest.get("layers", [])
            if each["mediaType"] == _CONTENT
        ]
    if not digests:
        raise ChartError(f"{what}: is no Helm chart")
    digest = digests[0]
    return _get(http, f"{root}/blobs/{digest}", "*/*", what), digest


def _found(http: urllib3.PoolManager, repository: str, name: str, version: str) -> tuple[str, str]:
    """Address and digest of a version in a repository's index; the digest may be empty."""
    base = f"{repository.rstrip('/')}/"
    what = f"{name} {version}"
    gone = f"{base}index.yaml is not there; is it still a repository of charts?"
    text = _get(http, f"{base}index.yaml", "*/*", what, absent=gone)
    with _reading(what, f"{base}index.yaml"):
        index = yaml.load(text, Loader=LOADER)  # noqa: S506  # a safe one
        entries: list[dict[str, Any]] = (index["entries"] or {}).get(name) or []
        fitting = [each for each in entries if _fits(str(each["version"]), version)]
        if not fitting:
            raise ChartError(f"{what}: {repository} has no such version; see {base}index.yaml")
        chosen = max(
            fitting, key=lambda each: [*map(int, re.findall(r"\d+", str(each["version"])))]
        )
        digest = str(chosen.get("digest") or "")
        if digest and ":" not in digest:
            digest = f"sha256:{digest}"
        return urljoin(base, chosen["urls"][0]), digest


@contextmanager
def _reading(what: str, address: str) -> Iterator[None]:
    """Tells in a line of an answer that is something else, such as a proxy's page with 200."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ChartError(
            f"{what}: {address} answers with something else; is a proxy or a login in between?"
        ) from error


def _fits(version: str, wanted: str) -> bool:
    """Whether a version is the wanted one; a star takes no pre-release, as in Helm."""
    if not wanted.endswith(_ANY):
        return version.removeprefix("v") == wanted.removeprefix("v")
    start = wanted.removesuffix(_ANY).removeprefix("v")
    return version.removeprefix("v").startswith(f"{start}.") and not re.search("[-+]", version)


def _get(
    http: urllib3.PoolManager, url: str, accept: str, what: str, *, absent: str = _ABSENT
) -> bytes:
    headers = {"Accept": accept}
    try:
        response = http.request("GET", url, headers=headers, preload_content=False)
        if response.status == 401:
            token = _token(http, response.headers.get("WWW-Authenticate", ""))
            response.release_conn()
            headers["Authorization"] = f"Bearer {token}"
            response = http.request("GET", url, headers=headers, preload_content=False)
        body = response.read(_MOST_BYTES + 1)
        response.release_conn()
    except urllib3.exceptions.HTTPError as error:
        raise ChartError(f"{what}: no answer from the registry: {type(error).__name__}") from error
    if response.status == 404:
        raise ChartError(f"{what}: {absent}")
    if response.status != 200:
        raise ChartError(f"{what}: the registry answers HTTP {response.status}")
    if len(body) > _MOST_BYTES:
        raise ChartError(f"{what}: more than {_MOST_BYTES} bytes; is it a chart?")
    return body


def _token(http: urllib3.PoolManager, challenge: str) -> str:
    """What a registry gives to everybody who asks at the address that it names."""
    asked = dict(_CHALLENGE.findall(challenge))
    realm = asked.pop("realm", "")
    if not realm:
        raise ChartError("the registry wants a login of a kind that is not known here")
    response = http.request("GET", realm, fields=asked)
    if response.status != 200:
        raise ChartError(f"the registry's token: HTTP {response.status}")
    with _reading("the registry's token", realm):
        answer = json.loads(response.data)
        return str(answer.get("token") or answer.get("access_token") or "")


_READY_S: Final = 60.0


class LostVersionError(Exception):
    """Definitions that no longer have a version in which objects are stored."""


def apply_crds(
    client: KubeClient,
    crds: Iterable[Object],
    *,
    cancelled: threading.Event | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Applies all of them and returns once their kinds are served; refuses before the first."""
    wanted = list(crds)
    live = {name_of(crd): client.get(crd) for crd in wanted}
    if problems := [line for crd in wanted for line in _lost(live[name_of(crd)], crd)]:
        raise LostVersionError("; ".join(problems))
    for crd in wanted:
        client.apply(crd)
        name = name_of(crd)
        say(f"{name}: {'upgraded' if live[name] is not None else 'made'}")
    for crd in wanted:
        client.wait_for(
            crd,
            "the kind to be served",
            lambda live: holds(live, "Established"),
            timeout_s=_READY_S,
            cancelled=cancelled,
        )
    client.forget_kinds()


def missing(client: KubeClient, names: Iterable[str]) -> list[str]:
    """Which of the definitions the API server does not have."""
    asked = {name: kube_object("apiextensions.k8s.io/v1", KIND, name) for name in names}
    return [name for name, each in asked.items() if client.get(each) is None]


def digests(crds: Iterable[Object]) -> Mapping[str, str]:
    """Name -> what stands for the definition's content."""
    return {
        name_of(crd): hashlib.sha256(
            json.dumps(crd["spec"], sort_keys=True, default=str).encode()
        ).hexdigest()[:16]
        for crd in crds
    }


def _lost(live: Object | None, crd: Object) -> Iterable[str]:
    """Versions that the API server has stored objects in and the new definition has no more."""
    if live is None:
        return
    stored = live.get("status", {}).get("storedVersions", [])
    lost = set(stored) - {version["name"] for version in crd["spec"]["versions"]}
    if lost:
        name = name_of(crd)
        yield (
            f"{name}: objects are stored as {', '.join(sorted(lost))}, which the new definition "
            "does not have; write them anew in a version of both, take it out of "
            "status.storedVersions, then run the command again"
        )

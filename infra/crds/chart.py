"""The custom resources that a Helm chart brings: crds_of(source, version), from its folder crds/.

Pulls the chart from its OCI registry as Helm does and reads plain YAML: Helm renders no template in
crds/. On an emulated cloud, the folder of SOPERATOR_CRDS takes the place of the registry.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import urllib3
import yaml

from infra.nebius.sdk import ENDPOINT_VARIABLE

Object = dict[str, Any]
FOLDER: Final = "SOPERATOR_CRDS"
"""Variable that `soperator env` sets for the embedded cloud, whose charts come from no registry."""
KIND: Final = "CustomResourceDefinition"
_OCI: Final = re.compile(r"oci://(?P<host>[^/]+)/(?P<name>.+)")
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=30.0)
_RETRIES: Final = urllib3.Retry(3, backoff_factor=0.5, status_forcelist=(429, 502, 503, 504))
_MOST_BYTES: Final = 32 << 20
"""Of one chart; helm-soperator 4.1.7 has about 1 MB."""
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ChartError(Exception):
    """A chart that cannot be read; one line, with what to do."""


def crds_of(source: str, version: str, scheme: str = "https") -> list[Object]:
    """Every CustomResourceDefinition of the chart `oci://HOST/NAME`, sorted by name."""
    # A forgotten variable must not bring an emulated cloud's reduced definitions to a real one.
    folder = os.environ.get(FOLDER) if os.environ.get(ENDPOINT_VARIABLE) else None
    files = _files_in(Path(folder)) if folder else _files_of(source, version, scheme)
    found = [
        document
        for text in files
        for document in yaml.load_all(text, Loader=_LOADER)
        if isinstance(document, dict) and document.get("kind") == KIND
    ]
    if not found:
        raise ChartError(f"{folder or source}: no {KIND} in it; is it a chart with a folder crds/?")
    return sorted(found, key=lambda crd: crd["metadata"]["name"])


def _files_in(folder: Path) -> Iterator[bytes]:
    if not folder.is_dir():
        raise ChartError(f"{FOLDER}={folder}: no such folder; run `soperator env` again")
    for path in sorted(folder.glob("*.yaml")):
        yield path.read_bytes()


def _files_of(source: str, version: str, scheme: str) -> Iterator[bytes]:
    place = _OCI.fullmatch(source)
    if place is None:
        raise ChartError(f"{source}: is no chart in a registry, such as oci://HOST/NAME")
    root = f"{scheme}://{place['host']}/v2/{place['name']}"
    what = f"{source} {version}"
    with urllib3.PoolManager(timeout=_TIMEOUT, retries=_RETRIES) as http:
        manifest = json.loads(_get(http, f"{root}/manifests/{version}", _MANIFEST, what))
        layers = [each for each in manifest.get("layers", []) if each["mediaType"] == _CONTENT]
        if not layers:
            raise ChartError(f"{what}: is no Helm chart")
        digest = layers[0]["digest"]
        archive = _get(http, f"{root}/blobs/{digest}", "*/*", what)
    if f"sha256:{hashlib.sha256(archive).hexdigest()}" != digest:
        raise ChartError(f"{what}: what came is not {digest}; run the command again")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar:
                if member.isfile() and _is_crd(member.name):
                    content = tar.extractfile(member)
                    assert content is not None
                    yield content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ChartError(f"{what}: its archive cannot be read: {error}") from error


def _is_crd(name: str) -> bool:
    """Whether the file is one of `<chart>/crds/`; charts inside of a chart have releases here."""
    parts = PurePosixPath(name).parts
    return len(parts) > 2 and parts[1] == "crds" and name.endswith((".yaml", ".yml"))


def _get(http: urllib3.PoolManager, url: str, accept: str, what: str) -> bytes:
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
        raise ChartError(
            f"{what}: the registry has no such version; set cluster.soperator_version to a "
            "released one (github.com/nebius/soperator)"
        )
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
    answer = json.loads(http.request("GET", realm, fields=asked).data)
    return str(answer.get("token") or answer.get("access_token") or "")

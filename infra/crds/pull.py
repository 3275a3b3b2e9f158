"""The archive of a Helm chart: archive_of(source, version, repository=...) -> bytes, as Helm does.

Owns registries (OCI), repositories (an index.yaml over HTTP) and the check of what came against its
digest. A version such as `4.8.*` means the newest of a repository that starts so, as for Helm.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urljoin

import urllib3
import yaml

_OCI: Final = re.compile(r"oci://(?P<host>[^/]+)/(?P<name>.+)")
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=30.0)
_RETRIES: Final = urllib3.Retry(3, backoff_factor=0.5, status_forcelist=(429, 502, 503, 504))
_MOST_BYTES: Final = 32 << 20
"""Of one chart or index; helm-soperator 4.1.7 has about 1 MB."""
_ANY: Final = ".*"
_ABSENT: Final = (
    "the registry has no such version; set cluster.soperator_version to a released one "
    "(github.com/nebius/soperator)"
)
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ChartError(Exception):
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
        chosen = max(fitting, key=lambda each: _order(str(each["version"])))
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


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


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
    text = http.request("GET", realm, fields=asked).data
    with _reading("the registry's token", realm):
        answer = json.loads(text)
        return str(answer.get("token") or answer.get("access_token") or "")

"""The custom resources that a Helm chart brings: crds_of(source, version), from its folder crds/.

Reads plain YAML: Helm renders no template in crds/. On an emulated cloud, the folder of
SOPERATOR_CRDS takes the place of registry and repository. pull.py owns those.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from infra.crds.pull import LOADER, ChartError, archive_of
from infra.nebius.sdk import ENDPOINT_VARIABLE

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
        ours = [crd for crd in _definitions(_files_in(Path(folder))) if _group(crd) == group]
        return sorted(ours, key=_name)
    what = f"{source} {version}"
    archive = archive_of(source, version, repository=repository, scheme=scheme)
    found = _definitions(_files_of(archive, what))
    if not found:
        raise ChartError(f"{what}: no {KIND} in it; is it a chart with a folder crds/?")
    return sorted(found, key=_name)


def _definitions(files: Iterator[bytes]) -> list[Object]:
    return [
        document
        for text in files
        for document in yaml.load_all(text, Loader=LOADER)
        if isinstance(document, dict) and document.get("kind") == KIND
    ]


def _files_in(folder: Path) -> Iterator[bytes]:
    if not folder.is_dir():
        raise ChartError(f"{FOLDER}={folder}: no such folder; run `soperator env` again")
    for path in sorted(folder.glob("*.yaml")):
        yield path.read_bytes()


def _files_of(archive: bytes, what: str) -> Iterator[bytes]:
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


def _name(crd: Object) -> str:
    return crd["metadata"]["name"]


def _group(crd: Object) -> str:
    return crd["spec"]["group"]

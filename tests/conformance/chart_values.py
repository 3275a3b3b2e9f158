"""What the conformance asks of Helm beside a rendering: idle values, and installations."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from infra.operate.conformance.sources import Helm, RenderError


class Leaf(NamedTuple):
    """One value of a release that has no values inside."""

    path: tuple[str | int, ...]
    value: Any

    @property
    def name(self) -> str:
        """The path as people write it: `slurmNodes.login.size`, `nodesets.0.name`."""
        return ".".join(map(str, self.path))


def leaves(values: Any, path: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    """Every value without values inside, empty mappings and lists among them."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from leaves(value, (*path, key))
    elif isinstance(values, list) and values:
        for index, value in enumerate(values):
            yield from leaves(value, (*path, index))
    elif path:
        yield Leaf(path, values)


def without_effect(
    helm: Helm, chart: Path, release: str, namespace: str, values: Mapping[str, Any]
) -> list[Leaf]:
    """Values whose change leaves the rendering as it was: unknown names, or used by nothing."""
    base = helm.text(chart, release, namespace, values)

    def is_idle(leaf: Leaf) -> bool:
        try:
            return helm.text(chart, release, namespace, changed(values, leaf)) == base
        except RenderError as error:
            # A refused value is one that the chart reads; a Helm that hangs says nothing of it.
            if isinstance(error.__cause__, subprocess.TimeoutExpired):
                raise
            return False

    every = list(leaves(values))
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        idle = list(threads.map(is_idle, every))
    return [leaf for leaf, is_it in zip(every, idle, strict=True) if is_it]


def changed(values: Mapping[str, Any], leaf: Leaf) -> dict[str, Any]:
    """The values with another one at this leaf, of its own type as far as it has one."""
    result = copy.deepcopy(dict(values))
    holder: Any = result
    for step in leaf.path[:-1]:
        holder = holder[step]
    holder[leaf.path[-1]] = _other(leaf.value)
    return result


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        # Charts compare such texts.
        return {"true": "false", "false": "true"}.get(value, f"{value}zz")
    return ["zz"] if isinstance(value, list) else {"zz": "zz"}


def install(
    helm: Helm,
    chart: Path,
    release: str,
    namespace: str,
    values: Mapping[str, Any],
    *,
    folder: Path,
    kubeconfig: Path,
) -> None:
    """Into a cluster, without hooks; RenderError where it refuses, the record may stay."""
    file = folder / f"{release}.json"
    file.write_text(json.dumps(values))
    given = ["--namespace", namespace, "--create-namespace", "--values", str(file)]
    where = ["--kubeconfig", str(kubeconfig), "--no-hooks", "--skip-crds"]
    helm.run(["install", release, str(helm.copied(chart)), *given, *where])

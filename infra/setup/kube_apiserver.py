"""The embedded cloud's Kubernetes API server: the one on PATH, else a build from Go modules."""

from __future__ import annotations

import shutil

from infra.local.state import KUBE_APISERVER_VERSION, Cache
from infra.setup import go_build
from infra.setup.step import Progress, Step, whole_folder

_VERSION_PACKAGE = "k8s.io/component-base/version"


def step(cache: Cache) -> Step:
    """Make sure that a kube-apiserver can be run."""
    return Step(
        name=f"kube-apiserver v{KUBE_APISERVER_VERSION}",
        expect="about 8 minutes of building on 2 cores, once",
        done=lambda: shutil.which("kube-apiserver") is not None or cache.kube_apiserver.exists(),
        run=lambda progress: _build(cache, progress),
    )


def _build(cache: Cache, progress: Progress) -> None:
    major, minor, _ = KUBE_APISERVER_VERSION.split(".")
    with whole_folder(cache.kube_apiserver.parent) as folder:
        go_build.build(
            "kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-apiserver",
            folder / "kube-apiserver",
            progress,
            variables={
                f"{_VERSION_PACKAGE}.gitVersion": f"v{KUBE_APISERVER_VERSION}",
                f"{_VERSION_PACKAGE}.gitMajor": major,
                f"{_VERSION_PACKAGE}.gitMinor": minor,
            },
        )

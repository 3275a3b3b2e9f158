"""A claim that is made anew waits for its volume, as it would on the cloud."""

from __future__ import annotations

from typing import Any, cast

import pytest

from infra.clients.kube import KubeClient
from infra.local.reconcile.__main__ import bind_claims
from infra.local.reconcile.snapshot import Object, Snapshot
from tests.unit.local.test_volumes import claim, volume


class Server:
    """Keeps what is patched, as far as claims and volumes are."""

    def merge_patch(self, target: Object, patch: Any, *, subresource: str | None = None) -> None:
        for part, values in patch.items():
            live = target.setdefault(part, {})
            for key, value in values.items():
                if value is None:
                    live.pop(key, None)
                elif isinstance(value, dict):
                    live[key] = {**live.get(key, {}), **value}
                else:
                    live[key] = value


def with_uid(uid: str) -> Object:
    made = claim()
    made["metadata"]["uid"] = uid
    return made


def bind(*objects: Object) -> None:
    bind_claims(cast(KubeClient, Server()), Snapshot.of(objects))


@pytest.mark.parametrize("is_prebound", [True, False])
def test_a_volume_stays_with_the_claim_that_had_it_until_somebody_lets_go(
    is_prebound: bool,
) -> None:
    first, kept = with_uid("first"), volume()
    if not is_prebound:
        del kept["spec"]["claimRef"]
    bind(first, kept)
    assert first["status"]["phase"] == kept["status"]["phase"] == "Bound"
    assert kept["spec"]["claimRef"]["uid"] == "first"

    bind(kept)
    assert kept["status"]["phase"] == "Released"
    second = with_uid("second")
    bind(second, kept)
    assert "status" not in second
    assert kept["status"]["phase"] == "Released"

    del kept["spec"]["claimRef"]["uid"]
    bind(second, kept)
    assert second["status"]["phase"] == kept["status"]["phase"] == "Bound"
    assert kept["spec"]["claimRef"]["uid"] == "second"


def test_a_claim_that_is_on_its_way_out_still_has_its_volume() -> None:
    leaving, kept = with_uid("first"), volume()
    bind(leaving, kept)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    bind(leaving, kept)
    assert kept["status"]["phase"] == "Bound"


def test_objects_are_listed_again_once_anything_has_changed() -> None:
    kept = claim()

    class Client:
        """An API server that says how often it was asked for a list."""

        revision_now, num_lists = "7", 0

        def revision(self) -> str:
            return self.revision_now

        def list(self, version: str, kind: str) -> list[Object]:
            self.num_lists += 1
            return [kept] if kind == "PersistentVolumeClaim" else []

    server = Client()
    client = cast(KubeClient, server)
    first = Snapshot.read(client, Snapshot())
    again, asked = Snapshot.read(client, first), server.num_lists
    server.revision_now = "8"
    other = Snapshot.read(client, again)
    assert (again is first, other is first) == (True, False)
    assert asked * 2 == server.num_lists
    assert first.all("PersistentVolumeClaim") == other.all("PersistentVolumeClaim") == [kept]

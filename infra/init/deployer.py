"""Who deploys and where the state lies: a service account of its own and a versioned bucket.

Owns their names, rights and keys. The account gets one role, `editor`, on one project; the official
recipe makes its account an editor of the whole tenant. Everything is looked for before it is made.
Keys end after 90 days; a new run makes new ones in their last two weeks. Does not write files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from infra.init.calls import Calls

ACCOUNT: Final = "soperator-deployer"
ROLE: Final = "editor"
_KEY_LIFE: Final = timedelta(days=90)
KEY_LAST: Final = timedelta(days=14)
"""A key that ends sooner is replaced by the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the account: its id at the API and its day of end."""

    id: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket and the host that serves it."""

    name: str
    domain_name: str


@dataclass(slots=True)
class Deployer:
    """Finds or makes what a project needs before its first stack; `made` names what was new."""

    calls: Calls
    tenant_id: str
    project_id: str
    made: list[str]

    def account(self) -> str:
        """Id of the service account, with its rights."""
        account = self._named(
            "iam.v1.ServiceAccountService",
            self.project_id,
            ACCOUNT,
            {"description": "deploys soperator-stack"},
        )
        group = self._named(
            "iam.v1.GroupService", self.tenant_id, f"{ACCOUNT}-{self.project_id[-8:]}", {}
        )
        self._child(
            "iam.v1.GroupMembershipService",
            "ListMembers",
            group,
            {"member_id": account},
            lambda found: found.spec.member_id == account,
        )
        self._child(
            "iam.v1.AccessPermitService",
            "List",
            group,
            {"resource_id": self.project_id, "role": ROLE},
            lambda found: (found.spec.resource_id, found.spec.role) == (self.project_id, ROLE),
        )
        return account

    def bucket(self) -> Bucket:
        """The bucket of the state; every version of an object stays."""
        # Bucket names are unique over all tenants.
        owner = hashlib.sha256(f"{self.tenant_id}/{self.project_id}".encode()).hexdigest()[:16]
        name = f"soperator-state-{owner}"
        service = "storage.v1.BucketService"
        id_ = self._named(service, self.project_id, name, {"versioning_policy": "ENABLED"})
        found = self.calls.get(service, "Get", id=id_)
        return Bucket(name=name, domain_name=found.status.domain_name)

    def is_good(self, service: str, key: Key | None) -> bool:
        """Whether the API still has the key and it does not end soon."""
        if key is None or key.expires_at - datetime.now(UTC) < KEY_LAST:
            return False
        found = self.calls.find(
            service, "List", {"parent_id": self.project_id}, lambda one: one.metadata.id == key.id
        )
        return found is not None

    def public_key(self, account: str, pem: str) -> Key:
        """Registers the public half of a key that the account signs in with."""
        return self._key("iam.v1.AuthPublicKeyService", account, {"data": pem})

    def access_key(self, account: str) -> tuple[Key, str, str]:
        """A key of the account for object storage: itself, its S3 id and its secret."""
        service = "iam.v2.AccessKeyService"
        key = self._key(service, account, {"secret_delivery_mode": "EXPLICIT"})
        secret = self.calls.get(service, "GetSecret", id=key.id).secret
        s3_id = self.calls.get(service, "Get", id=key.id).status.aws_access_key_id
        return key, s3_id, secret

    def _key(self, service: str, account: str, spec: dict[str, Any]) -> Key:
        expires_at = (datetime.now(UTC) + _KEY_LIFE).replace(microsecond=0)
        name = f"{ACCOUNT}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        id_ = self.calls.create(
            service,
            {"parent_id": self.project_id, "name": name},
            {
                **spec,
                "account": {"service_account": {"id": account}},
                "description": "soperator init",
                "expires_at": expires_at.isoformat().replace("+00:00", "Z"),
            },
        )
        self.made.append(f"{id_} (until {expires_at:%Y-%m-%d})")
        return Key(id=id_, expires_at=expires_at)

    def _named(self, service: str, parent_id: str, name: str, spec: dict[str, Any]) -> str:
        found = self.calls.find(
            service, "List", {"parent_id": parent_id}, lambda one: one.metadata.name == name
        )
        if found is not None:
            return found.metadata.id
        id_ = self.calls.create(service, {"parent_id": parent_id, "name": name}, spec)
        self.made.append(f"{id_} ({name})")
        return id_

    def _child(
        self, service: str, method: str, group: str, spec: dict[str, Any], fits: Any
    ) -> None:
        if self.calls.find(service, method, {"parent_id": group}, fits) is None:
            self.made.append(self.calls.create(service, {"parent_id": group}, spec))

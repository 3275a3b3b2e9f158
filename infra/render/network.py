"""The address of the login node: spec -> what the API takes. Pure."""

from __future__ import annotations

from typing import Any

from stacks.spec import StackSpec


def login_allocation(spec: StackSpec, *, subnet_id: Any) -> tuple[str, dict[str, Any]]:
    """Name inside the stack and AllocationSpec; another kind of address is another allocation."""
    if spec.login.public_ip:
        return "login", {"ipv4_public": {"subnet_id": subnet_id}}
    return "login-private", {"ipv4_private": {"subnet_id": subnet_id}}

"""`soperator resume`: brings the workers back into a stack file; `pulumi up` acts on it."""

from __future__ import annotations

from infra.cli.context import StackOption
from infra.cli.pause import switch
from infra.state import DEFAULT_STACK


def command(stack: StackOption = DEFAULT_STACK) -> None:
    """Resume a paused stack: the workers that it declares come back."""
    switch(stack, paused=False)

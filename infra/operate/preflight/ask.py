"""Pre-flight check of a stack: every question at once, answered within 5 s or not at all.

    findings = ask(spec, project="soperator-stack")
    refusal(findings), doubts(findings), in_short(findings)

Reads only. An API that is down, slow or unknown is NOT CHECKED and never stops anybody; what is
certain to fail does, before the first resource is made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from infra.operate.preflight import access, supply
from infra.operate.preflight.check import Cloud, Finding, Outcome, Owner, not_checked
from infra.providers.nebius.api import ApiError
from infra.providers.nebius.sdk import EndpointError
from stacks.spec import StackSpec

WITHIN_S: Final = 5.0
Question = Callable[[Cloud, StackSpec, Owner], list[Finding]]
QUESTIONS: Final[dict[str, Question]] = {
    access.CREDENTIAL_CHECK: access.ask_account,
    access.EXPIRY_CHECK: access.ask_expiry,
    access.PERMISSION_CHECK: access.ask_permissions,
    supply.QUOTA_CHECK: supply.ask_quotas,
    supply.CAPACITY_CHECK: supply.ask_capacity,
    supply.PLATFORM_CHECK: supply.ask_platforms,
    supply.VERSION_CHECK: supply.ask_versions,
    supply.DRIVER_CHECK: supply.ask_drivers,
    access.NAME_CHECK: access.ask_names,
    access.CHART_CHECK: access.ask_charts,
}
_SILENT: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})


def ask(spec: StackSpec, *, project: str, within_s: float = WITHIN_S) -> tuple[Finding, ...]:
    """The answers in the order of QUESTIONS; `project` is the Pulumi project of the stack."""
    until = time.monotonic() + within_s
    cloud = Cloud(within_s=within_s)
    owner = Owner(spec.name, project)
    answers: dict[str, list[Finding]] = {}

    def answer(check: str) -> None:
        try:
            answers[check] = QUESTIONS[check](cloud, spec, owner)
        except ApiError as error:
            reason = f"{error.code}: {error.message}"
            if error.code in _SILENT:
                reason = f"no answer from {cloud.target or 'the Nebius API'}"
            answers[check] = [not_checked(check, reason)]
        except EndpointError as error:
            is_told = check == access.CREDENTIAL_CHECK
            answers[check] = [not_checked(check, str(error) if is_told else "no way to the API")]
        except Exception as error:
            # A question that breaks, say on an answer of a newer API, must stop nobody.
            answers[check] = [not_checked(check, f"{type(error).__name__}: {error}")]

    # Daemons: a call that hangs must not keep the process.
    threads = [threading.Thread(target=answer, args=(each,), daemon=True) for each in QUESTIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    cloud.given_up.set()
    late = f"no answer within {within_s:g} s"
    return tuple(
        finding
        for check in QUESTIONS
        for finding in answers.get(check) or [not_checked(check, late)]
    )


def refusal(findings: Sequence[Finding]) -> str | None:
    """The lines that stop an `up` before it begins, or None."""
    certain = [str(one) for one in findings if one.outcome is Outcome.FAIL and one.certain]
    return "\n".join(certain) if certain else None


def doubts(findings: Sequence[Finding]) -> list[str]:
    """What may go wrong and stops nobody, a text each."""
    return [str(one) for one in findings if one.outcome is Outcome.FAIL and not one.certain]


def in_short(findings: Sequence[Finding]) -> str:
    """One line: how many questions passed, and what was not checked."""
    num_passed = sum(one.outcome is Outcome.PASS for one in findings)
    silent = [one.check for one in findings if one.outcome is Outcome.NOT_CHECKED]
    told = f"pre-flight: {num_passed} passed"
    return f"{told}; not checked: {', '.join(silent)}" if silent else told

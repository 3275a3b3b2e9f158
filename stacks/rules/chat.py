"""Rules of the reference chat: what is read and written, at which speed, on which nodes."""

from __future__ import annotations

from stacks.errors import Findings
from stacks.rules.naming import check_unique
from stacks.spec import StackSpec


def check_chat(spec: StackSpec, findings: Findings) -> None:
    """The chat's own figures first, then its serving nodes, then its speeds."""
    _check_profile(spec, findings)
    _check_serving(spec, findings)
    _check_speeds(spec, findings)


def _check_profile(spec: StackSpec, findings: Findings) -> None:
    chat = spec.chat
    # An answer is part of the context of the next one, so it must fit as a whole.
    if chat.output_tokens > chat.context_tokens * chat.turns:
        findings.error(
            "chat.output_tokens",
            f"{chat.output_tokens} tokens in {chat.turns} turns do not fit context_tokens "
            f"({chat.context_tokens}); raise context_tokens or turns",
            rule="chat.answers-fit",
        )
    if chat.turns > chat.output_tokens:
        findings.error(
            "chat.turns",
            f"{chat.turns}, but the whole chat writes {chat.output_tokens} tokens "
            "(output_tokens); every turn answers with at least one",
            rule="chat.turns",
        )
    if chat.cached_share > 1:
        findings.error(
            "chat.cached_share",
            f"{chat.cached_share} is more than the whole context; use 0 to 1 "
            "(a quarter is 0.25, not 25)",
            rule="chat.cached-share",
        )
    check_unique(
        chat.api_models,
        "chat.api_models",
        findings,
        rule="chat.model-twice",
        advice="name each once",
    )


def _check_serving(spec: StackSpec, findings: Findings) -> None:
    chat = spec.chat
    known = [worker.name for worker in spec.nodes.workers]
    if chat.serving_nodeset is None:
        if chat.serving_nodes > 1:
            findings.error(
                "chat.serving_nodes",
                f"{chat.serving_nodes} of which nodes? Name them in chat.serving_nodeset "
                f"(has: {', '.join(known)})",
                rule="chat.serving-nodes-of",
            )
        return
    if chat.serving_nodeset not in known:
        findings.error(
            "chat.serving_nodeset",
            f"'{chat.serving_nodeset}' is not a nodeset (has: {', '.join(known)})",
            rule="chat.serving-nodeset",
        )
        return
    most = max(
        worker.max_nodes for worker in spec.nodes.workers if worker.name == chat.serving_nodeset
    )
    if chat.serving_nodes > most:
        findings.error(
            "chat.serving_nodes",
            f"{chat.serving_nodes}, but nodeset '{chat.serving_nodeset}' has at most {most} nodes",
            rule="chat.serving-nodes-most",
        )


def _check_speeds(spec: StackSpec, findings: Findings) -> None:
    chat = spec.chat
    check_unique(
        (speed.scenario for speed in chat.speeds),
        "chat.speeds",
        findings,
        key="scenario",
        rule="chat.scenario-twice",
    )
    for index, speed in enumerate(chat.speeds):
        same = [
            other.scenario
            for other in chat.speeds[:index]
            if speed.engine is not None
            and (other.engine, other.batch_size) == (speed.engine, speed.batch_size)
        ]
        if same:
            findings.error(
                f"chat.speeds[{index}].batch_size",
                f"engine '{speed.engine}' with batch {speed.batch_size} is already the row "
                f"'{same[0]}'; one measurement cannot replace both",
                rule="chat.speed-twice",
            )

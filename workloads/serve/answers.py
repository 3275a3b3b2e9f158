"""OpenAI's answers: whole ones, chunks of a stream, models.

Owns the shapes. https://platform.openai.com/docs/api-reference/chat/object (2026-11-21).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workloads.common.tool_calls import ToolCall
from workloads.serve.generation import TokenLogprob
from workloads.serve.tool_stream import CallPart

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True, kw_only=True)
class Choice:
    """One answer as it grows."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_tokens: int = 0
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all parts of one answer share."""

    model: str
    num_prompt_tokens: int
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Choice], *, with_logprobs: bool) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [
                {
                    "index": index,
                    "message": {
                        "role": "assistant",
                        "content": choice.text or (None if choice.calls else ""),
                        **({"tool_calls": _calls(choice.calls)} if choice.calls else {}),
                    },
                    "logprobs": _logprobs(choice.logprobs) if with_logprobs else None,
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": self.usage(choices),
        }

    def chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] = (),
        finish_reason: str | None = None,
        more: Mapping[str, Any],
    ) -> bytes:
        """Return one event of a stream; `more` stands beside its choice."""
        body: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(logprobs) if logprobs else None,
            "finish_reason": finish_reason,
        }
        return self._event([body], more)

    def usage_chunk(self, choices: Sequence[Choice]) -> bytes:
        """Return the event that ends a stream which asked for usage."""
        return self._event([], {"usage": self.usage(choices)})

    def usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        """Return the tokens read and written."""
        written = sum(choice.num_tokens for choice in choices)
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.num_prompt_tokens + written,
        }

    def _event(self, choices: list[dict[str, Any]], more: Mapping[str, Any]) -> bytes:
        return event(
            {
                "id": self.id,
                "object": "chat.completion.chunk",
                "created": self.created,
                "model": self.model,
                "choices": choices,
                **more,
            }
        )


def event(value: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def call_deltas(parts: Sequence[CallPart]) -> list[dict[str, Any]]:
    """Return parts of calls as a stream tells them: the first one of a call has id and name."""
    return [
        {
            "index": part.index,
            **({} if part.name is None else {"id": _call_id(), "type": "function"}),
            "function": {
                **({} if part.name is None else {"name": part.name}),
                "arguments": part.arguments,
            },
        }
        for part in parts
    ]


def models(names: Mapping[str, bool], *, created: int, context_tokens: int) -> dict[str, Any]:
    """Return the body of GET /v1/models; `names` says of each whether the adapter answers.

    `max_model_len`, and `parent` for the base of an adapter, are vLLM's names.
    """
    base = next((name for name, is_tuned in names.items() if not is_tuned), None)
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "soperator-stack",
                "max_model_len": context_tokens,
                **({"parent": base} if is_tuned else {}),
            }
            for name, is_tuned in names.items()
        ],
    }


def _calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {
            "id": _call_id(),
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(dict(call.arguments), ensure_ascii=False),
            },
        }
        for call in calls
    ]


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {
        "content": [
            {
                "token": entry.token,
                "logprob": entry.logprob,
                "bytes": list(entry.data),
                "top_logprobs": [
                    {"token": token, "logprob": value, "bytes": list(data)}
                    for token, value, data in entry.top
                ],
            }
            for entry in entries
        ],
        "refusal": None,
    }

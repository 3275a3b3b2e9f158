"""One answer as it comes: text, thought, calls, and the times that stand under it.

TTFT: question sent to the first text, thought or call. Total: question sent to the last of them.
tokens/s: tokens after the first over the time after the first, so reading the prompt is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Reply:
    """What came so far of one answer; times are of time.perf_counter."""

    model: str
    """Label of the model that answers."""
    is_tuned: bool | None
    """Whether its adapter is on; None: it has none."""
    began_s: float
    text: str = ""
    thought: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    """`id`, `name` and `arguments` (JSON text) of each call."""
    first_s: float | None = None
    last_s: float | None = None
    num_pieces: int = 0
    usage: Mapping[str, Any] | None = None
    finish: str | None = None
    """OpenAI's finish_reason; `stopped` by the user, `failed` with `error`."""
    error: str | None = None

    def take(self, choice: Mapping[str, Any], now_s: float) -> None:
        """Take one choice of a chunk that came at `now_s`."""
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        thought = delta.get("reasoning_content") or ""
        calls = delta.get("tool_calls") or ()
        self.text += text
        self.thought += thought
        for call in calls:
            self._take_call(call)
        if text or thought or calls:
            self.first_s = now_s if self.first_s is None else self.first_s
            self.last_s = now_s
            self.num_pieces += 1
        self.finish = choice.get("finish_reason") or self.finish

    def fail(self, reason: str) -> None:
        """End it with what went wrong; what came before stays."""
        self.error, self.finish = reason, "failed"

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first piece; None before it."""
        return None if self.first_s is None else self.first_s - self.began_s

    @property
    def total_s(self) -> float | None:
        """Seconds to the last piece so far; None before the first."""
        return None if self.last_s is None else self.last_s - self.began_s

    @property
    def output_tokens(self) -> int:
        """Tokens as the server counted them; the pieces where it did not."""
        counted = (self.usage or {}).get("completion_tokens")
        return counted if isinstance(counted, int) else self.num_pieces

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second after the first; None for fewer than two, or all at once."""
        if self.first_s is None or self.last_s is None or self.output_tokens < 2:
            return None
        seconds = self.last_s - self.first_s
        return (self.output_tokens - 1) / seconds if seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the answer as the conversation keeps it."""
        prompt = (self.usage or {}).get("prompt_tokens")
        return {
            "model": self.model,
            "is_tuned": self.is_tuned,
            "text": self.text,
            "thought": self.thought,
            "calls": [dict(call) for call in self.calls],
            "ttft_s": self.ttft_s,
            "total_s": self.total_s,
            "tokens_per_s": self.tokens_per_s,
            "prompt_tokens": prompt if isinstance(prompt, int) else None,
            "output_tokens": self.output_tokens,
            "finish": self.finish,
            "error": self.error,
        }

    def _take_call(self, call: Mapping[str, Any]) -> None:
        index = call.get("index", len(self.calls))
        while len(self.calls) <= index:
            self.calls.append({"id": "", "name": "", "arguments": ""})
        known, function = self.calls[index], call.get("function") or {}
        known["id"] = call.get("id") or known["id"]
        known["name"] += function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""


def caption(answer: Mapping[str, Any]) -> str:
    """Return the line under an answer: times, tokens, speed, how it ended."""
    parts: list[str] = []
    if answer["ttft_s"] is not None:
        parts.append(f"TTFT {answer['ttft_s']:.2f} s")
        parts.append(f"total {answer['total_s']:.2f} s")
        count = answer["output_tokens"]
        parts.append(f"{count} token{'' if count == 1 else 's'}")
    if answer["tokens_per_s"] is not None:
        parts.append(f"{answer['tokens_per_s']:.1f} tokens/s")
    if answer["finish"] == "length":
        parts.append("cut at the limit of tokens")
    elif answer["finish"] == "stopped":
        parts.append("stopped")
    return " | ".join(parts)


def pretty_arguments(text: str) -> str:
    """Return a call's arguments indented; as they came where they are no JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text

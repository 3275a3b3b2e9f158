"""One answer while it is written: its text, its end, its log probabilities."""

from __future__ import annotations

from typing import Any

from workloads.serve import sampling
from workloads.serve.generation import Delta, FinishReason, Generation, Sink, TokenLogprob
from workloads.serve.sampling import RowSampler
from workloads.serve.scheduler import Sequence
from workloads.serve.text import TextStream


class Answer:
    """A sequence with who is told of its tokens."""

    def __init__(
        self, asked: Generation, sink: Sink, tokenizer: Any, stop_ids: frozenset[int]
    ) -> None:
        self.sequence = Sequence(asked=asked)
        self.sink = sink
        wanted = asked.sampling
        self._stop_ids = wanted.stop_token_ids + (() if asked.ignore_eos else tuple(stop_ids))
        self.sampler = RowSampler(wanted, asked.constraint, asked.prompt_ids, self._stop_ids)
        self._text = TextStream(tokenizer, asked.stop, min_tokens=wanted.min_tokens)
        self._tokenizer = tokenizer

    def write(self, token: int, logits_V: Any) -> Delta:
        """Add the token that was chosen from `logits_V`; return what the client gets of it."""
        sequence, asked = self.sequence, self.sequence.asked
        sequence.output_ids.append(token)
        self.sampler.wrote(token)
        finish: FinishReason | None = None
        text, entries = "", ()
        if token in self._stop_ids:
            finish = "stop"
        else:
            text = self._text.push(token)
            if asked.num_logprobs is not None:
                entries = (self._logprob(logits_V, token, asked.num_logprobs),)
            if self._text.has_stopped:
                finish = "stop"
            elif len(sequence.output_ids) >= asked.max_tokens:
                finish = "length"
        if finish is not None:
            text += self._text.finish()
        return Delta(text=text, num_tokens=1, logprobs=entries, finish=finish)

    def _logprob(self, logits_V: Any, token: int, num_top: int) -> TokenLogprob:
        value, top = sampling.logprobs(logits_V, token, num_top)
        return TokenLogprob(
            **self._named(token),
            logprob=value,
            top=tuple(
                (named["token"], each, named["data"])
                for index, each in top
                for named in (self._named(index),)
            ),
        )

    def _named(self, token: int) -> dict[str, Any]:
        text = self._tokenizer.decode([token])
        return {"token": text, "data": text.encode()}

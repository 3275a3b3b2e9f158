"""A token for each row of logits, by each request's own settings and seed; log probabilities.

A seed gives the same answer for the same logits; a pass over other rows may round them otherwise.
Owns that a fault of one row is that row's outcome, and that the logits given stay as they are.
Shapes: B rows, V vocabulary, K kept tokens.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import torch

from workloads.serve.generation import Sampling
from workloads.serve.grammar import Constraint

_KEPT = 256
"""Tokens looked at for top_p before the whole vocabulary is sorted."""

_LEAST_LOGPROB = -9999.0
"""OpenAI's value for a token that is most unlikely; JSON has no minus infinity.
https://platform.openai.com/docs/api-reference/chat/object (2026-11-21)."""


class RowSampler:
    """The random numbers, the penalties and the form of one answer."""

    def __init__(
        self,
        sampling: Sampling,
        constraint: Constraint | None = None,
        prompt_ids: Sequence[int] = (),
        stop_ids: Sequence[int] = (),
    ) -> None:
        self.sampling = sampling
        self._constraint = constraint
        self._prompt_ids = frozenset(prompt_ids if sampling.repetition_penalty != 1 else ())
        self._stop_ids = stop_ids
        self._num_before_stop = sampling.min_tokens
        self._random = random.Random(sampling.seed)
        self._number = self._random.random()
        self._counts: Counter[int] = Counter()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.sampling.temperature == 0

    @property
    def changes_logits(self) -> bool:
        """Whether a token is not chosen from the model's logits as they are."""
        return self.has_penalty or self._constraint is not None or self._num_before_stop > 0

    @property
    def has_penalty(self) -> bool:
        """Whether tokens that were written already count less."""
        of = self.sampling
        return bool(of.presence_penalty or of.frequency_penalty or of.repetition_penalty != 1)

    @property
    def number(self) -> float:
        """The next random number, 0 to 1; the same one until a token is written."""
        return self._number

    def wrote(self, token: int) -> None:
        """Count a token that was written."""
        self._number = self._random.random()
        self._num_before_stop -= 1
        if self.has_penalty:
            self._counts[token] += 1
        if self._constraint is not None:
            self._constraint.take(token)

    def adjust(self, logits_V: torch.Tensor) -> None:
        """Apply penalties, least length and form to the next token's logits, in place.

        The order and the meaning of each are vLLM's (vllm/v1/sample/sampler.py, 2026-11-22).
        """
        if self._num_before_stop > 0:
            ends = [each for each in self._stop_ids if each < len(logits_V)]
            logits_V[ends] = -torch.inf
        if seen := self._prompt_ids | self._counts.keys():
            self._repeat_less(logits_V, torch.tensor(list(seen), device=logits_V.device))
        if self._counts:
            self._punish(logits_V)
        if self._constraint is not None:
            self._constraint.mask(logits_V)

    def _repeat_less(self, logits_V: torch.Tensor, seen: torch.Tensor) -> None:
        penalty, values = self.sampling.repetition_penalty, logits_V[seen]
        logits_V[seen] = torch.where(values > 0, values / penalty, values * penalty)

    def _punish(self, logits_V: torch.Tensor) -> None:
        ids = torch.tensor(list(self._counts), device=logits_V.device)
        counts = torch.tensor(list(self._counts.values()), device=logits_V.device)
        of = self.sampling
        logits_V[ids] -= of.presence_penalty + of.frequency_penalty * counts.to(logits_V.dtype)


def sample(logits_BV: torch.Tensor, rows: Sequence[RowSampler]) -> list[int | Exception]:
    """Return for each row its next token, or why it has none."""
    faults: dict[int, Exception] = {}
    numbers: dict[int, float] = {}
    if any(sampler.changes_logits for sampler in rows):
        # What a pass returns was made in inference mode and may not be changed in place.
        logits_BV = logits_BV.clone()
    for row, sampler in enumerate(rows):
        try:
            if sampler.changes_logits:
                sampler.adjust(logits_BV[row])
            if not sampler.is_greedy:
                numbers[row] = sampler.number
        except Exception as error:
            faults[row] = error
    tokens: list[int | Exception] = logits_BV.argmax(-1).tolist()
    if numbers:
        drawn = list(numbers)
        chosen = _draw(logits_BV[drawn], [rows[row] for row in drawn], list(numbers.values()))
        for row, token in zip(drawn, chosen, strict=True):
            tokens[row] = token
    for row, error in faults.items():
        tokens[row] = error
    return tokens


def _draw(
    logits_BV: torch.Tensor, rows: Sequence[RowSampler], numbers: Sequence[float]
) -> list[int]:
    temperatures_B = _column([row.sampling.temperature for row in rows], logits_BV)
    probabilities_BV = torch.softmax(logits_BV / temperatures_B, dim=-1)
    if any(row.sampling.min_p for row in rows):
        least_B = _column([row.sampling.min_p for row in rows], logits_BV)
        most_B = probabilities_BV.amax(-1, keepdim=True)
        probabilities_BV = probabilities_BV.where(probabilities_BV >= least_B * most_B, 0)
        probabilities_BV /= probabilities_BV.sum(-1, keepdim=True)
    numbers_B = _column(numbers, logits_BV)
    if all(row.sampling.top_p >= 1 and not row.sampling.top_k for row in rows):
        return _invert(probabilities_BV, numbers_B)[:, 0].tolist()
    size = logits_BV.shape[-1]
    top_p_B = _column([row.sampling.top_p for row in rows], logits_BV)
    top_k_B = _column([row.sampling.top_k or size for row in rows], logits_BV)
    kept = min(size, max(_KEPT, *(row.sampling.top_k for row in rows)))
    sorted_BK, ids_BK = probabilities_BV.topk(kept, dim=-1)
    # What is kept must hold every token that may be drawn.
    short = (sorted_BK.sum(-1, keepdim=True) < top_p_B) & (top_k_B > kept)
    if kept < size and bool(short.any()):
        sorted_BK, ids_BK = probabilities_BV.sort(dim=-1, descending=True)
    before_BK = sorted_BK.cumsum(-1) - sorted_BK
    ranks_K = torch.arange(sorted_BK.shape[-1], device=logits_BV.device)
    allowed_BK = (before_BK < top_p_B) & (ranks_K < top_k_B)
    allowed_BK[:, 0] = True
    places_B1 = _invert(sorted_BK * allowed_BK, numbers_B)
    return ids_BK.gather(-1, places_B1)[:, 0].tolist()


def _invert(weights_BK: torch.Tensor, numbers_B: torch.Tensor) -> torch.Tensor:
    """Return for each row the place where the running sum of weights passes its number."""
    sums_BK = weights_BK.double().cumsum(-1)
    places_B1 = torch.searchsorted(sums_BK, numbers_B.double() * sums_BK[:, -1:], right=True)
    return places_B1.clamp(max=weights_BK.shape[-1] - 1)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype)[:, None]


def logprobs(
    logits_V: torch.Tensor, token: int, num_top: int
) -> tuple[float, list[tuple[int, float]]]:
    """Return the natural logarithm of the token's probability, and the most likely tokens."""
    values_V = torch.log_softmax(logits_V, dim=-1).clamp(min=_LEAST_LOGPROB)
    top = values_V.topk(num_top) if num_top else None
    pairs = [] if top is None else zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return float(values_V[token]), [(index, value) for index, value in pairs]

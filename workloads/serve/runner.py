"""Forward passes over a turn's chunks or its decoding rows: logits of their last tokens.

Owns batches, positions and masks. Shapes: B rows of the batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import torch

from workloads.serve.adapter_rows import AdapterRows
from workloads.serve.kv_cache import RowCache
from workloads.serve.scheduler import Chunk, Move, Sequence

_MOST_PADDING = 0.25
"""Padding in a pass over chunks, as a share of their tokens; above it they are read apart."""


def group_by_length(counts: Items[int]) -> list[list[int]]:
    """Return the places of `counts` in groups of like lengths, the longest first."""
    groups: list[list[int]] = []
    longest = held = 0
    for index in sorted(range(len(counts)), key=lambda each: -counts[each]):
        padding = longest * (len(groups[-1]) + 1 if groups else 0) - held - counts[index]
        if groups and padding <= _MOST_PADDING * (held + counts[index]):
            groups[-1].append(index)
            held += counts[index]
        else:
            groups.append([index])
            longest = held = counts[index]
    return groups


class Runner:
    """A model with its cache."""

    def __init__(self, model: Any, cache: RowCache, adapter_rows: AdapterRows | None) -> None:
        self._model = model
        self._cache = cache
        self._adapter_rows = adapter_rows

    @torch.inference_mode()
    def read(self, chunks: Items[Chunk]) -> torch.Tensor:
        """Read the chunks; return the logits behind each one's last token, B x V."""
        groups = group_by_length([each.end - each.start for each in chunks])
        parts = [self._read([chunks[index] for index in group]) for group in groups]
        if len(parts) == 1 and groups[0] == list(range(len(chunks))):
            return parts[0]
        order = torch.tensor([index for group in groups for index in group])
        return torch.cat(parts)[order.argsort().to(parts[0].device)]

    def _read(self, chunks: Items[Chunk]) -> torch.Tensor:
        writes = [(each.sequence.row, each.start, each.end - each.start) for each in chunks]
        positions_BT, mask = self._cache.prefill(writes)
        ids_BT = torch.zeros_like(positions_BT)
        for row, each in enumerate(chunks):
            ids = each.sequence.asked.prompt_ids[each.start : each.end]
            ids_BT[row, : len(ids)] = torch.tensor(ids)
        last_B = torch.tensor([count - 1 for _, _, count in writes], device=ids_BT.device)
        return self._pass(
            ids_BT, positions_BT, mask, [each.sequence for each in chunks], last_B=last_B
        )

    @torch.inference_mode()
    def decode(self, running: Items[Sequence], decoding: Items[Sequence]) -> torch.Tensor:
        """Return the logits behind the last token of each of `decoding`, B x V.

        The pass takes all rows up to the last one that decodes. A row among them that still reads
        its prompt gets a token that its next chunk overwrites.
        """
        rows = [each.row for each in decoding]
        taken = running[: max(rows) + 1]
        positions_B1, mask = self._cache.decode(len(taken), [each.num_cached for each in taken])
        ids = [[each.output_ids[-1] if each.output_ids else 0] for each in taken]
        ids_B1 = torch.tensor(ids, device=positions_B1.device)
        logits_BV = self._pass(ids_B1, positions_B1, mask, taken)
        return logits_BV if len(rows) == len(taken) else logits_BV[rows]

    def move(self, move: Move) -> None:
        """Let one row take the place of another."""
        self._cache.move(move.source, move.target, move.num_tokens)

    def _pass(
        self,
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        mask: torch.Tensor | None,
        sequences: Items[Sequence],
        *,
        last_B: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self._adapter_rows is not None:
            self._adapter_rows.choose([each.asked.is_tuned for each in sequences])
        # Chunks of different lengths end at different places; the head gets those places only.
        places, which_B = (1, None) if last_B is None else torch.unique(last_B, return_inverse=True)
        logits = self._model(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=positions_BT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=places,
        ).logits
        if which_B is None:
            return logits[:, -1].float()
        return logits[torch.arange(len(which_B), device=logits.device), which_B].float()

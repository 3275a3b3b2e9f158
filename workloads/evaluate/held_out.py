"""The rows that every model gets: prompts, references, tokenised rows, and the sampled ones."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.common.places import Places
from workloads.data.chat_template import Example
from workloads.data.chats import Chat, read_jsonl
from workloads.data.token_rows import TokenRows, read_parquet
from workloads.evaluate import overlap
from workloads.evaluate.config import EvaluateConfig
from workloads.evaluate.header import FORMAT, Header, code_sha256, model_sha256, prompts_sha256
from workloads.evaluate.overlap import last_turn

CHATS, TOKENS = "chats_test.jsonl", "tokens_test.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The held-out rows of one prepared data set."""

    chats: Sequence[Chat]
    prompts: Sequence[Sequence[int]]
    """Token ids up to the last assistant turn."""
    examples: Sequence[Example]
    pad_id: int
    overlap: Mapping[str, Sequence[str]]
    """Ids of rows that a training set has too, by its folder; empty unless forced."""

    def references(self) -> list[str]:
        """Return what the last assistant turns say."""
        return [chat.messages[last_turn(chat)]["content"] for chat in self.chats]

    def question(self, row: int) -> str:
        """Return the turn before the last assistant turn."""
        chat = self.chats[row]
        return chat.messages[last_turn(chat) - 1]["content"]

    def sampled(self, count: int, *, seed: int) -> list[int]:
        """Return the numbers of rows that are shown in full, equal for equal seeds."""
        rows = range(len(self.chats))
        return sorted(random.Random(seed).sample(rows, min(count, len(rows))))

    def header(
        self,
        config: EvaluateConfig,
        *,
        model_dir: Path,
        tuned_dir: Path | None,
        precision: str = "bf16",
    ) -> Header:
        """Return the header of the results of one model; reads all its weights once."""
        rows = hashlib.sha256(b"".join(chat.to_line() for chat in self.chats))
        rows.update(TokenRows.of(self.examples).digest.encode())
        return Header(
            format=FORMAT,
            model=model_dir.name,
            base_sha256=model_sha256(model_dir),
            tuned_sha256=None if tuned_dir is None else model_sha256(tuned_dir),
            rows_sha256=rows.hexdigest(),
            prompts_sha256=prompts_sha256(self.prompts),
            settings={
                "dtype": config.dtype,
                "precision": precision,
                "batch_size": config.batch_size,
                "max_new_tokens": config.max_new_tokens,
            },
            code_sha256=code_sha256(),
        )


def load_held_out(
    config: EvaluateConfig,
    dataset: Path,
    tokenizer: Any,
    *,
    tuned_dir: Path | None,
    places: Places,
) -> HeldOut:
    """Return the held-out rows; those that a training set has too are refused unless forced."""
    from workloads.data.chat_template import prompt_text

    manifest = overlap.check_manifest(dataset, (CHATS, TOKENS))
    settings = manifest.get("config")
    template = settings.get("chat_template_kwargs") if isinstance(settings, dict) else None
    if not isinstance(template, dict):
        raise DataError(
            f"{dataset}/manifest.json: is damaged: no config.chat_template_kwargs; "
            "run prepare-data again"
        )
    chats = read_jsonl(dataset / CHATS)[: config.num_rows]
    examples = read_parquet(dataset / TOKENS)[: config.num_perplexity_rows]
    if not chats or not examples:
        raise DataError(f"{dataset}: the test split is empty; raise data.test_ratio")
    found = overlap.overlapping(chats, overlap.training_sets(dataset, tuned_dir, places))
    if not config.force_overlap:
        overlap.refuse(found, num_rows=len(chats))
    texts = [prompt_text(tokenizer, chat.messages[: last_turn(chat)], **template) for chat in chats]
    return HeldOut(
        chats=chats,
        prompts=tokenizer(texts, add_special_tokens=False)["input_ids"],
        examples=examples,
        pad_id=tokenizer.pad_token_id,
        overlap=found,
    )

"""The rows that every model gets, and whether any of them was trained on."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.common.dist import World
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.common.models import load_tokenizer
from workloads.common.places import Places
from workloads.data.chat_template import as_answer, prompt_text, render
from workloads.data.chats import Chat, iter_jsonl, read_jsonl, text_of
from workloads.data.manifest import read_manifest, read_object, sha256
from workloads.data.token_rows import TokenRows, read_parquet
from workloads.evaluate.resampling import Sampling
from workloads.evaluate.subject import (
    FORMAT,
    Header,
    Subject,
    code_sha256,
    model_sha256,
)
from workloads.job import Job
from workloads.recipes.evaluate import EvaluateConfig


def last_turn(chat: Chat) -> int:
    """Return the place of the assistant turn that models are asked for."""
    return max(i for i, message in enumerate(chat.messages) if message["role"] == "assistant")


def prompt_hash(chat: Chat) -> bytes:
    """Return the hash of all before the last assistant turn, and of the functions on offer."""
    turns = [[m["role"], text_of(m).strip()] for m in chat.messages[: last_turn(chat)]]
    return hashlib.sha256(json.dumps([turns, chat.functions]).encode()).digest()


def check_manifest(dataset: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the manifest of a prepared folder whose files are as it says."""
    path = dataset / "manifest.json"
    manifest = read_manifest(path)
    outputs = manifest.get("outputs")
    for name in names:
        file = dataset / name
        if not file.is_file():
            raise DataError(f"{file}: missing; run prepare-data first")
        entry = outputs.get(name) if isinstance(outputs, dict) else None
        if not isinstance(entry, dict) or entry.get("sha256") != sha256(file):
            raise DataError(f"{file}: changed since {path} was made; run prepare-data again")
    return manifest


def training_sets(dataset: Path, tuned_dir: Path | None, places: Places) -> list[Path]:
    """Return the prepared folders whose train split the tuned model may have seen."""
    folders = [dataset]
    if tuned_dir is not None:
        run = tuned_dir.parent.name  # <chkpt>/<job>/<run>/final
        # A second run of one job id is called `12-2`; its settings are in the folder of the job.
        for name in (run, run.rpartition("-")[0]):
            settings = places.path("results") / name / "config.json"
            if name and settings.is_file():
                train = read_object(settings).get("train")
                named = train.get("dataset") if isinstance(train, dict) else None
                if isinstance(named, str) and named != "generated":
                    folder = places.data_path(named)
                    if folder.resolve() != dataset.resolve():
                        folders.append(folder)
                break
    return folders


def overlapping(chats: Sequence[Chat], folders: Sequence[Path]) -> dict[str, list[str]]:
    """Return the ids of `chats` whose prompt a training set has, by its folder."""
    wanted = {prompt_hash(chat): chat.id for chat in chats}
    found: dict[str, list[str]] = {}
    for folder in folders:
        check_manifest(folder, ("chats_train.jsonl",))
        trained = (prompt_hash(chat) for chat in iter_jsonl(folder / "chats_train.jsonl"))
        ids = {wanted[each] for each in trained if each in wanted}
        if ids:
            found[str(folder)] = sorted(ids)
    return found


CHATS, TOKENS = "chats_test.jsonl", "tokens_test.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The held-out rows of one prepared data set."""

    chats: Sequence[Chat]
    prompts: Sequence[Sequence[int]]
    """Token ids up to the last assistant turn."""
    examples: TokenRows
    pad_id: int
    overlap: Mapping[str, Sequence[str]]
    """Ids of rows that a training set has too, by its folder; empty unless forced."""
    terms: Sequence[str] = ()
    """Words of the domain whose use is counted."""
    references: Sequence[str] = ()
    """What the last assistant turns say, calls as the model writes them."""

    def question(self, row: int) -> str:
        """Return the turn before the last assistant turn."""
        chat = self.chats[row]
        return text_of(chat.messages[last_turn(chat) - 1])

    def sampled(self, count: int, *, seed: int) -> list[int]:
        """Return the numbers of rows that are shown in full, equal for equal seeds."""
        rows = range(len(self.chats))
        return sorted(random.Random(seed).sample(rows, min(count, len(rows))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all models of one evaluation share."""

    config: EvaluateConfig
    here: World
    tokenizer: Any
    held_out: HeldOut
    results: Path

    @property
    def sampling(self) -> Sampling:
        """How intervals and tests resample."""
        config = self.config
        return Sampling(resamples=config.resamples, confidence=config.confidence, seed=config.seed)

    def header(self, subject: Subject, *, precision: str = "bf16") -> Header:
        """Return the header of one model's rows; rank 0 reads all its weights once."""
        if not self.here.is_main:
            return self.here.broadcast(None)
        config, tuned_dir = self.config, subject.tuned_dir
        rows = hashlib.sha256(b"".join(chat.to_line() for chat in self.held_out.chats))
        rows.update(self.held_out.examples.digest.encode())
        prompts = json.dumps([*map(list, self.held_out.prompts)], separators=(",", ":"))
        header = Header(
            format=FORMAT,
            model=subject.model_dir.name,
            base_sha256=model_sha256(subject.model_dir),
            tuned_sha256=None if tuned_dir is None else model_sha256(tuned_dir),
            rows_sha256=rows.hexdigest(),
            prompts_sha256=hashlib.sha256(prompts.encode()).hexdigest(),
            settings={
                "dtype": config.dtype,
                "precision": precision,
                "batch_size": config.batch_size,
                "max_new_tokens": config.max_new_tokens,
                "terms": list(config.terms),
            },
            code_sha256=code_sha256(),
        )
        return self.here.broadcast(header)


def _prompt(tokenizer: Any, chat: Chat, template: Mapping[str, Any]) -> str | None:
    """Return what asks for the last assistant turn; None where the template refuses the chat."""
    try:
        return prompt_text(tokenizer, chat.messages[: last_turn(chat)], chat.functions, **template)
    except DataError as error:
        log(f"test row {chat.id} is left out: {error}")
        return None


def _reference(tokenizer: Any, chat: Chat, template: Mapping[str, Any]) -> str:
    """Return what the last assistant turn says; our form where the template refuses its calls."""
    turns = chat.messages[: last_turn(chat) + 1]
    if not turns[-1].get("tool_calls"):
        return turns[-1]["content"]
    try:
        rendered = render(tokenizer, turns, chat.functions, **template)[-1]
    except DataError:
        return text_of(turns[-1])
    start, end = rendered.spans[-1]
    return as_answer(tokenizer, rendered.text[start:end]).strip()


def context(job: Job, config: EvaluateConfig, here: World, tuned_dir: Path | None) -> Context:
    """Return the held-out rows; those that a training set has too are refused unless forced."""
    tokenizer = load_tokenizer(job.places.model_dir(job.recipe.model))
    dataset = job.places.data_path(config.dataset)
    manifest = check_manifest(dataset, (CHATS, TOKENS))
    settings = manifest.get("config")
    template = settings.get("chat_template_kwargs") if isinstance(settings, dict) else None
    if not isinstance(template, dict):
        raise DataError(
            f"{dataset}/manifest.json: is damaged: no config.chat_template_kwargs; "
            "run prepare-data again"
        )
    chats = read_jsonl(dataset / CHATS)[: config.num_rows]
    asked = [(chat, text) for chat in chats if (text := _prompt(tokenizer, chat, template))]
    chats = [chat for chat, _ in asked]
    examples = read_parquet(dataset / TOKENS)
    examples = examples.select(np.arange(len(examples)) < config.num_perplexity_rows)
    if not chats or not examples:
        raise DataError(f"{dataset}: the test split is empty; raise data.test_ratio")
    found = overlapping(chats, training_sets(dataset, tuned_dir, job.places))
    if found and not config.force_overlap:
        text = "; ".join(
            f"{folder}/chats_train.jsonl holds {len(ids)} of the {len(chats)} test rows "
            f"(first: {ids[0]})"
            for folder, ids in found.items()
        )
        raise DataError(
            f"{text}: a model that trained on them is measured too well; take another "
            "evaluate.dataset, or set evaluate.force_overlap=true, which marks the result"
        )
    held_out = HeldOut(
        chats=chats,
        prompts=tokenizer([text for _, text in asked], add_special_tokens=False)["input_ids"],
        examples=examples,
        pad_id=tokenizer.pad_token_id,
        overlap=found,
        terms=config.terms,
        references=[_reference(tokenizer, chat, template) for chat in chats],
    )
    return Context(
        config=config,
        here=here,
        tokenizer=tokenizer,
        held_out=held_out,
        results=job.places.path("results"),
    )

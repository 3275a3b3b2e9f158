"""Models of the recipes: licence, what guards their answers, and what they can be trained on.

Owns the record by which a base is picked (commercial licence, safeguards, trainability). A model
that is not listed is no error: it is said to be unrecorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

DATE = "2026-11-21"
"""When the sources were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One base model."""

    name: str
    licence: str
    """SPDX name, or the licence's own."""
    commercial_use: bool
    safeguards: str
    trainability: str
    source: str

    def lines(self) -> list[str]:
        """Return the entry for people."""
        use = "commercial use allowed" if self.commercial_use else "no commercial use"
        return [
            f"{self.name}: {self.licence}, {use}; {self.source}, {DATE}",
            f"safeguards: {self.safeguards}",
            f"trainability: {self.trainability}",
        ]


_ALIGNED = (
    "aligned by post-training; no filter of inputs or outputs comes with the weights, so a service "
    "brings its own"
)
CATALOG = (
    ModelEntry(
        name="Qwen3-14B",
        licence="Apache-2.0",
        commercial_use=True,
        safeguards=_ALIGNED,
        trainability="adapters in 4 or 16 bits on one L40S (48 GB); all weights from 2 H200 up",
        source="https://huggingface.co/Qwen/Qwen3-14B/blob/main/README.md",
    ),
    ModelEntry(
        name="Qwen2-7B-Instruct",
        licence="Apache-2.0",
        commercial_use=True,
        safeguards=_ALIGNED,
        trainability="adapters on one L40S or H100; all weights on one H200, or divided over more",
        source="https://ollama.com/library/qwen2:7b-instruct-fp16",
    ),
    ModelEntry(
        name="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        commercial_use=True,
        safeguards="aligned by post-training on small data; for tests, not for customers",
        trainability="adapters and all weights on one CPU",
        source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct/blob/main/README.md",
    ),
)


def find(model: str) -> ModelEntry | None:
    """Return the entry of a recipe's model; None where nobody wrote one."""
    name = PurePosixPath(model).name.lower()
    return next((entry for entry in CATALOG if entry.name.lower() == name), None)

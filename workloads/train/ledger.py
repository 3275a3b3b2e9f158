"""The useful-token ledger: where the time and the positions of a run went."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

SHARES = ("data_wait", "checkpoint")


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Seconds by use and positions by use, from the start of the loop on this rank."""

    began_s: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SHARES, 0.0))
    num_tokens: int = 0
    num_positions: int = 0

    @contextlib.contextmanager
    def spend(self, use: str) -> Iterator[None]:
        """Count the seconds of the block to `use`."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[use] += time.perf_counter() - start_s

    def add(self, *, num_tokens: int, num_positions: int) -> None:
        """Count the tokens of a step, and the positions that the model computed on."""
        self.num_tokens += num_tokens
        self.num_positions += num_positions

    def metrics(self, *, recomputes: bool, method: str) -> dict[str, float | int]:
        """Return the shares in percent: of time, of positions, and of FLOPs for recomputation."""
        wall_s = time.perf_counter() - self.began_s
        # Forward 2N, backward 4N or, with a frozen base, 2N; checkpointing adds a forward pass.
        passes = 6 if method == "full" else 4
        shares: dict[str, float | int] = {
            f"{use}_time_percent": 100 * seconds / wall_s for use, seconds in self.seconds.items()
        }
        shares["train_time_s"] = wall_s
        shares["recompute_flops_percent"] = 100 * 2 / (passes + 2) if recomputes else 0.0
        if self.num_positions:
            shares["padding_positions_percent"] = 100 * (1 - self.num_tokens / self.num_positions)
        shares["num_useful_tokens"] = self.num_tokens
        shares["num_computed_positions"] = self.num_positions
        return shares

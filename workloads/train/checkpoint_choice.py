"""Which checkpoint a run starts from: the newest that is whole, and that it may load.

Owns the order in which they are tried, what is said of those that are skipped, and the refusals.
Every rank calls every method at the same point.
"""

from __future__ import annotations

from pathlib import Path

from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.train import run_folder
from workloads.train.checkpoint_config import CheckpointConfig
from workloads.train.checkpoint_format import ELASTIC, Candidate, candidates
from workloads.train.checkpoint_ranks import Ranks
from workloads.train.run_folder import RunFolder


class Choice:
    """The start of one run."""

    def __init__(self, folder: RunFolder, ranks: Ranks, config: CheckpointConfig) -> None:
        self.folder = folder
        """The run's folder; another one after `choose` where the run goes on in that of before."""
        self.damaged: set[Path] = set()
        """What could not be loaded: no run may count on it."""
        self._ranks, self._config = ranks, config

    def choose(self, fingerprint: str) -> Candidate | None:
        """The candidate that is tried first and is whole, agreed on by all ranks."""
        resume = self.folder.resume
        restarted = self._ranks.any(run_folder.was_restarted())
        listed = self._ranks.agree(
            lambda: self.folder.candidates(restarted=restarted, fingerprint=fingerprint)
        )
        left_out: list[Candidate] = []
        for found in listed:
            is_named = self.folder.is_explicit and found.path == Path(resume)
            reason = self._problem(found)
            if reason is not None:
                self.damaged.add(found.path)
            if reason is None and self._is_other_size(found):
                if is_named:
                    raise self._refusal(found)
                left_out.append(found)
                reason = "another world size, and train.checkpoint.same_world_size_only is set"
            if reason is None:
                self._take_folder(found, restarted=restarted)
                return found
            if is_named:
                raise ConfigError(
                    f"train.resume {resume}: {reason}; name a committed checkpoint folder"
                )
            log(f"skipped {found.path}: {reason}")
        if left_out:
            raise self._refusal(left_out[0])
        if restarted or resume == "auto":
            log("no committed checkpoint to resume from; starting at step 0")
        self._take_folder(None, restarted=restarted)
        return None

    def _take_folder(self, start: Candidate | None, *, restarted: bool) -> None:
        path = start.path if start else None
        self.folder = self._ranks.agree(lambda: self.folder.settled(path, restarted=restarted))

    def _is_other_size(self, found: Candidate) -> bool:
        if not self._config.same_world_size_only or found.kind is ELASTIC:
            return False
        size = self._ranks.agree(lambda: found.read_marker().world_size)
        return size != self._ranks.world.world_size

    def _refusal(self, found: Candidate) -> ConfigError:
        others = self._ranks.agree(lambda: candidates(self.folder.folders_of_elastic(found.path)))
        good = next(
            (each for each in others if each.kind is ELASTIC and self._problem(each) is None), None
        )
        use = f"resume from {good.path}" if good else "no elastic checkpoint is there: unset it"
        size = self._ranks.agree(lambda: found.read_marker().world_size)
        mine = self._ranks.world.world_size
        return ConfigError(
            f"{found.path} was saved at world size {size}, this run has {mine}, and "
            f"train.checkpoint.same_world_size_only is set; {use}"
        )

    def _problem(self, found: Candidate) -> str | None:
        """Why `found` cannot be loaded; its files are hashed by all ranks in parallel."""
        mine = found.problem(share=self._ranks.world.rank, of=self._ranks.world.world_size)
        problems = self._ranks.gather(mine)
        return next((each for each in problems if each is not None), None)

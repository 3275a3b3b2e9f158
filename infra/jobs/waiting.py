"""Why a job waits, in words: `why(job, names)`. Owns the words, not the reasons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from infra.jobs.parse import Job

# Codes of https://slurm.schedmd.com/job_reason_codes.html (read 2026-11-21); those of several words
# are state_desc of slurmctld/job_mgr.c of 25.11.3, which squeue prints in place of a code.
_WORDS: Final = {
    "Priority": "jobs of higher priority are first",
    "Resources": "waits until enough nodes are free",
    "Dependency": "waits for the job that it depends on",
    "DependencyNeverSatisfied": (
        "the job that it depends on failed, so it never starts: soperator cancel it"
    ),
    "BeginTime": "its start time has not come, or Slurm lets a requeued job rest (cred_expire)",
    "JobHeldUser": "held by its user: scontrol release ID",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "requeued too often and held: look at its log, then scontrol release ID",
    "launch failed requeued held": (
        "a node could not start it, so it is held for ever: sinfo -R names the node; where that "
        "says Duplicate jobid, the controller was lost as the job began: soperator cancel ID, "
        "soperator drain NODE --undo, and submit it again"
    ),
    "launch failure limit exceeded requeued held": (
        "nodes could not start it several times, so it is held: look at sinfo -R, then scontrol "
        "release ID"
    ),
    "user env retrieval failed requeued held": (
        "a node could not read its user's environment, so it is held: look at sinfo -R, then "
        "scontrol release ID"
    ),
    "JobLaunchFailure": "a node could not start it: look at sinfo -R",
    "Licenses": "waits for a licence",
    "NodeDown": "a node that it needs is down: look at sinfo -R",
    "PartitionDown": "its partition takes no jobs to run: look at sinfo",
    "PartitionInactive": "its partition is inactive: look at sinfo",
    "PartitionNodeLimit": "asks for more nodes than its partition gives a job: it never starts",
    "PartitionTimeLimit": "asks for more time than its partition gives a job: it never starts",
    "BadConstraints": "asks for what no node has: it never starts",
    "ReqNodeNotAvail": "a node that it needs is drained, down or reserved: look at sinfo -R",
    "Reservation": "waits for its reservation",
    "Cleaning": "its last run is still being cleaned up",
    "InvalidAccount": "its Slurm account does not exist: declare it in slurm.accounts",
    "InvalidQOS": "its QOS does not exist: declare it in slurm.qos",
    "Prolog": "the checks before a job run on its nodes",
    "SchedDefer": "the scheduler is busy",
    "None": "the scheduler has not looked at it yet",
}
_LIMIT: Final = re.compile(
    r"(?P<who>Assoc|QOS)(?P<scope>Grp|Max)?(?P<what>[A-Za-z]*?)"
    r"(?:PerUser|PerAccount|PerJob|PerNode)?(?:Limit|Minutes)$"
)
_UNAVAILABLE: Final = re.compile(r"ReqNodeNotAvail, ?(?:UnavailableNodes|May be reserved)[: ]*(.*)")


def why(job: Job, names: Mapping[str, str]) -> str:
    """Why the job waits; `names` are those of other jobs, by id."""
    if job.where != "Dependency" or not job.needs:
        return in_words(job.where)
    needed = [f"{names[each]} ({each})" if each in names else f"job {each}" for each in job.needs]
    fails = "it fails" if len(needed) == 1 else "one fails"
    return f"waits until {' and '.join(needed)} succeeded; if {fails}, this one is cancelled"


def in_words(reason: str | None) -> str:
    """The reason for people; a reason that Slurm added since is given as it came."""
    if reason is None:
        return _WORDS["None"]
    if (found := _WORDS.get(reason) or _WORDS.get(reason.replace("_", " "))) is not None:
        return found
    unavailable = _UNAVAILABLE.match(reason)
    if unavailable:
        nodes = unavailable.group(1).strip()
        return _WORDS["ReqNodeNotAvail"] + (f" ({nodes})" if nodes else "")
    limit = _LIMIT.match(reason)
    if limit:
        whose = "team's" if limit.group("who") == "Assoc" else "QOS's"
        return f"the {whose} limit is reached ({reason}): it starts when its other jobs end"
    return reason

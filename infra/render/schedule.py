"""What makes scheduled jobs: scripts that submit them, and the lines of Slurm's scrontab. Pure.

A recurring job of scrontab keeps one id for ever, so its log and results would be written over
each time: it only submits, and every run is a job of its own. Owns those texts and how the lines
get into root's scrontab, between two marks, with whatever a person wrote left as it is.
"""

from __future__ import annotations

import shlex
from typing import Final

from stacks.pipeline import pipeline
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec

FOLDER: Final = "schedules"
"""Folder of a release with what is below; a release without one schedules nothing."""
SCRONTAB: Final = "scrontab"
_BEGIN: Final = "# soperator-stack begin: pulumi up writes these lines, do not edit"
_END: Final = "# soperator-stack end"

# sbatch hands down the variables of the job that submits, and srun reads them as options: srun(1),
# "INPUT ENVIRONMENT VARIABLES". SLURM_CONF says where Slurm is.
_CLEAN: Final = 'for name in ${!SLURM_@}; do [[ $name == SLURM_CONF ]] || unset "$name"; done'


_NO_SCRONTAB: Final = (
    'echo "this login node has no scrontab, which jobs[].schedule needs: take schedule out" >&2'
)


def placeholders(spec: StackSpec) -> frozenset[str]:
    """Names of the jobs by which Slurm's queue holds the next time of every schedule."""
    return frozenset(_placeholder(job) for job in spec.jobs if job.schedule is not None)


def _placeholder(job: JobSpec) -> str:
    return f"schedule-{job.name}"


def schedule_files(spec: StackSpec) -> dict[str, str]:
    """Path in the release -> text; nothing where no job is scheduled."""
    scheduled = [job for job in spec.jobs if job.schedule is not None]
    if not scheduled:
        return {}
    files = {f"{FOLDER}/{job.name}": schedule_script(spec, job) for job in scheduled}
    return {**files, f"{FOLDER}/{SCRONTAB}": scrontab_lines(spec, scheduled)}


def schedule_script(spec: StackSpec, job: JobSpec) -> str:
    """Submits the job with all that it needs, unless its last run is not over."""
    jobs = pipeline(spec, job.name)
    names = ",".join(each.name for each in jobs)
    lines = [
        "#!/bin/bash",
        f"# Submits {job.name} of stack {spec.name} as scheduled; pulumi up renders it: no edits.",
        "set -euo pipefail",
        _CLEAN,
        f"cd {shlex.quote(spec.code_path)}",
        f'active=$(squeue --me --noheader --name={names} --format="%j (%i)" | paste -sd " ")',
        "if [[ -n $active ]]; then",
        f'  echo "soperator: {job.name} is not submitted: $active of the last time is not over"',
        "  exit 0",
        "fi",
    ]
    for each in jobs:
        ids = ":".join(f"${{{_variable(name)}%%;*}}" for name in each.after)
        needs = f"--dependency=afterok:{ids} --kill-on-invalid-dep=yes " if ids else ""
        lines.append(f"{_variable(each.name)}=$(sbatch --parsable {needs}jobs/{each.name})")
        lines.append(f'echo "soperator: {each.name} is job ${_variable(each.name)}"')
    return "\n".join(lines) + "\n"


def scrontab_lines(spec: StackSpec, scheduled: list[JobSpec]) -> str:
    """Our lines of root's scrontab, between their marks."""
    lines = [_BEGIN]
    for job in scheduled:
        options = (
            f"--job-name={_placeholder(job)}",
            f"--partition={job.partition}",
            "--ntasks=1",
            "--cpus-per-task=1",
            "--mem=64M",
            "--time=00:05:00",
            f"--output={spec.storage.places['logs']}/%x_%j.out",
            "--open-mode=append",
        )
        script = shlex.quote(f"{spec.code_path}/current/{FOLDER}/{job.name}")
        lines += [f"#SCRON {option}" for option in options]
        lines.append(f"{' '.join((job.schedule or '').split())} /bin/bash {script}")
    return "\n".join([*lines, _END]) + "\n"


def refuse_lines(release: str) -> str:
    """Shell text, in code_path: a release with schedules goes live only where scrontab is."""
    return f"""
if [ -e releases/{release}/{FOLDER}/{SCRONTAB} ] && ! command -v scrontab >/dev/null; then
  {_NO_SCRONTAB}
  exit 1
fi
""".strip()


def install_lines() -> str:
    """Shell text, in code_path: makes root's scrontab hold the lines of the live release, or none.

    Nothing is asked of a cluster that never had a schedule. Slurm makes every job of a scrontab
    anew when it is written, so one that is right already is left alone.
    """
    ours = f"current/{FOLDER}/{SCRONTAB}"
    return f"""
if [ -e {ours} ] || [ -e .scheduled ]; then
  command -v scrontab >/dev/null || {{
    {_NO_SCRONTAB}
    exit 1
  }}
  touch .scheduled
  # It ends with 1 where nobody wrote a line yet, and lines must outlive any other failure of it.
  if was=$(scrontab -l 2>.scheduled.new); then :; else
    case "$was$(cat .scheduled.new)" in
      "no crontab for "*) was= ;;
      *) cat .scheduled.new >&2; exit 1 ;;
    esac
  fi
  printf '%s\\n' "$was" | sed '/^{_BEGIN}$/,/^{_END}$/d' | sed '/./,$!d' > .scheduled.new
  [ ! -e {ours} ] || cat {ours} >> .scheduled.new
  if [ "$(cat .scheduled.new)" != "$was" ]; then
    if [ -s .scheduled.new ]; then scrontab .scheduled.new; else scrontab -r; fi
  fi
  rm -f .scheduled.new
  [ -e {ours} ] || rm -f .scheduled
fi
""".strip()


def _variable(name: str) -> str:
    return name.replace("-", "_")

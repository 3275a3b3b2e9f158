#!/bin/bash
# Job compare of stack h100-prod; pulumi up renders and replaces it: do not edit.
# In /home/shared/finetune_code: sbatch jobs/compare [--set key=value]
#SBATCH --job-name=compare
#SBATCH --partition=main
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:30:00
#SBATCH --output=/mnt/shared/logs/%x_%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
own_folder() {
  mkdir -- "$1" 2> /dev/null || [[ -d $1 && ! -L $1 && -O $1 ]] || {
    echo "soperator: $1: is a $(stat -c '%F of %U, mode %a' -- "$1"), no folder of" \
      "$(id -un): move it away, as its owner or root: mv -T $1 $1.other" >&2
    exit 78
  }
}
set -euo pipefail

# A job keeps the release that soperator submitted it with, also when it is queued again.
release=${SOPERATOR_RELEASE:+releases/$SOPERATOR_RELEASE}
code=$(readlink -f /home/shared/finetune_code/"${release:-current}")
cd "$code"
export PYTHONPATH=$code PYTHONUNBUFFERED=1
export SOPERATOR_CODE_HASH=${code##*/}
export SOPERATOR_JOB=compare SOPERATOR_STACK=h100-prod
export SOPERATOR_PYTHON=/opt/soperator/venv/bin/python
export SOPERATOR_PLACE_CACHE=/mnt/training/cache
export SOPERATOR_PLACE_CHKPT=/mnt/shared/checkpoints
export SOPERATOR_PLACE_DATA=/mnt/training/data
export SOPERATOR_PLACE_ELASTIC=/mnt/shared/checkpoints/elastic
export SOPERATOR_PLACE_LOGS=/mnt/shared/logs
export SOPERATOR_PLACE_MODEL=/mnt/training/models
export SOPERATOR_PLACE_RESULTS=/mnt/inference/results
export SOPERATOR_PLACE_SCRATCH=/mnt/memory/job_$SLURM_JOB_ID
export HF_HOME=$SOPERATOR_PLACE_CACHE/huggingface
export SOPERATOR_PLATFORM=gpu-h100-sxm SOPERATOR_PRESET=8gpu-128vcpu-1600gb
export OMP_NUM_THREADS=4

mkdir -p $SOPERATOR_PLACE_DATA $SOPERATOR_PLACE_MODEL $SOPERATOR_PLACE_CHKPT $SOPERATOR_PLACE_RESULTS
run=$SOPERATOR_PLACE_RESULTS/$SLURM_JOB_ID
if [[ ${SLURM_RESTART_COUNT:-0} = 0 && ! -L $run && -O $run/run_record.json ]]; then
  mv -T "$run" "$run.of-another-cluster-$(date -u +%Y%m%dT%H%M%SZ)"
fi
own_folder "$run"
# Every node must see the same environment and mounts before ranks wait for each other.
srun --overlap --ntasks=1 --ntasks-per-node=1 --cpus-per-task=4 bash -c 'fail() { echo "soperator: $SOPERATOR_JOB on $(hostname): $1" >&2; exit 78; }
[[ -x $SOPERATOR_PYTHON ]] ||
  fail "$SOPERATOR_PYTHON is missing: run soperator data venv -s $SOPERATOR_STACK, submit again"
for path in "$@"; do
  mountpoint --quiet "$path" || fail "$path is not mounted: run pulumi up, or drain this node"
done
for path in "$SOPERATOR_PLACE_DATA" "$SOPERATOR_PLACE_MODEL"; do
  [[ -z $path || -r $path ]] || fail "$path cannot be read: bring data and models there first"
done
for path in "$SOPERATOR_PLACE_CHKPT" "$SOPERATOR_PLACE_RESULTS"; do
  [[ -z $path || -w $path ]] || fail "$path cannot be written: check its owner and mode"
done
[[ -z $SOPERATOR_SHARED_MARK || -e $SOPERATOR_SHARED_MARK ]] ||
  fail "${SOPERATOR_SHARED_MARK%/*} is not the folder that the first node sees: name a shared one"
mkdir -p "$SOPERATOR_PLACE_SCRATCH" || fail "$SOPERATOR_PLACE_SCRATCH cannot be made: is its node out of memory?"' check /home /mnt/inference /mnt/memory /mnt/shared /mnt/training

exec srun --ntasks=1 --ntasks-per-node=1 --cpus-per-task=4 "$SOPERATOR_PYTHON" -m workloads.evaluate.compare_job --recipe glaive_qwen2_7b "$@"

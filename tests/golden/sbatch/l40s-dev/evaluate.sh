#!/bin/bash
# Job evaluate of stack l40s-dev; pulumi up renders and replaces it: do not edit.
# In /home/shared/finetune_code: sbatch jobs/evaluate [--set key=value]
#SBATCH --job-name=evaluate
#SBATCH --partition=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=2
#SBATCH --time=04:00:00
#SBATCH --output=/mnt/chkpt/logs/%x_%j.out
#SBATCH --open-mode=append
set -euo pipefail

code=$(readlink -f /home/shared/finetune_code/current)
cd "$code"
export PYTHONPATH=$code PYTHONUNBUFFERED=1
export SOPERATOR_CODE_HASH=${code##*/}
export SOPERATOR_JOB=evaluate SOPERATOR_STACK=l40s-dev
export SOPERATOR_PYTHON=/opt/soperator/venv/bin/python
export SOPERATOR_PLACE_CACHE=/mnt/data/cache
export SOPERATOR_PLACE_CHKPT=/mnt/chkpt
export SOPERATOR_PLACE_DATA=/mnt/data
export SOPERATOR_PLACE_ELASTIC=/mnt/chkpt/elastic
export SOPERATOR_PLACE_LOGS=/mnt/chkpt/logs
export SOPERATOR_PLACE_MODEL=/mnt/model
export SOPERATOR_PLACE_RESULTS=/mnt/chkpt/results
export SOPERATOR_PLACE_SCRATCH=/mnt/memory
export SOPERATOR_PLATFORM=gpu-l40s-d SOPERATOR_PRESET=2gpu-64vcpu-384gb
export OMP_NUM_THREADS=8

# Every node must see the same environment and mounts before ranks wait for each other.
srun --ntasks=1 --ntasks-per-node=1 --cpus-per-task=16 bash -c 'fail() { echo "soperator: $SOPERATOR_JOB on $(hostname): $1" >&2; exit 78; }
[[ -x $SOPERATOR_PYTHON ]] ||
  fail "$SOPERATOR_PYTHON is missing: make this Python environment in the jail, then submit again"
for path in "$@"; do
  mountpoint --quiet "$path" || fail "$path is not mounted: run pulumi up, or drain this node"
done' check /home /mnt/chkpt /mnt/data /mnt/memory /mnt/model

read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# A port that is free now on this node, the first: jobs that share a node do not collide.
MASTER_PORT=$("$SOPERATOR_PYTHON" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
export MASTER_ADDR MASTER_PORT SOPERATOR_RANKS_PER_NODE=2
SOPERATOR_EXIT_FILE=$SOPERATOR_PLACE_RESULTS/$SLURM_JOB_ID/.first_exit_status
mkdir -p "${SOPERATOR_EXIT_FILE%/*}"
rm -f "$SOPERATOR_EXIT_FILE"
export SOPERATOR_EXIT_FILE
status=0
# Ranks that wait for a dead one are ended with it.
srun --ntasks=1 --ntasks-per-node=1 --cpus-per-task=16 --kill-on-bad-exit=1 bash -c '"$SOPERATOR_PYTHON" -m workloads.common.launch \
  --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" \
  --nproc-per-node="$SOPERATOR_RANKS_PER_NODE" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" -m "$@" || {
  status=$?
  set -o noclobber
  echo "$status" 2>/dev/null > "$SOPERATOR_EXIT_FILE"
  exit "$status"
}' launch workloads.evaluate --recipe finance_qwen3_14b "$@" || status=$?
# srun has the highest status of all nodes; the first one says why the job failed.
if [[ $status -ne 0 && -s $SOPERATOR_EXIT_FILE ]]; then
  read -r status < "$SOPERATOR_EXIT_FILE"
fi
exit "$status"

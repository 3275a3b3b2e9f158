#!/bin/bash
# Job inference-original of stack h100-prod; pulumi up renders and replaces it: do not edit.
# In /home/shared/finetune_code: sbatch jobs/inference-original [--set key=value]
#SBATCH --job-name=inference-original
#SBATCH --partition=main
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=4
#SBATCH --time=00:30:00
#SBATCH --output=/mnt/shared/logs/users/%u/%x_%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --mem=735232M
own_folder() {
  (umask 077 && mkdir -p -- "${1%/*}" 2> /dev/null) || :
  mkdir -m 700 -- "$1" 2> /dev/null || [[ -d $1 && ! -L $1 && -O $1 ]] || {
    fix="move it away, as its owner or root: mv -T $1 $1.other"
    [[ -e $1 || -L $1 ]] || fix="let root make it: install -d -m 700 -o $(id -un) $1"
    echo "soperator: $1 on $(hostname): $(stat -c "is a %F of %U, mode %a" -- "$1" 2>&1), and has" \
      "to be a folder of $(id -un): $fix" >&2
    exit 78
  }
  chmod 700 -- "$1"
  around=$(stat -L -c "%u %A" -- "${1%/*}")
  case $1/$around in
    /mnt/memory/job_"${SLURM_JOB_ID-}"/*) ;;
    *"/0 d"*[tT] | *"/0 d"????-??-? | *"/$EUID d"????-??-?) ;;
    *)
      echo "soperator: ${1%/*} on $(hostname): $(stat -c "is a %F of %U, mode %a" -- "${1%/*}"), and" \
        "has to be of root or $(id -un), with no others who write: chmod go-w it, or move it away" >&2
      exit 78
      ;;
  esac
}
set -euo pipefail

# A job keeps the release that soperator submitted it with, also when it is queued again.
user=$(id -un)
release=${SOPERATOR_RELEASE:+releases/$SOPERATOR_RELEASE}
own_code=/home/$user/.soperator/h100-prod
code=$own_code/$release
[[ -n $release && -e $code.whole ]] ||
  code=$(readlink -f /home/shared/finetune_code/"${release:-current}")
cd "$code"
export PYTHONPATH=$code PYTHONUNBUFFERED=1
export SOPERATOR_CODE_HASH=${code##*/}
export SOPERATOR_JOB=inference-original SOPERATOR_STACK=h100-prod
export SOPERATOR_PYTHON=/opt/soperator/venv/bin/python
export SOPERATOR_PLACE_CACHE=/mnt/training/cache/users/$user
export SOPERATOR_PLACE_CHKPT=/mnt/shared/checkpoints/users/$user
export SOPERATOR_PLACE_DATA=/mnt/training/data/users/$user
export SOPERATOR_PLACE_ELASTIC=/mnt/shared/checkpoints/elastic/users/$user
export SOPERATOR_PLACE_LOGS=/mnt/shared/logs/users/$user
export SOPERATOR_PLACE_MODEL=/mnt/training/models/users/$user
export SOPERATOR_PLACE_RESULTS=/mnt/inference/results/users/$user
export SOPERATOR_PLACE_SCRATCH=/mnt/memory/job_$SLURM_JOB_ID/$user
export SOPERATOR_SHARED_DATA=/mnt/training/data
export SOPERATOR_SHARED_MODEL=/mnt/training/models
export HF_HOME=$SOPERATOR_PLACE_CACHE/huggingface
export SOPERATOR_PLATFORM=gpu-h100-sxm SOPERATOR_PRESET=8gpu-128vcpu-1600gb NCCL_SOCKET_IFNAME='^docker0,lo'
export OMP_NUM_THREADS=16

own_folder "$SOPERATOR_PLACE_DATA"
own_folder "$SOPERATOR_PLACE_MODEL"
own_folder "$SOPERATOR_PLACE_CHKPT"
own_folder "$SOPERATOR_PLACE_RESULTS"
run=$SOPERATOR_PLACE_RESULTS/$SLURM_JOB_ID
if [[ ${SLURM_RESTART_COUNT:-0} = 0 && ! -L $run && -O $run/run_record.json ]]; then
  mv -T "$run" "$run.of-another-cluster-$(date -u +%Y%m%dT%H%M%SZ)"
fi
own_folder "$run"
SOPERATOR_SHARED_MARK=$(mktemp $SOPERATOR_PLACE_CHKPT/.seen_by_all_XXXXXXXX)
export SOPERATOR_SHARED_MARK
# Every node must see the same environment and mounts before ranks wait for each other.
srun --overlap --ntasks=2 --ntasks-per-node=1 --cpus-per-task=64 bash -c 'fail() { echo "soperator: $SOPERATOR_JOB on $(hostname): $1" >&2; exit 78; }
[[ -x $SOPERATOR_PYTHON ]] ||
  fail "$SOPERATOR_PYTHON is missing: run soperator data venv -s $SOPERATOR_STACK, submit again"
for path in "$@"; do
  mountpoint --quiet "$path" || fail "$path is not mounted: run pulumi up, or drain this node"
done
own_folder() {
  (umask 077 && mkdir -p -- "${1%/*}" 2> /dev/null) || :
  mkdir -m 700 -- "$1" 2> /dev/null || [[ -d $1 && ! -L $1 && -O $1 ]] || {
    fix="move it away, as its owner or root: mv -T $1 $1.other"
    [[ -e $1 || -L $1 ]] || fix="let root make it: install -d -m 700 -o $(id -un) $1"
    echo "soperator: $1 on $(hostname): $(stat -c "is a %F of %U, mode %a" -- "$1" 2>&1), and has" \
      "to be a folder of $(id -un): $fix" >&2
    exit 78
  }
  chmod 700 -- "$1"
  around=$(stat -L -c "%u %A" -- "${1%/*}")
  case $1/$around in
    /mnt/memory/job_"${SLURM_JOB_ID-}"/*) ;;
    *"/0 d"*[tT] | *"/0 d"????-??-? | *"/$EUID d"????-??-?) ;;
    *)
      echo "soperator: ${1%/*} on $(hostname): $(stat -c "is a %F of %U, mode %a" -- "${1%/*}"), and" \
        "has to be of root or $(id -un), with no others who write: chmod go-w it, or move it away" >&2
      exit 78
      ;;
  esac
}
own_folder "$SOPERATOR_PLACE_SCRATCH"
for path in "$SOPERATOR_PLACE_DATA" "$SOPERATOR_PLACE_MODEL"; do
  [[ -z $path || -r $path ]] || fail "$path cannot be read: bring data and models there first"
done
for path in "$SOPERATOR_PLACE_CHKPT" "$SOPERATOR_PLACE_RESULTS"; do
  [[ -z $path || -w $path ]] || fail "$path cannot be written: check its owner and mode"
done
[[ -z $SOPERATOR_SHARED_MARK || -e $SOPERATOR_SHARED_MARK ]] ||
  fail "${SOPERATOR_SHARED_MARK%/*} is not the folder that the first node sees: name a shared one"' check /home /mnt/inference /mnt/memory /mnt/shared /mnt/training

rm -f "${SOPERATOR_SHARED_MARK:-}"
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# A port that is free now on this node, the first: jobs that share a node do not collide.
MASTER_PORT=$("$SOPERATOR_PYTHON" -c 'from workloads.common.launch import free_port; print(free_port())')
# What nodes tell each other is sealed with it; it is on no command line and in no file.
SOPERATOR_RDZV_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export SOPERATOR_RDZV_KEY MASTER_ADDR MASTER_PORT SOPERATOR_RANKS_PER_NODE=4
export SOPERATOR_MIN_NODES=2 SOPERATOR_MAX_NODES=2 SOPERATOR_RESTARTS=3 SOPERATOR_SAVE_S=60
export SOPERATOR_EXIT_FILE=$run/.first_exit_status SOPERATOR_NODES_FILE=$run/.nodes
# Passes signals on, requeues what has saved, and lets the job have lost nodes back.
exec "$SOPERATOR_PYTHON" -m workloads.common.supervise --max-nodes=2 --save-s=60 -- \
srun --ntasks=2 --ntasks-per-node=1 --cpus-per-task=64 --kill-on-bad-exit=1 bash -c 'is_host=0
[[ $SLURM_NODEID != 0 ]] || is_host=1
conf=is_host=$is_host,join_timeout=600,last_call_timeout=${SOPERATOR_LAST_CALL_S:-15}
conf+=,keep_alive_interval=5,keep_alive_max_attempt=3
exec "$SOPERATOR_PYTHON" -m workloads.common.launch \
  --nnodes="$SOPERATOR_MIN_NODES:$SLURM_NNODES" \
  --nproc-per-node="$SOPERATOR_RANKS_PER_NODE" --max-restarts="$SOPERATOR_RESTARTS" \
  --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
  --rdzv-id="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" --rdzv-conf="$conf" \
  --local-addr="$SLURMD_NODENAME" -m "$@"' launch workloads.evaluate.inference_original --recipe glaive_qwen2_7b "$@"

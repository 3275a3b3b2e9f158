#!/bin/bash
# Job serve-vllm of stack l40s-dev; pulumi up renders and replaces it: do not edit.
# In /home/shared/finetune_code: sbatch jobs/serve-vllm [--set key=value]
#SBATCH --job-name=serve-vllm
#SBATCH --partition=serve
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=2
#SBATCH --time=1-00:00:00
#SBATCH --output=/mnt/chkpt/logs/users/%u/%x_%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --mem=349184M
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
own_code=/home/$user/.soperator/l40s-dev
code=$own_code/$release
[[ -n $release && -e $code.whole ]] ||
  code=$(readlink -f /home/shared/finetune_code/"${release:-current}")
cd "$code"
mkdir -p "$own_code"
export PYTHONPATH=$code PYTHONUNBUFFERED=1
export SOPERATOR_CODE_HASH=${code##*/}
export SOPERATOR_JOB=serve-vllm SOPERATOR_STACK=l40s-dev
export SOPERATOR_PYTHON=python3
export SOPERATOR_PLACE_CACHE=/mnt/data/cache/users/$user
export SOPERATOR_PLACE_CHKPT=/mnt/chkpt/users/$user
export SOPERATOR_PLACE_DATA=/mnt/data/users/$user
export SOPERATOR_PLACE_ELASTIC=/mnt/chkpt/elastic/users/$user
export SOPERATOR_PLACE_LOGS=/mnt/chkpt/logs/users/$user
export SOPERATOR_PLACE_MODEL=/mnt/model/users/$user
export SOPERATOR_PLACE_RESULTS=/mnt/chkpt/results/users/$user
export SOPERATOR_PLACE_SCRATCH=/mnt/memory/job_$SLURM_JOB_ID/$user
export SOPERATOR_SHARED_DATA=/mnt/data
export SOPERATOR_SHARED_MODEL=/mnt/model
export HF_HOME=$SOPERATOR_PLACE_CACHE/huggingface
export SOPERATOR_PLATFORM=gpu-l40s-d SOPERATOR_PRESET=2gpu-64vcpu-384gb
export OMP_NUM_THREADS=32

own_folder "$SOPERATOR_PLACE_DATA"
own_folder "$SOPERATOR_PLACE_MODEL"
own_folder "$SOPERATOR_PLACE_CHKPT"
own_folder "$SOPERATOR_PLACE_RESULTS"
run=$SOPERATOR_PLACE_RESULTS/$SLURM_JOB_ID
if [[ ${SLURM_RESTART_COUNT:-0} = 0 && ! -L $run && -O $run/run_record.json ]]; then
  mv -T "$run" "$run.of-another-cluster-$(date -u +%Y%m%dT%H%M%SZ)"
fi
own_folder "$run"
# Every node must see the same environment and mounts before ranks wait for each other.
srun --overlap --ntasks=1 --ntasks-per-node=1 --cpus-per-task=32 bash -c 'fail() { echo "soperator: $SOPERATOR_JOB on $(hostname): $1" >&2; exit 78; }
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
  fail "${SOPERATOR_SHARED_MARK%/*} is not the folder that the first node sees: name a shared one"' check /home /mnt/chkpt /mnt/data /mnt/memory /mnt/model

# A server whose node is taken, or that makes room for another job, waits for nodes anew.
exec "$SOPERATOR_PYTHON" -m workloads.common.supervise --serves --max-nodes=1 --save-s=60 -- \
srun --ntasks=1 --ntasks-per-node=1 --cpus-per-task=32 --container-image=vllm/vllm-openai:v0.33.0 --container-mounts=/home:/home,/mnt/chkpt:/mnt/chkpt,/mnt/data:/mnt/data,/mnt/memory:/mnt/memory,/mnt/model:/mnt/model --container-workdir="$code" --container-env=PYTHONPATH,OMP_NUM_THREADS --no-container-entrypoint --no-container-mount-home "$SOPERATOR_PYTHON" -m workloads.serve --recipe qwen3_14b_serve_2xl40s "$@"

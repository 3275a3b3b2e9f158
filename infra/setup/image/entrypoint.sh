#!/bin/sh
# The image's first word: benchmark [OPTIONS] is the acceptance benchmark by torchrun, on every GPU
# of this node, and never a success without one; any other word, such as torchrun, pytest, python or
# bash, is run as it is.
# Of several nodes: NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT say which this one is.
set -eu
if [ "${1:-}" != benchmark ]; then
    exec "$@"
fi
shift
ranks=${RANKS_PER_NODE:-$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')}
exec torchrun --nnodes="${NNODES:-1}" --node-rank="${NODE_RANK:-0}" --nproc-per-node="$ranks" \
    --master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${MASTER_PORT:-29500}" \
    workloads/accept/benchmark.py --config accept_gpu "$@"

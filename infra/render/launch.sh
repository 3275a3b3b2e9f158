# Read on the node: `exec`, so that signals of Slurm reach torchrun and no shell dies of them.
# last_call_timeout: how long ranks that could start with fewer nodes wait for more.
is_host=0
[[ $SLURM_NODEID != 0 ]] || is_host=1
conf=is_host=$is_host,join_timeout=600,last_call_timeout=${SOPERATOR_LAST_CALL_S:-15}
conf+=,keep_alive_interval=5,keep_alive_max_attempt=3
exec "$SOPERATOR_PYTHON" -m workloads.common.launch \
  --nnodes="$SOPERATOR_MIN_NODES:$SLURM_NNODES" \
  --nproc-per-node="$SOPERATOR_RANKS_PER_NODE" --max-restarts="$SOPERATOR_RESTARTS" \
  --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
  --rdzv-id="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" --rdzv-conf="$conf" \
  --local-addr="$SLURMD_NODENAME" -m "$@"

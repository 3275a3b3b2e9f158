#!/bin/bash
# After a job's end on a node, as root. Of Soperator's checks (helm-slurm-cluster 4.1.7,
# slurm_scripts/) this does job_tmpfs_delete.
set -eu
memory=/mnt/memory
mountpoint -q "$memory" || exit 0
rm -rf -- "$memory/job_$SLURM_JOB_ID"

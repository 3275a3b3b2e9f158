#!/bin/bash
# Before a job's first step on a node, as root. Of Soperator's checks (helm-slurm-cluster 4.1.7,
# slurm_scripts/) this does job_tmpfs_recreate: an empty folder of the job's own in memory.
set -eu
memory=/mnt/memory
mountpoint -q "$memory" || exit 0
folder=$memory/job_$SLURM_JOB_ID
rm -rf -- "$folder"
mkdir -m 777 -- "$folder"

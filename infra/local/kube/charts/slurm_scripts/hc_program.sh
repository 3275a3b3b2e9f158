#!/bin/bash
# Every two minutes on a node, as root. Of Soperator's checks (helm-slurm-cluster 4.1.7,
# slurm_scripts/) this does job_tmpfs_delete_leftover: folders of jobs that ended without an epilog.
set -eu
memory=/mnt/memory
least_age_s=60
mountpoint -q "$memory" || exit 0
# Nothing is deleted while Slurm cannot say which jobs are here.
jobs=$(squeue --noheader --nodelist="$SLURMD_NODENAME" --format=%A) || exit 0
for folder in "$memory"/job_*; do
  [ -d "$folder" ] || continue
  job=${folder##*/job_}
  case $job in *[!0-9]*) continue ;; esac
  ! grep -qx "$job" <<< "$jobs" || continue
  [ $(($(date +%s) - $(stat -c %Y "$folder"))) -ge "$least_age_s" ] || continue
  rm -rf --one-file-system -- "$folder"
done

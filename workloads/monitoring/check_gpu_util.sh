#!/usr/bin/env bash
# How busy the GPUs of this node are: a line for each, and the gate that each has to pass.
#   check_gpu_util.sh [--gate PERCENT]      for people; watch -n 5 .../check_gpu_util.sh
#   check_gpu_util.sh --raw [EVERY_S COUNT] for programs: `soperator runs top` reads it (infra/jobs/top.py)
# Ends with 0 when every GPU that tells is above the gate, 1 when one is not, 69 where no GPU tells, 2 for a wrong
# option.
set -uo pipefail
query=index,utilization.gpu,memory.used,memory.total,power.draw,power.limit
not_run=69
host=$(hostname)
sysfs=${SOPERATOR_SYSFS:-/sys}  # tests have a folder of their own

# nvidia-smi prints its errors where its answer would be: a line that starts with no index is none.
gpus() {
  nvidia-smi "--query-gpu=$query" --format=csv,noheader,nounits 2>/dev/null | tr -d ' ' | grep -E '^[0-9]+,'
}

# A line for each GPU and each InfiniBand port; counters are words of 4 bytes since the start.
# Source: https://docs.kernel.org/admin-guide/abi-stable-files.html (sysfs-class-infiniband), read 2026-11-21.
raw() {
  local lines port device
  lines=$(gpus) || lines=
  if [ -n "$lines" ]; then
    while IFS= read -r line; do echo "gpu,$host,$line"; done <<< "$lines"
  else
    echo "none,$host"
  fi
  for port in "$sysfs"/class/infiniband/*/ports/*; do
    [ -r "$port/counters/port_rcv_data" ] || continue
    device=${port%/ports/*}
    echo "ib,$host,${device##*/}/${port##*/},$(cat "$port/counters/port_rcv_data"),$(cat "$port/counters/port_xmit_data")"
  done
  echo "end,$host,$(date +%s.%N)"
}

case ${1:-} in
  --raw)
    every=${2:-0} count=${3:-1}
    while :; do
      raw
      count=$((count - 1))
      [ "$count" -ne 0 ] || exit 0
      sleep "$every"
    done ;;
  --gate)
    gate=${2:-}
    if ! [[ $gate =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
      echo "--gate '$gate': give a percentage, such as 80" >&2
      exit 2
    fi ;;
  '') gate=80 ;;
  *) echo "usage: $0 [--gate PERCENT] | --raw [EVERY_S COUNT]" >&2; exit 2 ;;
esac

lines=$(gpus) || lines=
if [ -z "$lines" ]; then
  echo "$host: NOT RUN: nvidia-smi is not there, or sees no GPU"
  exit "$not_run"
fi
awk -F, -v host="$host" -v gate="$gate" -v not_run="$not_run" '
  { printf "%s GPU %s: %3s %%  %6s of %6s MiB  %s of %s W\n", host, $1, $2, $3, $4, $5, $6 }
  $2 ~ /^[0-9]+(\.[0-9]+)?$/ { sum += $2; if (!known++ || $2 + 0 < least) { least = $2 + 0; at = $1 } }
  END {
    if (!known) {
      printf "%s: NOT RUN: none of %d GPUs tells its utilisation\n", host, NR
      exit not_run
    }
    passed = least > gate + 0
    printf "%s: least busy of %d GPUs is GPU %s at %.1f %%, gate above %s %%: %s; mean %.1f %%\n", host, known, at, least, gate, passed ? "PASS" : "FAIL", sum / known
    exit !passed
  }' <<< "$lines"

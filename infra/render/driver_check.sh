#!/bin/sh
set -eu
restarted=/var/lib/nvidia-config-restarted
params=/proc/driver/nvidia/params
[ -r "$params" ] || exit 0
check() {
  grep -q "^$1: " "$params" || return 0
  shown=$(sed -n "s/^$1: //p" "$params" | tr -d '"')
  [ "$shown" = "$2" ] && return 0
  if [ -e "$restarted" ]; then
    echo "nvidia: $1 is '$shown' after a restart, not '$2'; see /etc/modprobe.d/nvidia_config.conf" >&2
    exit 1
  fi
  touch "$restarted"
  update-initramfs -u
  reboot
  exit 0
}

refuse() {
  echo "nfs: $1" >&2
  exit 1
}
udevadm settle
for disk in "${disks[@]}"; do
  [ -b "$disk" ] || refuse "$disk is not attached"
done
mkdir -p "$path"
if mountpoint -q "$path"; then exit 0; fi

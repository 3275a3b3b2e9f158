volume=/dev/md/nfs
members=0
for disk in "${disks[@]}"; do
  case $(wipefs --noheadings --output TYPE "$disk") in
    "") ;;
    linux_raid_member) members=$((members + 1)) ;;
    *) refuse "$disk holds something else than part of an array" ;;
  esac
done
if [ "$members" -eq 0 ]; then
  mdadm --create "$volume" --homehost=any --run --level=0 \
    --raid-devices="${#disks[@]}" "${disks[@]}"
elif [ "$members" -eq "${#disks[@]}" ]; then
  # At boot the system assembles what it knows, under a name of its own.
  known=$(lsblk --noheadings --raw --paths --output NAME,TYPE "${disks[0]}" |
    awk '$2 == "raid0" {print $1; exit}')
  if [ -n "$known" ]; then
    volume=$known
  else
    mdadm --assemble "$volume" "${disks[@]}"
  fi
else
  refuse "$members of ${#disks[@]} disks belong to an array; declare as many as it was made of"
fi
found=$(wipefs --noheadings --output TYPE "$volume")

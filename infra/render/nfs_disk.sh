volume=${disks[0]}
found=$(wipefs --noheadings --output TYPE "$volume")
[ "$found" != linux_raid_member ] || refuse "$volume is part of an array of several disks"

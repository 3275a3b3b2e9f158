case $found in
  "") mkfs.ext4 -F "$volume" ;;
  ext4) ;;
  *) refuse "$volume holds $found, not ext4" ;;
esac
mount -o noatime "$volume" "$path"
# A disk that was grown in the cloud; otherwise it changes nothing.
resize2fs "$volume"
exportfs -ra

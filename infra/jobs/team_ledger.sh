# The ledgers of a team whose Slurm keeps no accounts: bash on the login node runs this after own_folder.sh, `folder` and
# `alone`. Standard input is added to the own files, but for lines that they have; then every line of every file (with
# alone=yes of the own) is printed after its owner's name and a tab, those of an older file first. A file is its owner's word
# about the own jobs, whatever name it has and whatever stands in it; so nobody but root may exchange it: the folder is
# root's and sticky, and so is the way to it. Of each owner a bounded part is read, and it is said where there is more.
set -o pipefail
umask 022
export LC_ALL=C
most_bytes=$((4 << 20)) # of a file
most_files=8            # of an owner: the newest, each full but for the last
stop() {
  cat > /dev/null
  [ $# = 0 ] || echo "$*" >&2
  exit 77
}

refuse() {
  stop "$1$(stat -c ", and is a %F of %U, mode %a" -- "$2" 2> /dev/null || echo ", and is not there"); ask root for: install -d -m 1770 -g GROUP $folder"
}

[[ $folder == /* ]] || refuse "$folder: is no path from / on" .
for ((at = ${#folder}; at > 0; at--)); do
  [[ $at == "${#folder}" || ${folder:at:1} == / ]] || continue
  case $(stat -c "%u %A" -- "${folder::at}" 2>&1) in
    "0 d"*[tT] | "0 d"????-??-?) ;;
    *) refuse "$folder: ${folder::at} has to be root's, with no others who can move what is in it" "${folder::at}" ;;
  esac
done
[ -w "$folder" ] || refuse "$folder: $(id -un) cannot write into it" "$folder"

(own_folder "$HOME/.soperator/.ledger") || stop
lock=$HOME/.soperator/.ledger/lock # whoever can open a lock can hold it for ever, so it is not in the team's folder
exec 9>> "$lock" && flock -w 60 9 || stop "$lock on $(hostname): for a minute another soperator of $(id -un) held it, or it \
cannot be locked; let that one end (fuser -v $lock there names it), then run this again"

uid=$(id -u)
new_file() {
  local made
  made=$(mktemp "$folder/$uid.XXXXXXXX") && chmod 644 "$made" && echo "$made"
}

files=("$folder" -mindepth 1 -maxdepth 1 -ignore_readdir_race -type f)
# -links 1: another may have led to any file of this user.
mapfile -d "" -t own < <(find "${files[@]}" -user "$uid" -links 1 -printf "%T@ %p\0" | sort -znr)
own=("${own[@]#* }")
[ "${#own[@]}" != 0 ] || own=("$(new_file)")
[ -f "${own[0]}" ] || stop
[ -z "$(tail -c 1 "${own[0]}")" ] || echo >> "${own[0]}" || stop # a writer was killed in its line
new=$(awk 'FILENAME != "-" { told[$0]; next } !($0 in told)' <(head -qc "$most_bytes" -- "${own[@]}") -) || stop
if [ -n "$new" ] && (($(stat -c %s -- "${own[0]}") + ${#new} < most_bytes)); then
  printf "%s\n" "$new" >> "${own[0]}" && sync -- "${own[0]}" || stop
elif [ -n "$new" ]; then
  export folder uid && export -f new_file
  printf "%s\n" "$new" | SHELL=$BASH split -C "$most_bytes" - --filter='file=$(new_file) && cat > "$file" && sync -- "$file"' || stop
fi

choose() {
  local record owner inode size path
  local -A name num seen
  while IFS= read -r -d "" record; do
    read -r _ owner inode size _ <<< "$record"
    path=${record#* * * * }
    [ -z "${seen[$inode]}" ] || continue # a hard link
    seen[$inode]=yes
    [ -n "${name[$owner]}" ] || name[$owner]=$(id -un "$owner" 2> /dev/null) || name[$owner]=$owner
    if ((++num[$owner] > most_files)); then
      ((num[$owner] > most_files + 1)) || echo "${name[$owner]} has more than $most_files files there, and of them the newest are read" >&2
      continue
    fi
    ((size <= most_bytes)) || echo "${path@Q} of ${name[$owner]} has $size bytes, and of them the first $most_bytes are read" >&2
    printf "%s\0" "${record%% *} ${name[$owner]}"$'\t'"$path"
  done
}

[ "$alone" != yes ] || files+=(-user "$uid")
find "${files[@]}" -printf "%T@ %U %D:%i %s %p\0" | sort -znr | choose | sort -zn | while IFS= read -r -d "" record; do
  name=${record%%$'\t'*}
  # What lies there now may be another thing, but of the same owner still: a link or a pipe is not followed.
  timeout 10 dd if="${record#*$'\t'}" iflag=nofollow,nonblock,fullblock bs="$most_bytes" count=1 status=none |
    # No entry is so short: without its name before each of a million short lines, what is printed is no more than what is read.
    NAME=${name#* } awk 'length >= 40 || (NF && !short++) { print ENVIRON["NAME"] "\t" $0 }' # also ends a line that has no end
  : # what cannot be read is said, and keeps nobody from the rest
done

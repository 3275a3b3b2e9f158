# Makes the environment `final` of version `version`. uv's cache is beside it, on the same
# filesystem: files are linked, not copied, and a second version costs what changed. The folder of a
# version gets its name when it is whole. `exit 3`: told apart from a package that was not found.
set -eu
umask 022
made=$final-$version
stop() { echo "$1" >&2; exit 3; }
[ -L "$final" ] || [ ! -e "$final" ] ||
  stop "not made by this command: move it away, or declare another python_env_path"
roots "$(dirname "$final")" || stop "nothing was made"
for each in "$final" "$final".* "$final"-*; do
  if [ -e "$each" ] || [ -L "$each" ]; then
    [ "$(stat -c %u "$each")" = "$(id -u)" ] ||
      stop "$(describe "$each"), and has to be root's: mv -T $each $each.other"
  fi
done
(umask 077; : >> "$final.lock"); chmod 600 "$final.lock" # who may read a file may lock it for ever
exec 9>"$final.lock"
flock -n 9 || stop "another one is being made; wait for it ($final.lock)"
# A Python below root's home, where uv fetches one by default, is none for anybody else. On an
# attached cluster it is for nobody else, and the environment itself lies below a home.
is_for_all() {
  case $users$(readlink -f "$1/bin/python" || true) in
    all"${HOME:-/root}"/*) return 1 ;;
    *) [ -x "$1/bin/python" ] ;;
  esac
}
if [ "$(readlink "$final" || true)" = "$made" ] && is_for_all "$made"; then
  echo "same"
  exit 0
fi
begin=$(date +%s)
if ! is_for_all "$made"; then
  locks=$(mktemp -d)
  trap 'rm -rf "$locks"' EXIT
  tar -xz --no-same-owner -C "$locks"
  export UV_CACHE_DIR=$final.cache UV_PYTHON_INSTALL_DIR=$final.python UV_NO_PROGRESS=1
  uv=$(command -v uv || true)
  if [ -z "$uv" ]; then
    python3 -m venv "$locks/uv" || stop "apt-get install python3-venv on the login node first"
    with_pip_options "$locks/uv/bin/python" -m pip install --quiet --disable-pip-version-check \
      --require-hashes -r "$locks/$bootstrap" >&2
    uv=$locks/uv/bin/uv
  fi
  rm -rf "$made.part"
  "$uv" venv --quiet --relocatable --python "$python" "$made.part" >&2
  is_for_all "$made.part" ||
    stop "$(readlink -f "$made.part/bin/python") is root's alone: install Python $python for all"
  with_uv_options "$uv" pip sync --quiet --require-hashes --compile-bytecode \
    --python "$made.part/bin/python" "$locks/$lock" >&2
  "$uv" pip check --quiet --python "$made.part/bin/python" >&2
  site=$("$made.part/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # What an editable install leaves too: `import workloads` finds the live release in any shell.
  echo "$code/current" >"$site/soperator-workloads.pth"
  rm -rf "$made"
  mv -T "$made.part" "$made"
fi
ln -sfn "$made" "$final.new"
mv -T "$final.new" "$final"
echo "made $(( $(date +%s) - begin )) $(du -sm "$made" | cut -f1)"

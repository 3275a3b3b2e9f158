#!/bin/sh
# Makes .venv from the lock files: the one step that must work before any Python of ours does.
# Skipped when .venv already has exactly what the lock files say; an interrupted run starts over.
# With the word attach: without torch and what trains, which the cluster of others runs.
set -eu
cd "$(dirname "$0")/../../.."

say() { printf '%s\n' "$*" >&2; }
stop() { say "setup: $1"; say "       $2"; exit 1; }

# The packages take minutes where the index is far: a line says what goes on, and for how long.
quiet_s=8
begin() {
    end
    say "setup: $1"
    began=$(date +%s)
    # Also after `kill -9` of this script none goes on; and a pipe is not held open by its sleep.
    while sleep "$quiet_s" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        say "setup: still: $1, $(($(date +%s) - began)) s"
    done &
    ticker=$!
}
end() { [ -z "${ticker:-}" ] || kill "$ticker" 2>/dev/null || :; }
trap end EXIT

# The folder is part of the key: scripts in a virtual environment name it, so a moved one is dead.
key_of() { echo "$(cat "$@" infra/setup/tools/bootstrap.lock pyproject.toml | sha256sum | cut -c1-16) $(pwd -P)"; }
made=$(cat .venv/.complete 2>/dev/null) || made=
set -- "${1:-}" requirements.lock requirements-workloads.lock requirements-gpu.lock
mode=$1
shift
key=$(key_of "$@")
[ "$made" != "$key" ] || exit 0
size="2 GB"
if [ "$mode" = attach ]; then
    set -- requirements.lock
    key=$(key_of "$@")
    [ "$made" != "$key" ] || exit 0
    size="1 GB"
fi

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null 2>&1 ||
    stop "python3.11 is not on PATH" "Debian 12 has it: apt-get install python3.11 python3.11-venv"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    stop "$python is not Python 3.11" "set PYTHON to a Python 3.11"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    stop "$python has no venv module" "apt-get install python3.11-venv"

rm -f .venv/.complete
if ! .venv/bin/python -c 'import pip' 2>/dev/null || [ "$(.venv/bin/python -c 'import sys; print(sys.prefix)')" != "$(pwd -P)/.venv" ]; then
    begin "virtual environment .venv"
    rm -rf .venv
    "$python" -m venv .venv || stop ".venv could not be made" "look above; is the disk full (df -h .)?"
fi
begin "uv, which installs the rest"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r infra/setup/tools/bootstrap.lock ||
    stop "uv could not be installed" "the package index must be reachable: python3.11 -m pip download uv"

names=$(echo "$@" | sed 's/ /, /g')
begin "Python packages from $names ($size at first)"
# uv links from its cache; a cache on another disk means copies, which is no reason to warn.
# Compiled here, because Python does not where PYTHONDONTWRITEBYTECODE is set (containers, CI):
# each start of a provider would compile the SDK of Nebius again, 4 s of a preview.
UV_LINK_MODE=${UV_LINK_MODE:-hardlink}
export UV_LINK_MODE
.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes --compile-bytecode "$@" ||
    stop "packages could not be installed" "look above; then run this again, it goes on where it was"
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable . ||
    stop "the soperator command could not be installed" "look above"
printf '%s\n' "$key" >.venv/.complete

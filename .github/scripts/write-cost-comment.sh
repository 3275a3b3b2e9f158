#!/bin/sh
# Writes what the checkout's stacks cost more or less than those of another commit, as Markdown.
#   write-cost-comment.sh COMMIT FILE
set -eu
commit=$1
file=$2

folder=$(mktemp -d)
trap 'git worktree remove --force "$folder/base" 2>/dev/null || true; rm -rf "$folder"' EXIT
git worktree add --quiet --detach "$folder/base" "$commit"
# The stack files let in whoever has this key; no price depends on it.
ssh-keygen -q -t ed25519 -N '' -C cost-comment -f "$folder/key"
SOPERATOR_SSH_PUBLIC_KEY_FILE=$folder/key.pub
SOPERATOR_STATE=$folder/state
export SOPERATOR_SSH_PUBLIC_KEY_FILE SOPERATOR_STATE

"${SOPERATOR_BIN:-soperator}" cost --compare "$folder/base" --format markdown --output "$file"

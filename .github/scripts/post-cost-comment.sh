#!/bin/sh
# Posts FILE on a pull request, in place of the comment that this script posted there before.
#   GH_TOKEN=... post-cost-comment.sh OWNER/NAME NUMBER FILE
set -eu
repository=$1
number=$2
file=$3

# The first line of the file is a mark that no reader sees; only our own comment starts with it.
mark=$(sed -n 1p "$file")
case $mark in
    "<!-- "*" -->") ;;
    *) echo "post-cost-comment: $file does not start with a mark" >&2; exit 1 ;;
esac
MARK=$mark
export MARK
comments=repos/$repository/issues/$number/comments
id=$(gh api --paginate "$comments" \
    --jq '.[] | select(.user.type == "Bot" and (.body | startswith(env.MARK))) | .id' | sed -n 1p)
if [ -n "$id" ]; then
    gh api --silent --method PATCH "repos/$repository/issues/comments/$id" --field body=@"$file"
else
    gh api --silent --method POST "$comments" --field body=@"$file"
fi

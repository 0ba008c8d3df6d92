#!/usr/bin/env bash
# A room of src/ includes itself and what lies below it: the rooms of lower floors, and those on its own floor that stand
# before it in the map. Nothing under include/ includes a room, and no room reaches up by the public header of another.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# From the ground up, one floor a line.
rooms='
result
identity resp
keyspace wire
script client
events bus archive cache
queue
worker journal
serve testing
'
declare -A floor=()
height=0
for room in $rooms; do
  floor[$room]=$((height += 1))
done

# Public headers that belong to one room; a header without an entry may be included from anywhere.
declare -A room_of=(
  [stream]=bus [group_consumer]=bus [retention]=bus [archive]=archive [archiver]=archive [bus]=bus [cache]=cache [hydration]=cache [journal]=journal [queue]=queue [lane]=queue [flow]=queue [worker]=worker [observer]=worker
  [metrics]=worker)

broken=0
complain() {
  printf '%s\n' "$*"
  broken=1
}

for folder in src/*/; do
  room=$(basename "$folder")
  [ -n "${floor[$room]:-}" ] || complain "src/$room: no such room in tests/lint/floors.sh"
done

while IFS=: read -r file line include; do
  room=${file#src/}
  room=${room%%/*}
  path=$(sed -E 's/.*["<]([^">]+)[">].*/\1/' <<<"$include")
  case $path in
    echomq/testing/*) target=testing ;;
    echomq/*.hpp)
      name=${path#echomq/}
      target=${room_of[${name%.hpp}]:-}
      ;;
    */*) target=${path%%/*} ;;
    *) target='' ;;
  esac
  [ -n "$target" ] && [ -n "${floor[$target]:-}" ] && [ "$target" != "$room" ] || continue
  if [ "${floor[$target]}" -gt "${floor[$room]:-0}" ]; then
    complain "$file:$line: $room includes $path of $target, which lies above it"
  fi
done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' src --include='*.hpp' --include='*.cpp')

while IFS=: read -r file line include; do
  path=$(sed -E 's/.*["<]([^">]+)[">].*/\1/' <<<"$include")
  if [ -n "${floor[${path%%/*}]:-}" ]; then
    complain "$file:$line: a public header includes $path"
  fi
done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<][a-z_]+/' include --include='*.hpp')

exit "$broken"

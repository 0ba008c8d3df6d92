#!/usr/bin/env bash
# Every relative link of a Markdown file leads to something that exists, headings included.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The anchors of a file, as the usual renderers make them from its headings.
anchors() {
  awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ +/, ""); print }' "$1" |
    tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

broken=0
while read -r file; do
  while read -r link; do
    case $link in
      *://* | mailto:*) continue ;;
    esac
    path=${link%%#*}
    target=$file
    [ -z "$path" ] || target=$(dirname "$file")/$path
    if [ ! -e "$target" ]; then
      printf '%s: %s leads nowhere\n' "$file" "$link"
      broken=1
    elif [[ $link == *#* && $target == *.md ]] && ! grep -qxF -- "${link#*#}" <(anchors "$target"); then
      printf '%s: no heading for %s\n' "$file" "$link"
      broken=1
    fi
  done < <(awk '/^```/ { code = !code } !code' "$file" | sed 's/`[^`]*`//g' |
    grep -oE '\]\([^) ]+\)' | sed -E 's/^\]\(//; s/\)$//')
done < <(find . -name '*.md' -not -path './build/*' -not -path './.git/*' -not -path '*/node_modules/*' | sort)
exit "$broken"

#!/bin/sh
# Writes the fragments into the scripts between "-- [name]" and "-- [end]". With --check nothing is written: the scripts whose
# committed text is not the expansion are named and the exit code is 1. A fragment's line "-- Expects nothing..." stays in the fragment.
set -eu
cd "$(dirname "$0")"
stale=0
next=$(mktemp)
trap 'rm -f "$next"' EXIT
for script in $(find canonical extension -name '*.lua' | sort); do
  awk '
    function marker(line) { return match(line, /^ *-- \[[a-z_]+\]$/) }
    function name_of(line) { sub(/^ *-- \[/, "", line); sub(/\]$/, "", line); return line }
    function indent_of(line) { match(line, /^ */); return substr(line, 1, RLENGTH) }
    function put(name, indent, inner,    file, line, status) {   # inner fragments lose their markers
      file = "fragments/" name ".lua"
      while ((status = (getline line < file)) > 0) {
        if (line ~ /^-- Expects nothing/) continue
        if (marker(line) && name_of(line) == "end") continue
        if (marker(line)) put(name_of(line), indent indent_of(line), 1)
        else print (line == "" ? "" : indent line)
      }
      if (status < 0) { print FILENAME ": no fragment " name > "/dev/stderr"; failed = 1; exit 1 }
      close(file)
    }
    !marker($0) { if (!inside) print; next }
    name_of($0) == "end" { if (!inside) { print FILENAME ": end without a fragment" > "/dev/stderr"; failed = 1; exit 1 }
                           inside = 0; print; next }
    inside { print FILENAME ": a fragment is not ended" > "/dev/stderr"; failed = 1; exit 1 }
    { print; put(name_of($0), indent_of($0), 0); inside = 1 }
    END { if (failed || inside) exit 1 }
  ' "$script" >"$next"
  if ! cmp -s "$next" "$script"; then
    if [ "${1:-}" = --check ]; then
      echo "$script differs from the expansion of its fragments" >&2
      stale=1
    else
      cat "$next" >"$script"
    fi
  fi
done
exit $stale

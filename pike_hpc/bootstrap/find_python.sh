#!/bin/sh
# Print a Python 3.11 to 3.13 that can make a virtual environment, or say what to type.
# Usage: find_python.sh [SITE]   (SITE's own "module load" line is tried last)
site=${1:-}
usable='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

for python in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
    if "$python" -c "$usable" >/dev/null 2>&1; then
        command -v "$python"
        exit 0
    fi
done

config="site_configs/${site%%:*}.yaml"
if [ -z "${PYTHON:-}" ] && [ -f "$config" ]; then
    module=$(sed -n 's/.*\(module load [^"]*python[^"]*\).*/\1/p' "$config" | head -n 1)
    if [ -n "$module" ]; then
        # A login shell may greet on stdout first.
        if said=$(bash -lc "$module >/dev/null 2>&1 && python3 -c '$usable' && command -v python3")
        then
            printf '%s\n' "$said" | tail -n 1
            exit 0
        fi
    fi
fi

cat >&2 <<EOF
No usable Python found: pike-hpc needs 3.11, 3.12 or 3.13 with the venv module.
  tried: ${PYTHON:-python3.13 python3.12 python3.11 python3}${module:+, then '$module'}
  next:  Debian: apt-get install python3.11-venv python3.11-dev
         cluster: name it, make ... SITE=NAME, or module load python; then the same command again
         elsewhere: make PYTHON=/path/to/python3.11 ...
EOF
exit 2

#!/usr/bin/env bash
# Measure this GPU without network: first_hour.sh [FOLDER_OF_WHEELS] [words of `python -m benchmarks.gpu` …]
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
site=$(mktemp -d) # it stays
if [[ ${1:--} != -* ]]; then
  [[ -d $1 ]] || { echo "first_hour.sh: there is no folder $1: benchmarks/gpu/wheels.sh makes it" >&2; exit 2; }
  python3 -m pip install --quiet --no-index --no-deps --target "$site" "$1"/*.whl
  shift
fi
export PYTHONPATH=$root:$site${PYTHONPATH:+:$PYTHONPATH}
exec python3 -m benchmarks.gpu "$@" # a signal reaches it, and the page is written

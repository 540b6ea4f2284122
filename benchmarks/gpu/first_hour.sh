#!/usr/bin/env bash
# Measure this GPU without network: first_hour.sh [FOLDER_OF_WHEELS] [words of `python -m benchmarks.gpu` …]
# The wheels, those of wheels.sh, go to a temporary folder, which stays.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
site=$(mktemp -d)
if [[ -d ${1:-} ]]; then
  python3 -m pip install --quiet --no-index --no-deps --target "$site" "$1"/*.whl
  shift
fi
export PYTHONPATH=$root:$site${PYTHONPATH:+:$PYTHONPATH}
exec python3 -m benchmarks.gpu "$@" # a signal reaches it, and the page is written

#!/usr/bin/env bash
# Download what `icestream run` needs on local files and an image with torch, numpy, pyarrow, h5py, msgpack, click,
# fsspec, aiohttp, tensorboard and nvidia-ml-py lacks, for Linux and Python 3.12, as constraints.txt pins it:
# wheels.sh FOLDER. Then carry the folder to the machine, for first_hour.sh.
set -euo pipefail

folder=${1:?usage: wheels.sh FOLDER}
constraints=$(dirname "$0")/../../constraints.txt
packages=(pydantic pydantic_core annotated-types typing-inspection typing_extensions pyzmq rich tenacity prometheus_client)
pins=()
for package in "${packages[@]}"; do
  pins+=("$(grep -i "^${package//[-_]/[-_]}==" "$constraints")")
done
platforms=()
for version in 2_17 2_24 2_26 2_27 2_28 2_31 2_34; do
  platforms+=(--platform "manylinux_${version}_x86_64")
done
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --platform manylinux2014_x86_64 "${platforms[@]}" --dest "$folder" "${pins[@]}"

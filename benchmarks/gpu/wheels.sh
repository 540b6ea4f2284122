#!/usr/bin/env bash
# Download to FOLDER, for Linux and Python 3.12 and as constraints.txt pins it, what `icestream run` needs on local files
# beside torch, numpy, pyarrow, h5py, msgpack, click, fsspec, aiohttp, tensorboard and nvidia-ml-py.
set -euo pipefail

folder=${1:?usage: wheels.sh FOLDER}
packages=(pydantic pydantic_core annotated-types typing-inspection typing_extensions pyzmq rich tenacity prometheus_client)
options=(--no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux2014_x86_64)
for version in 2_17 2_26 2_28 2_34; do
  options+=(--platform "manylinux_${version}_x86_64")
done
for package in "${packages[@]}"; do
  options+=("$(grep -i "^${package//[-_]/[-_]}==" "$(dirname "$0")/../../constraints.txt")")
done
python3 -m pip download --quiet --dest "$folder" "${options[@]}"

# Three images: `icestream-data` for the fetcher, the decoders and the demo data, `icestream` with torch for the rest, and
# `icestream-gpu`, the same with what compiling for a GPU needs.
#
# Build: docker build --target training -t icestream .        (data: icestream-data, gpu: icestream-gpu)
# Mirrors: --build-arg PIP_INDEX_URL=… (or PIP_FIND_LINKS); empty means pip's own default.
# On Linux the torch wheel of PyPI brings CUDA with it; a CPU-only wheel comes from whatever PIP_FIND_LINKS points to.
# All other packages are those whose hashes stand in configs/images (`make locks` writes them from constraints.txt).

FROM python:3.11-slim AS wheel
ARG PIP_INDEX_URL=
ARG PIP_FIND_LINKS=
WORKDIR /src
COPY configs/images/build.txt /
RUN pip install --no-cache-dir --require-hashes -r /build.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY common/ common/
COPY icestream/ icestream/
COPY services/ services/
COPY workloads/ workloads/
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

FROM python:3.11-slim AS packages
ARG PIP_INDEX_URL=
ARG PIP_FIND_LINKS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# All services must have the same uid: the run's sockets accept their owner only.
# A new named volume takes over the owner of the directory it is mounted on, and a tmpfs its mode.
RUN useradd --uid 1000 --create-home icestream \
    && install --directory --owner icestream --group icestream /run-dir /data /demo \
    && install --directory --mode 1777 /scratch
COPY configs/images/data.txt /
RUN pip install --require-hashes -r /data.txt
# /scratch is all that libraries may write besides the run directory (compose makes the rest read-only).
ENV PYTHONUNBUFFERED=1 TMPDIR=/scratch XDG_CACHE_HOME=/scratch/cache MPLCONFIGDIR=/scratch/matplotlib
WORKDIR /home/icestream
ENTRYPOINT ["icestream"]
CMD ["--help"]

FROM packages AS data
COPY --from=wheel /wheel /wheel
RUN pip install --no-deps /wheel/*.whl
USER icestream

FROM packages AS training
# A stage doesn't inherit them.
ARG PIP_INDEX_URL=
ARG PIP_FIND_LINKS=
COPY constraints.txt configs/images/training.txt /
RUN pip install --require-hashes -r /training.txt
# Without a hash, and so what it brings with it for CUDA: its wheels differ by source.
RUN pip install -c /constraints.txt torch
COPY --from=wheel /wheel /wheel
RUN pip install --no-deps /wheel/*.whl
USER icestream

# For a GPU, `trainer.wgan.compile`: Triton compiles kernels itself, and their launchers with a C compiler against Python's headers, which the
# base image has. Last, so that no other target builds it.
FROM training AS gpu
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --mode 1777 /compiled
# Compiled code is loaded from there: /scratch of compose is mounted noexec.
ENV TORCHINDUCTOR_CACHE_DIR=/compiled/inductor TRITON_CACHE_DIR=/compiled/triton CUDA_CACHE_PATH=/compiled/cuda
USER icestream
# Fails where something is missing: a torch without CUDA, for example, which comes without Triton.
RUN python -c "import torch; from workloads.base.device import require_compiler; \
    require_compiler(torch.device('cuda'), 'trainer.wgan.compile')"

# One image for every service: compose starts it as fetcher, decoder or trainer.
#
# Build: docker build -t icestream .
# Mirrors: --build-arg PIP_INDEX_URL=… (or PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS); empty means pip's own default.
# On Linux the torch wheel of PyPI brings CUDA with it; a CPU-only wheel comes from whatever PIP_FIND_LINKS points to.

# The list of dependencies alone. The install below is cached on this file's content, so that editing the code,
# or a tool's settings in pyproject.toml, doesn't download torch again.
FROM python:3.11-slim AS requirements
COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
    > requirements.txt

FROM python:3.11-slim

ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_FIND_LINKS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# All services must have the same uid: the run's sockets accept their owner only.
# A new named volume takes over the owner of the directory it is mounted on, and a tmpfs its mode.
RUN useradd --uid 1000 --create-home icestream \
    && install --directory --owner icestream --group icestream /run-dir \
    && install --directory --mode 1777 /scratch

WORKDIR /src
COPY constraints.txt ./
COPY --from=requirements requirements.txt ./
RUN pip install -c constraints.txt -r requirements.txt

COPY pyproject.toml README.md ./
COPY common/ common/
COPY icestream/ icestream/
COPY services/ services/
COPY workloads/ workloads/
RUN pip install -c constraints.txt . && rm -rf build *.egg-info

# /scratch is all that libraries may write besides the run directory (compose makes the rest read-only).
ENV PYTHONUNBUFFERED=1 TMPDIR=/scratch XDG_CACHE_HOME=/scratch/cache MPLCONFIGDIR=/scratch/matplotlib
USER icestream
WORKDIR /home/icestream
ENTRYPOINT ["icestream"]
CMD ["--help"]

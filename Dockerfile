# A peer with a CPU build of torch, run by a user without rights.
#
#   docker build -t swarmd .
#   docker run -v swarmd-home:/var/lib/swarmd -p 4710-4711:4710-4711 swarmd join --no-input LINK
#
# BASE is any Debian-based image with Python 3.11 or newer. TORCH_INDEX is a package index that has CPU
# builds of torch; without one pip takes its usual build, which brings gigabytes for GPUs that a
# container without devices cannot use.

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/swarmd/bin:$PATH
# fastecdsa, a dependency of libp2p, is built from source.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential libgmp-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/swarmd
WORKDIR /src
# torch first: it changes rarely, and this layer is the large one.
COPY constraints.txt ./
RUN env ${TORCH_INDEX:+PIP_INDEX_URL="$TORCH_INDEX"} pip install -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY swarmd/ swarmd/
COPY cli/ cli/
COPY protocols/ protocols/
RUN pip install -c constraints.txt .

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgmp10 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /var/lib/swarmd --shell /usr/sbin/nologin swarmd \
    && install -d -o swarmd -g swarmd -m 0700 /var/lib/swarmd
COPY --from=build /opt/swarmd /opt/swarmd
ENV PATH=/opt/swarmd/bin:$PATH SWARMD_HOME=/var/lib/swarmd PYTHONUNBUFFERED=1
# By number: Kubernetes and others cannot tell from a name that it is not root.
USER 10001
WORKDIR /var/lib/swarmd
VOLUME /var/lib/swarmd
EXPOSE 4710 4711
# SIGTERM drains, which takes up to a minute: `docker stop -t 75`.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD swarmd status --quiet >/dev/null 2>&1 || exit 1
ENTRYPOINT ["swarmd"]
CMD ["join", "--no-input"]

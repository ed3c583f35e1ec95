# docker build -f deploy/docker/sidecar.Dockerfile -t paceline/sidecar:0.2.0 .
#
# A machine without a registry or an index replaces two stages by named contexts:
# `base` by any image with Python 3.11, `wheels` by a folder with wheels/ in it.

FROM python:3.11-slim-bookworm AS base

FROM base AS requirements
COPY pyproject.toml /
RUN python3 -c "import tomllib; print(*tomllib.load(open('/pyproject.toml', 'rb'))['project']['optional-dependencies']['sidecar'], sep='\n')" > /requirements.txt

FROM base AS wheels
COPY --from=requirements /requirements.txt /
RUN python3 -m pip wheel --no-cache-dir --wheel-dir /wheels -r /requirements.txt

FROM base
RUN python3 -m venv /opt/paceline
COPY --from=requirements /requirements.txt /opt/paceline/
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    /opt/paceline/bin/pip install --no-cache-dir --no-index --find-links /wheels -r /opt/paceline/requirements.txt
# A name for the user, because libraries ask for it; a home that can be written to.
RUN useradd --uid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin paceline
# The packages that this process imports and no others, compiled, as its root file system is read-only.
COPY LICENSE /opt/paceline/
WORKDIR /opt/paceline/lib/python3.11/site-packages
COPY engine/paceline_wire paceline_wire
COPY sidecar/paceline_page paceline_page
COPY sidecar/paceline_sidecar paceline_sidecar
RUN chmod -R u=rwX,go=rX paceline_* \
    && /opt/paceline/bin/python -m compileall -q --invalidation-mode unchecked-hash paceline_*
WORKDIR /
# Here and not in the pod's template, a change of which restarts pods: where gateways hear of the load.
ENV PACELINE_SIDECAR_LOAD_REPORT_PORT=8002
# PYTHONSAFEPATH: no folder of the working directory can ever hide a module.
ENV PATH=/opt/paceline/bin:/usr/local/bin:/usr/bin:/bin PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "paceline_sidecar"]

# A CPU server that recognises posted photos (examples/camera_server.py). Build at the root of the checkout:
#   docker build -f examples/docker/cpu-server.Dockerfile -t refocus-server .
#   docker run -p 127.0.0.1:8430:8430 -v ./bundle:/bundle:ro -v profiles:/profiles refocus-server
FROM debian:bookworm-slim AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python3 -m venv /opt/refocus && /opt/refocus/bin/pip install --no-cache-dir '.[cpu]'

FROM debian:bookworm-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 990 --create-home refocus \
    && install -d -o refocus /profiles
COPY --from=build /opt/refocus /opt/refocus
COPY examples/camera_server.py /opt/camera_server.py
USER 990
VOLUME /profiles
EXPOSE 8430
ENTRYPOINT ["/opt/refocus/bin/python", "/opt/camera_server.py", "/bundle", "--profiles", "/profiles", "--host", "0.0.0.0"]

# A Jetson with JetPack 5 (L4T R35): Ubuntu 20.04, CUDA 11.4, TensorRT 8.5. Its Python is 3.8 and Refocus needs 3.10, so the
# system's TensorRT binding cannot be used: bundles run on the CPU cores, with ONNX Runtime from the package index. Export
# with --opset jetpack5 if other programs on the board read the ONNX files. Build on the board, at the root of the checkout:
#   docker build -f examples/docker/jetpack5.Dockerfile -t refocus-jetpack5 .
#   docker run -v ./bundle:/bundle:ro -v profiles:/profiles refocus-jetpack5 check /bundle
FROM nvcr.io/nvidia/l4t-base:35.4.1
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends software-properties-common gcc libc6-dev \
    && add-apt-repository -y ppa:deadsnakes/ppa \
    && apt-get install -y --no-install-recommends python3.10 python3.10-dev python3.10-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python3.10 -m venv /opt/refocus \
    && /opt/refocus/bin/pip install --no-cache-dir '.[cpu,bench,update]' \
    && useradd --system --uid 990 --create-home refocus \
    && install -d -o refocus /profiles
USER 990
VOLUME /profiles
ENTRYPOINT ["/opt/refocus/bin/refocus"]

# A Jetson with JetPack 6 (L4T R36): Ubuntu 22.04, CUDA 12, TensorRT for the system's Python 3.10. The environment sees the system's
# packages, so the runtime `tensorrt` uses the GPU; export with --to tensorrt:fp16,onnx:fp32. Build on the board, at the root of the
# checkout; the run needs NVIDIA's container runtime:
#   docker build -f examples/docker/jetpack6.Dockerfile -t refocus-jetpack6 .
#   docker run --runtime nvidia -v ./bundle:/bundle:ro -v profiles:/profiles refocus-jetpack6 check /bundle
FROM nvcr.io/nvidia/l4t-jetpack:r36.3.0
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
       gcc libc6-dev python3 python3-dev python3-venv python3-libnvinfer \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python3 -m venv --system-site-packages /opt/refocus \
    && /opt/refocus/bin/pip install --no-cache-dir '.[cpu,bench,update]' \
    && useradd --system --uid 990 --create-home --groups video refocus \
    && install -d -o refocus /profiles
USER 990
VOLUME /profiles
ENTRYPOINT ["/opt/refocus/bin/refocus"]

# docker build -t carl .                                  for CPUs and NVIDIA GPUs (run with --gpus all); torch brings its CUDA along
# docker build -t carl --build-arg TORCH_INDEX=URL .      torch from another package index: with PyTorch's index of builds for
#                                                         CPUs the image has no CUDA and is gigabytes smaller
# docker run --rm -v "$PWD:/data" carl report timm:tf_efficientnet_lite0 photos/ -o look.html
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
ARG TORCH_INDEX=
# What is fetched or packed stays in the folder that is mounted at /data. The user has no name and no home of its own.
ENV PIP_NO_CACHE_DIR=1 CARL_CACHE=/data/.carl-cache HF_HOME=/data/.carl-cache/hub HOME=/tmp USER=carl
WORKDIR /source
# torch first: it is large, and this layer stays the same while the source changes. The newest releases are wanted.
# hadolint ignore=DL3013
RUN pip install torch torchvision ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY pyproject.toml README.md LICENSE ./
COPY src src
# hadolint ignore=DL3013
RUN pip install '.[weights]' && carl --version
WORKDIR /data
USER 1000
ENTRYPOINT ["carl"]
CMD ["--help"]

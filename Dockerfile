# The images: for an NVIDIA GPU, for CPUs, and for small machines.
#   docker build -t asr-server .
#   docker build --target cpu -t asr-server:cpu .
#   docker build --target slim -t asr-server:slim .

# What all of them are when they run. The server never needs to be root. It writes to /models (the hub cache), /state (jobs)
# and /tmp (uploads) only, so the rest may be read-only, as in docker-compose.yml.
FROM python:3.11-slim-bookworm AS server
WORKDIR /app
LABEL org.opencontainers.image.title="asr-server" \
      org.opencontainers.image.description="Self-hosted speech server on Qwen3-ASR" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY LICENSE NOTICE /usr/share/doc/asr-server/
RUN useradd --create-home --uid 10001 asr && mkdir /models /state /run/asr && chown asr /models /state /run/asr
# HOST lets other machines in: the server starts with API_KEYS, or with ALLOW_ANONYMOUS=true.
ENV HF_HOME=/models STATE_DIR=/state HOST=0.0.0.0 PORT=8100 PYTHONUNBUFFERED=1
VOLUME ["/models", "/state"]
EXPOSE 8100
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s --retries=3 CMD ["asr-server", "healthcheck"]
CMD ["asr-server", "serve"]

# Qwen3-ASR on CPUs, in OpenVINO: without torch.
FROM python:3.11-slim-bookworm AS build-cpu
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/asr/bin:$PATH
WORKDIR /build
COPY requirements.lock ./
RUN python3 -m venv /opt/asr \
    && sed -i '/^# section: speech/,$d' requirements.lock \
    && pip install --no-compile --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src ./src
COPY extras ./extras
RUN pip install --no-compile --no-deps . ./extras/asr-server-ray ./extras/asr-server-telephony
# What is never loaded: the library beside the English model's weights, copies of eSpeak NG's library under other names,
# OpenVINO's plugins for other devices and readers of other formats, tests of packages, locales of
# languages whose numbers are not spoken as words, and what only installs packages.
WORKDIR /opt/asr/lib/python3.11/site-packages
RUN rm -rf moonshine_voice.libs espeakng_loader/libespeak-ng.so.* \
    && find openvino/libs -regex '.*\(gpu_plugin\|npu_plugin\|frontend\|cache\.json\).*' -delete \
    && find moonshine_voice -type f ! -path '*/tiny-en/*' -delete \
    && find babel/locale-data -type f ! -regex '.*/\(root\|\(de\|en\|es\|fr\|it\|nl\|pt\)\(_.*\)?\)\.dat' -delete \
    && find . -type d -name tests -prune -exec rm -r {} + \
    && pip uninstall --yes setuptools pip
# Transcriptions leave the bytecode of all that the server imports, which it cannot write where the root is read-only.
RUN asr-server transcribe --local --model moonshine-tiny-en asr_server/demo/audio/jfk.flac \
    && asr-server transcribe --local --model demo asr_server/demo/audio/hello.wav

FROM server AS cpu
COPY --from=build-cpu /opt/asr /opt/asr
ENV PATH=/opt/asr/bin:$PATH DEVICE=cpu
USER 10001

# The server with its small English model (MODEL_ID=moonshine-tiny-en) and without torch, for trying it and for small machines.
FROM python:3.11-slim-bookworm AS build-slim
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/asr/bin:$PATH
WORKDIR /build
COPY requirements.lock ./
RUN python3 -m venv /opt/asr \
    && sed -i '/^# section: qwen/,$d' requirements.lock \
    && pip install --no-compile --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src ./src
COPY extras ./extras
RUN pip install --no-compile --no-deps . ./extras/asr-server-ray ./extras/asr-server-telephony
# What is never loaded: the library beside the English model's weights, copies of eSpeak NG's library under other names,
# tests of packages, locales of languages whose numbers are not spoken as words, an aligner
# that needs OpenVINO, and what only installs packages.
WORKDIR /opt/asr/lib/python3.11/site-packages
RUN rm -rf moonshine_voice.libs asr_server/demo/aligner espeakng_loader/libespeak-ng.so.* \
    && find moonshine_voice -type f ! -path '*/tiny-en/*' -delete \
    && find babel/locale-data -type f ! -regex '.*/\(root\|\(de\|en\|es\|fr\|it\|nl\|pt\)\(_.*\)?\)\.dat' -delete \
    && find . -type d -name tests -prune -exec rm -r {} + \
    && pip uninstall --yes setuptools pip
# A transcription leaves the bytecode of all that the server imports, which it cannot write where the root is read-only.
RUN asr-server transcribe --local --model moonshine-tiny-en asr_server/demo/audio/jfk.flac

FROM server AS slim
COPY --from=build-slim /opt/asr /opt/asr
ENV PATH=/opt/asr/bin:$PATH MODEL_ID=moonshine-tiny-en
USER 10001

# An NVIDIA driver and container runtime on the host, CUDA from torch's own packages inside.
FROM server AS gpu
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# torch from the index in use, 2.7 GB, in a layer of its own. For an older driver, or an AMD GPU (not tried), give PyTorch's
# index of such builds: docker build --build-arg TORCH_INDEX=URL
ARG TORCH_INDEX=
ARG TORCH=2.13.0
RUN if [ -n "$TORCH_INDEX" ]; then export PIP_INDEX_URL="$TORCH_INDEX"; fi \
    && pip install "torch==$TORCH"
# Everything else by hash.
COPY requirements.lock ./
RUN sed -i '/^# section: speech/,$d' requirements.lock \
    && pip install --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src ./src
COPY extras ./extras
RUN pip install --no-deps . ./extras/asr-server-ray ./extras/asr-server-telephony
USER 10001

# GPU image: an NVIDIA driver and container runtime on the host, CUDA from torch's own packages inside.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /app
COPY requirements-qwen.txt requirements.lock ./
# torch from the index in use, everything else by hash.
RUN pip install "$(grep '^torch==' requirements-qwen.txt)" \
    && pip install --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml setup.py requirements-slim.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-deps .

# The server never needs to be root. It writes to /models (the hub cache), /state (jobs) and /tmp (uploads) only, so the
# rest may be read-only, as in docker-compose.yml.
RUN useradd --create-home --uid 10001 asr && mkdir /models /state && chown asr /models /state
USER 10001
# HOST lets other machines in: the server starts with API_KEYS, or with ALLOW_ANONYMOUS=true.
ENV HF_HOME=/models STATE_DIR=/state HOST=0.0.0.0 PORT=8100
VOLUME ["/models", "/state"]
EXPOSE 8100
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s --retries=3 CMD ["asr-server", "healthcheck"]
CMD ["asr-server", "serve"]

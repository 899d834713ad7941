# GPU image: an NVIDIA driver and container runtime on the host, CUDA from torch's own packages inside.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /app
COPY requirements.txt requirements.lock ./
# torch from the index in use, everything else by hash; then nothing may be missing or beside a version it excludes.
RUN pip install "$(grep '^torch==' requirements.txt)" \
    && pip install --no-deps --require-hashes -r requirements.lock \
    && pip check
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src ./src
RUN pip install --no-deps .

# The server never needs to be root. It writes to /models (the hub cache), /state (jobs) and /tmp (uploads) only, so the
# rest may be read-only, as in docker-compose.yml. numba, which a library of the model's uses, keeps its cache in /tmp.
RUN useradd --create-home --uid 10001 asr && mkdir /models /state && chown asr /models /state
USER 10001
# HOST lets other machines in: the server starts with API_KEYS, or with ALLOW_ANONYMOUS=true.
ENV HF_HOME=/models STATE_DIR=/state NUMBA_CACHE_DIR=/tmp/numba HOST=0.0.0.0 PORT=8000
VOLUME ["/models", "/state"]
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s --retries=3 CMD ["asr-server", "healthcheck"]
CMD ["asr-server", "serve"]

# GPU image: an NVIDIA driver and container runtime on the host, CUDA from torch's own packages inside.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /app
COPY requirements.txt requirements-gpu.txt ./
RUN pip install -r requirements-gpu.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-deps .

# The server never needs to be root; /models is the hub cache, to be mounted.
RUN useradd --create-home --uid 10001 asr && mkdir /models && chown asr /models
USER asr
ENV HF_HOME=/models HOST=0.0.0.0 PORT=8000
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
CMD ["asr-server", "serve"]

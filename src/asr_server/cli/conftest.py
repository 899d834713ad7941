"""A fake terminal, and a TLS certificate, which the tests in E2Etest use too."""

import io
import subprocess
from pathlib import Path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tls(folder: Path) -> dict[str, str]:
    """Make a self-signed certificate in `folder` and return the TLS settings that use it."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-days", "2", "-out", certificate, "-keyout", key]
    subprocess.run([*made, *files, *subject], check=True, capture_output=True)
    return {"SSL_CERTFILE": f"{certificate},{key}"}

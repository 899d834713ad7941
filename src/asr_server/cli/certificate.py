"""Whether the certificate and key of the settings can serve TLS, tried before anything is built. Serves nothing."""

from __future__ import annotations

import ssl

from asr_server.core.settings import Settings


def refusal(settings: Settings) -> str:
    """Why they cannot, as people need it; "" where they can, or where no TLS is wished for."""
    if not settings.ssl_certfile:
        return ""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile or None, _passphrase)
    except ssl.SSLError as error:
        return f"no PEM certificate and key that belong together: {error}"
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _passphrase() -> str:
    """OpenSSL would ask for it on the terminal, in front of which nobody sits."""
    raise ValueError("the key is locked with a passphrase")

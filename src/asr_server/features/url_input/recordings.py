"""Fetches the recording for a form that names a URL, under the limits of an upload."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, cast

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from asr_server.core.errors import InvalidInput, Overloaded
from asr_server.core.settings import ListedHosts
from asr_server.net import body
from asr_server.net.body import SPOOL_BYTES, map_disk_errors, while_connected
from asr_server.processes.caller_work import FairShares
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import FeatureParts

if TYPE_CHECKING:
    from asr_server.net.outgoing import OutgoingClient

_LIMIT_S = 600.0  # 200 MiB at 350 KiB a second
_AT_ONCE = 8  # requests under way
_RETRY_AFTER_S = 5
_NAMES = frozenset({"url"})


class RecordingUrls:
    """Gets the recordings of forms with a `url`.

    `max_bytes`: the limit for one recording. `client`: None if the operator has not turned this on.
    """

    def __init__(self, client: OutgoingClient | None, max_bytes: int) -> None:
        self._client, self._max_bytes = client, max_bytes
        self._places = FairShares(_AT_ONCE, _AT_ONCE)

    async def complete(self, form: FormData, request: Request) -> FormData:
        """Return the form with the content of its URL as its file. Return a form without a URL as it is.

        Raises `InvalidInput`, `Overloaded`, `uploads_unavailable`, and `Cancelled` when the client leaves.
        """
        if (url := body.scalars(form, _NAMES).get("url")) is None:
            return form
        if body.upload(form, "file") is not None:
            raise InvalidInput("Send the recording as 'file' or name its 'url', not both.", param="url")
        if self._client is None:
            raise InvalidInput(
                "This server gets no recordings by URL (URL_HOSTS is empty).", code="unsupported_value", param="url"
            )
        refusal = Overloaded("Other recordings are being fetched; try again.", retry_after_s=_RETRY_AFTER_S)
        with self._places.taken_now(request.state.caller.share, refusal):
            file = await while_connected(request.receive, self._get(self._client, url))
        return FormData([*form.multi_items(), ("file", file)])

    async def _get(self, client: OutgoingClient, url: str) -> UploadFile:
        spooled = cast("BinaryIO", SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115 - the form closes it
        file = UploadFile(spooled, size=0, filename="recording")
        try:
            with map_disk_errors():
                await client.fetch(url, file.write, max_bytes=self._max_bytes, limit_s=_LIMIT_S)
                await file.seek(0)
        except BaseException as error:
            await file.close()
            if isinstance(error, InvalidInput):
                error.param = "url"
            raise
        return file


def _build(parts: CoreParts) -> FeatureParts:
    # The HTTP client is imported only if the feature is on.
    settings = parts.settings
    if not settings.url_hosts:
        return FeatureParts(form_fields={"url": RecordingUrls(None, 0).complete})
    from asr_server.net.outgoing import OutgoingClient, OutgoingRules

    client = OutgoingClient(OutgoingRules(ListedHosts.of(settings.url_hosts), "URL_HOSTS"))
    urls = RecordingUrls(client, settings.max_upload_bytes)
    return FeatureParts(form_fields={"url": urls.complete}, close=client.close)


SERVER = ServerFeature(build=_build)

"""The writers of documents by the names of their formats."""

from collections.abc import Callable

from asr_server.features.documents import markdown, pdf, word
from asr_server.features.documents.document import Document

WRITERS: dict[str, Callable[[Document], bytes]] = {"markdown": markdown.write, "docx": word.write, "pdf": pdf.write}

"""Language by script."""


def language_of(text: str, default: str) -> str:
    return default

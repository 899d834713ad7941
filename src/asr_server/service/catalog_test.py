"""What the loaded model is called and knows."""

import pytest

from asr_server.core.errors import UnsupportedLanguage
from asr_server.service.catalog import Catalog


def test_a_language_that_the_model_does_not_know_is_refused_with_those_it_knows():
    """Whatever the product knows; no language at all is always right."""
    english = Catalog("small", ["English"])
    english.check_language("English")
    english.check_language(None)
    with pytest.raises(UnsupportedLanguage, match=r"does not know German\. It knows: English") as refusal:
        english.check_language("German", "source_language")
    assert refusal.value.param == "source_language"
    Catalog("large").check_language("German")

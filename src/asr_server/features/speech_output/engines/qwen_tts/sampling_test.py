"""Codes are drawn as transformers draws them."""

import pytest
import torch

from asr_server.features.speech_output.engines.qwen_tts.sampling import Sampling, SamplingPair

pytestmark = pytest.mark.torch

DRAWS = 20_000


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.5, 10), Sampling(1.2, 0), Sampling(1.0, 40, 0.7)])
def test_the_distribution_is_that_of_transformers(sampling):
    """Evenly spaced chances give each code its share to a few draws."""
    from asr_server.features.speech_output.engines.qwen_tts import sdk  # noqa: F401 - decides how transformers is imported

    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper  # isort: skip

    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(0)) * 1.5
    warped = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    warped = TopKLogitsWarper(sampling.top_k)(None, warped) if sampling.top_k else warped
    expected = TopPLogitsWarper(sampling.top_p)(None, warped).softmax(-1)[0]
    chances = (torch.arange(DRAWS) + 0.5) / DRAWS
    found = sampling.draw(logits.expand(DRAWS, -1), chances).bincount(minlength=300) / DRAWS
    assert (found - expected).abs().max() < 3 / DRAWS
    assert (expected > 0).sum() > 3


def test_codes_that_were_had_are_less_likely():
    """The processor of transformers decides; other codes keep their logits."""
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    had = torch.zeros(2, 50, dtype=torch.bool)
    had[0, [3, 7]], had[1, [0, 49]] = True, True
    ids = torch.tensor([[3, 7], [0, 49]])
    expected = RepetitionPenaltyLogitsProcessor(1.05)(ids, logits.clone())
    assert torch.equal(Sampling(repetition_penalty=1.05).penalized(logits, had), expected)


def test_the_largest_chance_is_a_code_too():
    """Sums of probabilities may stay below it."""
    logits = torch.zeros(1, 2048)
    assert 0 <= int(Sampling(top_k=0).draw(logits, torch.tensor([1.0]))) < 2048


def test_a_checkpoint_says_how_it_is_sampled():
    """The SDK's defaults hold where it says nothing."""
    assert SamplingPair.of_config({}) == SamplingPair(Sampling(0.9, 50, 1.0, 1.05), Sampling(0.9, 50, 1.0, 1.0))
    greedy = {"do_sample": False, "subtalker_dosample": False}
    assert SamplingPair.of_config(greedy).first.temperature == 0
    assert SamplingPair.of_config(greedy).others.temperature == 0
    told = {"temperature": 0.7, "top_k": 20, "subtalker_top_p": 0.8, "repetition_penalty": 1.1}
    assert SamplingPair.of_config(told) == SamplingPair(Sampling(0.7, 20, 1.0, 1.1), Sampling(0.9, 50, 0.8, 1.0))

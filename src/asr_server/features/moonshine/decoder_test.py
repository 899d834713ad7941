"""The decoder against the transformers library's, with the same weights."""

import numpy as np
import pytest

from asr_server.features.moonshine import package, weights
from asr_server.features.moonshine.decoder import TokenDecoder

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture(scope="module")
def loaded():
    return weights.read(package.locate().decoder)


@pytest.fixture(scope="module")
def reference(loaded):
    """transformers' Moonshine decoder with those weights: encoder states (1, frames, d) and ids to logits."""
    import torch
    from transformers import MoonshineConfig
    from transformers.models.moonshine.modeling_moonshine import MoonshineDecoder

    config = MoonshineConfig(attn_implementation="eager")
    model = MoonshineDecoder(config).eval()
    state = {"embed_tokens.weight": loaded.embedding, "norm.weight": loaded.norm}
    for number, layer in enumerate(loaded.layers):
        matrices = {"mlp.fc1": layer.up, "mlp.fc2": layer.down, "self_attn.o_proj": layer.out}
        matrices |= {"encoder_attn.q_proj": layer.cross_q, "encoder_attn.o_proj": layer.cross_out}
        for name, matrix in zip("qkv", np.split(layer.qkv, 3, axis=1), strict=True):
            matrices[f"self_attn.{name}_proj"] = matrix
        for name, matrix in zip("kv", np.split(layer.cross_kv, 2, axis=1), strict=True):
            matrices[f"encoder_attn.{name}_proj"] = matrix
        vectors = {"input_layernorm": layer.self_norm, "post_attention_layernorm": layer.cross_norm}
        vectors |= {"final_layernorm": layer.mlp_norm}
        state |= {f"layers.{number}.{name}.weight": matrix.T for name, matrix in matrices.items()}
        state |= {f"layers.{number}.{name}.weight": vector for name, vector in vectors.items()}
        state |= {f"layers.{number}.mlp.fc1.bias": layer.up_bias, f"layers.{number}.mlp.fc2.bias": layer.down_bias}
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(value)) for name, value in state.items()})

    def logits(states, ids):
        with torch.inference_mode():
            hidden = model(torch.tensor([ids]), encoder_hidden_states=torch.tensor(states[None])).last_hidden_state
        return (hidden[0] @ torch.tensor(loaded.embedding).T).numpy()

    return logits


def test_logits_are_those_of_the_reference(loaded, reference):
    """Rows of different lengths share a pass, which takes them whole or token by token."""
    decoder, rng = TokenDecoder(loaded), np.random.default_rng(1)
    lengths = ((40, 7), (3, 12), (97, 1))
    states = [rng.normal(size=(frames, len(loaded.norm))).astype(np.float32) for frames, _ in lengths]
    ids = [rng.integers(0, decoder.vocabulary, count).tolist() for _, count in lengths]
    expected = [reference(own, tokens) for own, tokens in zip(states, ids, strict=True)]
    rows = [decoder.cache(own, 12) for own in states]
    np.testing.assert_allclose(decoder.forward(rows, ids), np.concatenate(expected), atol=2e-3)
    for at in range(12):
        under_way = [n for n, tokens in enumerate(ids) if at < len(tokens)]
        found = decoder.forward([rows[n] for n in under_way], [ids[n][at : at + 1] for n in under_way])
        np.testing.assert_allclose(found, [expected[n][at] for n in under_way], atol=2e-3)
        for n in under_way:
            rows[n].length += 1

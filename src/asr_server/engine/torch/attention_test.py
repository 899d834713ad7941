"""Each way to attend shows tokens the same. FlashAttention is the border: on a CPU a formula stands for it."""

import math
from unittest.mock import Mock

import pytest
import torch

from asr_server.engine.torch import attention, passes
from asr_server.engine.torch.attention import TokenSpan
from asr_server.engine.torch.passes import Arena, AttentionShape, Layout, Pass, PassShape, variable_length_problem

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

CPU = torch.device("cpu")
TOKENS, HEADS, KV_HEADS, DIM = 3000, 4, 2, 8


def by_formula(q, keys, values, ends, begins, query, width, *more, window_size_left, window_size_right, seqused_k):
    """FlashAttention's forward pass on any device: each token of a row against all places."""
    assert (more, window_size_left) == ((0.0, False, False), -1)
    tokens, places = torch.arange(len(q)), torch.arange(len(keys))
    row = torch.searchsorted(ends[1:], tokens, right=True).clamp(max=len(seqused_k) - 1)
    after = ends[row + 1] - tokens - 1 if window_size_right == 0 else 0  # tokens of its row after each
    end = begins[row] + seqused_k[row] - after
    visible = ((places >= begins[row][:, None]) & (places < end[:, None]))[:, None]
    keys, values = (held.nan_to_num().repeat_interleave(q.shape[1] // held.shape[1], 1) for held in (keys, values))
    scores = torch.einsum("nhd,phd->nhp", q, keys) / math.sqrt(q.shape[2])
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    return (torch.einsum("nhp,phd->nhd", weights, values),)


@pytest.fixture(params=["each row", "masked", "variable length"])
def way(request, monkeypatch):
    """A way to attend, used by every pass over an arena made from now on."""
    monkeypatch.setattr(attention, "flash", by_formula)
    problem = "" if request.param == "variable length" else "another way"
    monkeypatch.setattr("asr_server.engine.torch.passes.variable_length_problem", lambda *_: problem)
    return request.param


@pytest.fixture
def arena(way):
    """No place holds a number at first."""
    made = Arena(AttentionShape(1, HEADS, KV_HEADS, DIM), TOKENS, device=CPU, dtype=torch.float32)
    for held in made.layer(0):
        held.fill_(torch.nan)
    return made


def _run(arena, way, spans, shape=None):
    """Run a pass with random numbers; return the queries and what came of the tokens."""
    if way == "masked" and shape is None:
        longest = max(span.count for span in spans)
        rows = len(spans) + 1
        shape = PassShape(rows, rows * longest, longest, max(span.end for span in spans) + 5)
    layout = Layout(arena, spans, shape=shape)
    made = Pass(arena, layout)
    keys, values = arena.layer(0)
    tokens, count = len(made.places), sum(span.count for span in spans)
    q, k, v = (torch.randn(tokens, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    keys[made.places], values[made.places] = k, v
    out = made.attend(0, q)
    assert out.shape == (tokens, HEADS * DIM)
    return q[:count], out[:count]


def _expected(arena, spans, q):
    """Each token by itself, in double precision."""
    keys, values = (held.double() for held in arena.layer(0))
    rows = [(span, position) for span in spans for position in range(span.start, span.end)]
    out = []
    for token, (span, position) in zip(q.double(), rows, strict=True):
        seen = slice(span.begin, span.begin + position + 1)
        for head, query in enumerate(token):
            kv_head = head * KV_HEADS // HEADS
            weights = (keys[seen, kv_head] @ query / math.sqrt(DIM)).softmax(0)
            out.append(weights @ values[seen, kv_head])
    return torch.stack(out).view(len(q), -1).float()


CASES = {
    "single tokens": [TokenSpan(2000, 700, 1), TokenSpan(10, 1, 1), TokenSpan(20, 60, 1)],
    "prompts of unlike lengths": [TokenSpan(2000, 0, 300), TokenSpan(10, 0, 1), TokenSpan(20, 0, 60)],
    "parts of prompts, and one token": [TokenSpan(2000, 700, 40), TokenSpan(10, 5, 1), TokenSpan(100, 60, 13)],
    "a part that attends in several calls": [TokenSpan(500, 200, 2300)],
}


@pytest.mark.parametrize("case", CASES)
def test_a_token_sees_its_row_up_to_itself(arena, way, case):
    """Rows are anywhere in the arena, between places without numbers, and in any order."""
    spans = CASES[case]
    if before := [TokenSpan(span.begin, 0, span.start) for span in spans if span.start]:
        _run(arena, way, before)
    q, out = _run(arena, way, spans)
    torch.testing.assert_close(out, _expected(arena, spans, q), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("way", ["masked"], indirect=True)
@pytest.mark.parametrize("query", [1, 4])
def test_rows_at_equal_distances_are_seen_without_a_copy(arena, query, monkeypatch):
    """In any order, with a gap between them; behind their ends are numbers of earlier rows."""
    spans = [TokenSpan(begin, 30, 1 if query == 1 else count) for begin, count in ((1536, 4), (0, 1), (512, 3))]
    for held in arena.layer(0):
        held.normal_()
    asked, attend = [], attention.F.scaled_dot_product_attention

    def see(q, k, v, **given):
        asked.append((k.untyped_storage().data_ptr(), k.shape[2]))
        return attend(q, k, v, **given)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", see)
    q, out = _run(arena, "masked", spans, PassShape(4, 4 * query, query, 100, stride=512))
    torch.testing.assert_close(out, _expected(arena, spans, q), atol=1e-5, rtol=1e-4)
    assert asked == [(arena.layer(0)[0].untyped_storage().data_ptr(), 100)]


@pytest.mark.parametrize("query", [1, 13])
def test_padding_is_written_to_the_last_place_alone(arena, way, query):
    """Three rows are padded to five, and to more tokens than they have."""
    spans = [TokenSpan(begin, 40, 1 if query == 1 else count) for begin, count in ((0, 3), (100, 1), (200, 13))]
    _run(arena, way, spans, None if way == "each row" else PassShape(5, 5 * query, query, 64))
    written = (~arena.layer(0)[0].isnan()).all(-1).all(-1).nonzero()[:, 0].tolist()
    own = [place for span in spans for place in range(span.begin + 40, span.begin + span.end)]
    assert written == own + [TOKENS - 1] * (way != "each row")


def _changed(change):
    return lambda *given, **options: (change(by_formula(*given, **options)[0]),)


def _no_empty_row(run):
    """Stands for a GPU that cannot record a row without tokens."""
    computed = run()
    if len(computed[0]) > 2:
        raise torch.AcceleratorError("operation not permitted when stream is capturing")
    return (lambda: computed[0].copy_(run()[0])), computed


def _capture(run):
    computed = run()
    return (lambda: computed[0].copy_(run()[0])), computed


@pytest.mark.parametrize(
    ("found", "capture", "reason"),
    [
        (by_formula, _capture, ""),
        (_changed(lambda out: out * 1.1), _capture, "its results differ"),
        (_changed(lambda out: out.fill_(torch.nan)), _capture, "its results differ by nan"),
        (Mock(side_effect=RuntimeError("no kernel\nfor this GPU")), _capture, "RuntimeError: no kernel"),
        (Mock(side_effect=TypeError("unexpected argument 'seqused_k'")), _capture, "TypeError: unexpected argument"),
        (by_formula, _no_empty_row, "AcceleratorError: operation not permitted"),
        (by_formula, lambda run: (lambda: None, run()), "its results differ by nan"),
    ],
)
def test_it_is_tried_before_it_is_used(monkeypatch, found, capture, reason):
    """Other results, none, or no record, mean torch's other kernels. CUDA is the border: the trial is on the CPU."""
    monkeypatch.setattr(attention, "flash", found)
    monkeypatch.setattr(passes, "CudaCapture", lambda device: capture)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, dtype=None: to(tensor, dtype or tensor.dtype))
    problem = variable_length_problem(AttentionShape(28, 16, 8, 128), torch.device("cuda", 0), torch.bfloat16)
    assert problem.startswith(reason)
    assert bool(problem) is bool(reason)


@pytest.mark.parametrize("query", [1, 13])
def test_flash_attention_takes_what_it_is_given(query):
    """The operator's schema checks the arguments, on tensors without numbers."""
    numbers = attention.Numbers(*torch.zeros(8, 3, dtype=torch.long, device="meta"))
    q, keys = (torch.zeros(size, heads, 64, dtype=torch.bfloat16, device="meta") for size, heads in ((5, 8), (100, 2)))
    assert attention.VariableLength(numbers, query, 64)(q, keys, keys).shape == (5, 8 * 64)

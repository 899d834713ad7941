"""The metrics and the state of a server from those of its processes."""

from prometheus_client.parser import text_string_to_metric_families

from asr_server.features.front_ends import sums

ONE = """\
# HELP asr_http_requests_total Requests.
# TYPE asr_http_requests_total counter
asr_http_requests_total{route="/a"} 3
asr_http_requests_total{route="/b"} 1
# HELP asr_final_seconds Times.
# TYPE asr_final_seconds histogram
asr_final_seconds_bucket{le="1.0"} 2
asr_final_seconds_bucket{le="+Inf"} 3
asr_final_seconds_count 3
asr_final_seconds_sum 4.5
# HELP asr_live_sessions Sessions.
# TYPE asr_live_sessions gauge
asr_live_sessions 2
# HELP asr_engine_rows Rows.
# TYPE asr_engine_rows gauge
asr_engine_rows 5
# HELP asr_ready Ready.
# TYPE asr_ready gauge
asr_ready 1
"""
TWO = """\
# HELP asr_http_requests_total Requests.
# TYPE asr_http_requests_total counter
asr_http_requests_total{route="/a"} 4
# HELP asr_final_seconds Times.
# TYPE asr_final_seconds histogram
asr_final_seconds_bucket{le="1.0"} 1
asr_final_seconds_bucket{le="+Inf"} 1
asr_final_seconds_count 1
asr_final_seconds_sum 0.5
# HELP asr_live_sessions Sessions.
# TYPE asr_live_sessions gauge
asr_live_sessions 1
# HELP asr_engine_rows Rows.
# TYPE asr_engine_rows gauge
asr_engine_rows 4
# HELP asr_ready Ready.
# TYPE asr_ready gauge
asr_ready 0
"""


def _values(text):
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_counts_add_up_and_what_is_common_counts_once():
    """Each process knows the rows of the one engine, a moment earlier or later; a server of which a process is not
    ready is not."""
    assert _values(sums.metrics([ONE, "", TWO]).decode()) == {
        ("asr_http_requests_total", "/a"): 7,
        ("asr_http_requests_total", "/b"): 1,
        ("asr_final_seconds_bucket", "1.0"): 3,
        ("asr_final_seconds_bucket", "+Inf"): 4,
        ("asr_final_seconds_count",): 4,
        ("asr_final_seconds_sum",): 5,
        ("asr_live_sessions",): 3,
        ("asr_engine_rows",): 5,
        ("asr_ready",): 0,
    }


def test_only_counts_outlive_a_process():
    """Its gauges were of the moment."""
    assert set(sums.counters(ONE)) == {"asr_http_requests", "asr_final_seconds"}


def test_the_state_has_the_sessions_and_jobs_of_all():
    """The rest is what the process itself says."""
    own = {"status": "ok", "live": {"sessions": 1, "waiting": 0, "limit": 9}, "jobs": 0}
    others = [{}, {"sessions": 2, "waiting": 1, "jobs": 0}, {"sessions": 0, "waiting": 0, "jobs": 4}]
    assert sums.health(own, others) == {
        "status": "ok",
        "live": {"sessions": 3, "waiting": 1, "limit": 9},
        "jobs": 4,
    }

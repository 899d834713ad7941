"""The dashboard and the alert rules that we hand out ask only for what the server says."""

import json
import re
from pathlib import Path

import promql_parser
import yaml

from E2Etest.exposition import DOCUMENTED, LABEL_VALUES

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "deploy" / "helm" / "asr-server" / "files"
DOC = (ROOT / "docs" / "run" / "observability.md").read_text(encoding="utf-8")
ADAPTER = (PLACE / "adapter-rules.yml").read_text(encoding="utf-8")
DASHBOARD = json.loads((PLACE / "grafana-dashboard.json").read_text(encoding="utf-8"))
RULES = [rule for group in yaml.safe_load((PLACE / "alerts.yml").read_text())["groups"] for rule in group["rules"]]

PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
OF_PROMETHEUS = {"instance", "job"}  # it adds them to every series of a target


def _expressions():
    """Titles and expressions, with what Grafana puts in before it asks."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for question, expression in re.findall(r"^\| ([a-z ]+) \| `(.+)` \|$", DOC, re.MULTILINE):
        if "(" in expression:
            yield question, expression
    # E2Etest/test_chart.py compares these with the chart's.
    for question in re.findall(r"^ +metricsQuery: (.+)$", ADAPTER, re.MULTILINE):
        yield question, question.replace("<<.LabelMatchers>>", 'instance="a"')


def _walk(node):
    """Every node of an expression."""
    yield node
    names = ("expr", "param", "lhs", "rhs", "vector_selector")
    for part in [*(getattr(node, name, None) for name in names), *getattr(node, "args", ())]:
        if part is not None:
            yield from _walk(part)


def _series():
    """Every name that is exposed, and its labels."""
    names = {name: set() for name in PROCESS}
    for name, metric in DOCUMENTED.items():
        if metric.kind == "histogram":
            names |= {f"{name}_{part}": metric.labels for part in ("sum", "count")}
            names[f"{name}_bucket"] = metric.labels | {"le"}
        else:
            names[name] = metric.labels
    return names


def test_every_expression_asks_for_series_and_labels_that_exist():
    """Each value compared with can occur. `by (x)` of a label that no series has is one group of all, and looks
    right."""
    series = _series()
    for name, expression in _expressions():
        nodes = list(_walk(promql_parser.parse(expression)))
        selectors = [n for n in nodes if isinstance(n, promql_parser.VectorSelector) and n.name != "up"]
        labels = OF_PROMETHEUS.union(*(series[selector.name] for selector in selectors))
        for selector in selectors:
            for matcher in selector.matchers.matchers:
                assert matcher.name in series[selector.name] | OF_PROMETHEUS, (name, selector.name)
                if matcher.op == promql_parser.MatchOp.Equal and matcher.name in LABEL_VALUES:
                    assert matcher.value in LABEL_VALUES[matcher.name], name
        for node in nodes:
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
                assert set(node.modifier.labels) <= labels, name

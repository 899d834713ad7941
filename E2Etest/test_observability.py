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
# What Prometheus adds to every series of a target, and the one series that it makes itself.
OF_PROMETHEUS = {"instance", "job"}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def _targets():
    """Title, expression and legend of what the panels show, with what Grafana puts in before it asks."""
    for panel in PANELS:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
            yield panel["title"], expression, target["legendFormat"]


def _expressions():
    yield from ((title, expression) for title, expression, _ in _targets())
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for question, expression in re.findall(r"^\| ([a-z ]+) \| `(.+)` \|$", DOC, re.MULTILINE):
        if "(" in expression:
            yield question, expression
    # E2Etest/test_chart.py compares these with the chart's.
    for question in re.findall(r"^ +metricsQuery: (.+)$", ADAPTER, re.MULTILINE):
        yield question, question.replace("<<.LabelMatchers>>", 'instance="a"')


EXPRESSIONS = list(_expressions())


def _walk(node):
    """Every node below an expression."""
    yield node
    match node:
        case promql_parser.AggregateExpr():
            below = [node.expr, node.param]
        case promql_parser.BinaryExpr():
            below = [node.lhs, node.rhs]
        case promql_parser.Call():
            below = node.args
        case promql_parser.MatrixSelector():
            below = [node.vector_selector]
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            below = [node.expr]
        case _:
            below = []
    for part in below:
        if part is not None:
            yield from _walk(part)


def _nodes(expression, kind=promql_parser.VectorSelector):
    """The nodes of a kind in an expression, or below a node."""
    tree = promql_parser.parse(expression) if isinstance(expression, str) else expression
    return [node for node in _walk(tree) if isinstance(node, kind)]


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


SERIES = _series()


def test_every_expression_asks_for_series_that_exist():
    """It parses; each metric is one of ours, each label is one of the metric's, each value compared with can occur."""
    for name, expression in EXPRESSIONS:
        assert _nodes(expression), name
        for selector in _nodes(expression):
            if selector.name == "up":
                continue
            assert selector.name in SERIES, name
            for matcher in selector.matchers.matchers:
                assert matcher.name in SERIES[selector.name] | OF_PROMETHEUS, (name, selector.name)
                if matcher.op == promql_parser.MatchOp.Equal and matcher.name in LABEL_VALUES:
                    assert matcher.value in LABEL_VALUES[matcher.name], name


def test_what_is_grouped_by_and_shown_is_a_label_of_what_is_asked_for():
    """`by (x)` of a label that no series has is one group of all, and looks right."""
    for name, expression in EXPRESSIONS:
        labels = set().union(*(SERIES.get(found.name, set()) for found in _nodes(expression))) | OF_PROMETHEUS
        for node in _nodes(expression, promql_parser.AggregateExpr):
            assert node.modifier is None or set(node.modifier.labels) <= labels, name

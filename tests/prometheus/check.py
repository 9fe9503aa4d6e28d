"""What tests/prometheus/run asks of rules and dashboards.

check.py words PROJECT                          what can be seen without running anything
check.py config PROJECT FILE JOB=ADDRESS…       writes prometheus.yml with these addresses, and a scrape every second
check.py live PROJECT URL                       every expression has data in the Prometheus at URL
"""

import json
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

# How long series may take to come: a rate needs two scrapes, a count of the ledger ten seconds.
PATIENCE = 120
COMPARISON = re.compile(r"\s(?:==|!=|>=|<=|>|<)(?:\s+bool)?\s+-?[0-9.]+\b")


def dashboards(project):
    return {
        path.name: json.loads(path.read_text()) for path in sorted(project.glob("deploy/grafana/dashboards/*.json"))
    }


def rules(project):
    return [
        rule
        for group in yaml.safe_load((project / "deploy/prometheus/rules.yml").read_text())["groups"]
        for rule in group["rules"]
    ]


def words(project):
    """What is wrong that can be seen by reading."""
    wrong = []
    alerts = {rule["alert"]: rule for rule in rules(project) if "alert" in rule}
    cases = {}
    for test in yaml.safe_load((project / "deploy/prometheus/rules.test.yml").read_text())["tests"]:
        for case in test["alert_rule_test"]:
            cases.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]) and bool(test["input_series"]))
    for name, rule in alerts.items():
        if cases.get(name) != {True, False}:
            wrong.append(f"{name}: rules.test.yml needs a case in which it fires, and one in which it does not")
        if rule["annotations"]["runbook"] != f"docs/operations.md#{name.lower()}":
            wrong.append(f"{name}: its runbook is docs/operations.md#{name.lower()}")
        if rule["labels"]["severity"] not in ("critical", "warning", "info"):
            wrong.append(f"{name}: its severity is {rule['labels']['severity']}")
    text = (project / "docs/operations.md").read_text()
    section = text.split("\n## Runbooks\n", 1)[1].split("\n## ", 1)[0]
    runbooks = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^### |\Z)", section, re.M | re.S))
    for name in sorted(alerts.keys() ^ runbooks.keys()):
        wrong.append(f"{name}: an alert without a runbook in docs/operations.md, or a runbook without an alert")
    for name, runbook in runbooks.items():
        for part in ("Means", "Follows", "Look", "Mend"):
            if f"**{part}**" not in runbook:
                wrong.append(f"{name}: its runbook does not say **{part}**")
    uid = yaml.safe_load((project / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ][0]["uid"]
    uids = set()
    for file, board in dashboards(project).items():
        if board["uid"] in uids:
            wrong.append(f"{file}: another dashboard has its uid")
        uids.add(board["uid"])
        taken = {}
        for panel in board["panels"]:
            where, place = f"{file}: {panel['title']}", panel["gridPos"]
            if panel["type"] != "row" and not (panel["description"] and panel["targets"]):
                wrong.append(f"{where}: without a description, or without a target")
            for target in [panel, *panel.get("targets", [])]:
                if panel["type"] != "row" and target["datasource"]["uid"] != uid:
                    wrong.append(f"{where}: its datasource is not {uid}")
            columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
            under = {taken.setdefault((x, y), where) for x in columns for y in rows} - {where}
            if columns.stop > 24:
                wrong.append(f"{where}: it reaches beyond the 24 columns of a dashboard")
            if under:
                wrong.append(f"{where}: it lies over {', '.join(sorted(under))}")
        text = json.dumps(board["panels"])
        for variable in board["templating"]["list"]:
            if f"${variable['name']}" not in text:
                wrong.append(f"{file}: nothing goes by the variable {variable['name']}")
    return wrong


def config(project, file, addresses):
    """The project's configuration with other addresses; what is asked of them stays."""
    settings = yaml.safe_load((project / "deploy/prometheus/prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    addresses = dict(address.split("=", 1) for address in addresses)
    for job in settings["scrape_configs"]:
        for how in [how for how in job if how.endswith("_sd_configs") or how == "static_configs"]:
            del job[how]
        job["static_configs"] = [{"targets": [addresses.pop(job["job_name"])]}]
    if addresses:
        sys.exit(f"deploy/prometheus/prometheus.yml has no job {', '.join(addresses)}")
    pathlib.Path(file).write_text(yaml.safe_dump(settings))


class Prometheus:
    def __init__(self, url):
        self.url = url

    def ask(self, path, **query):
        request = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            # What is wrong with an expression is in the body.
            raise ValueError(json.load(error)["error"]) from None

    def series(self, expr):
        return self.ask("query", query=expr)["result"]


def selectors(expr):
    """What an expression reads: names of metrics, with their matchers."""
    return re.findall(
        r"\b(?:roundelay|rabbitmq|process|prometheus|queue:\w+|up|ALERTS)[a-zA-Z0-9_:]*(?:\{[^}]*\})?(?![\w(])", expr
    )


def with_data(expr):
    """An alert's expression without its thresholds, which has data while nothing is wrong: whatever is joined must fit."""
    expr = COMPARISON.sub("", expr).replace("absent(", "count(").replace("unless on", "and on")
    # A threshold that is a figure itself.
    return re.sub(r"\s(?:>|<)(?=\s)", " +", expr)


def expressions(project, prometheus):
    """Everything that is to have data: what it belongs to, the expression, and the labels that its words go by."""
    for file, board in dashboards(project).items():
        values = {"__rate_interval": "10s"}
        for variable in board["templating"]["list"]:
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
            known = prometheus.ask(f"label/{label}/values", **{"match[]": metric})
            yield f"{file}: variable {variable['name']}", metric, {label}
            values[variable["name"]] = "|".join(re.escape(value).replace("\\", "\\\\") for value in known)
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                expr = re.sub(r"\$(\w+)", lambda match: values[match[1]], target["expr"])
                legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                yield f"{file}: {panel['title']} ({target['refId']})", expr, legend
    for rule in rules(project):
        name = rule.get("alert") or rule["record"]
        for selector in selectors(rule["expr"]):
            yield f"{name}: {selector}", selector, set()
        said = set(re.findall(r"\$labels\.(\w+)", str(rule.get("annotations"))))
        yield name, with_data(rule["expr"]), said


def live(project, url):
    prometheus = Prometheus(url)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            asked, missing = 0, []
            for what, expr, labels in expressions(project, prometheus):
                asked += 1
                found = prometheus.series(expr)
                if not found:
                    missing.append(f"{what}: no data for {expr}")
                elif absent := [
                    label for label in sorted(labels) if not all(label in series["metric"] for series in found)
                ]:
                    missing.append(f"{what}: no label {', '.join(absent)} on {expr}")
            states = {rule["name"]: rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]}
            for name, rule in states.items():
                if rule["health"] != "ok":
                    missing.append(f"{name}: {rule['health']} {rule.get('lastError', '')}")
            # tests/served.bash has published something that no worker can use.
            if states["RoundelayQuarantine"]["state"] == "inactive":
                missing.append("RoundelayQuarantine: it is not noticed that a message is in quarantine")
            # This one stands on a way in which RabbitMQ counts that nothing documents.
            expired = prometheus.series("queue:rabbitmq_expired_messages:sum > 0")
            if [series["metric"]["queue"] for series in expired] != ["stuck.delay.200ms"]:
                missing.append(f"RoundelayRungStuck: one delay queue is stuck, and these show: {expired}")
        except (urllib.error.URLError, ConnectionError) as error:
            asked, missing = 0, [f"Prometheus does not answer: {error}"]
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(1)
    if missing:
        return missing
    print(f"{asked} expressions of {len(states)} rules and {len(dashboards(project))} dashboards have data")
    return []


def main():
    verb, project, *rest = sys.argv[1:]
    project = pathlib.Path(project)
    if verb == "config":
        return config(project, rest[0], rest[1:])
    wrong = words(project) if verb == "words" else live(project, *rest)
    return "\n".join(wrong)


if __name__ == "__main__":
    sys.exit(main() or 0)

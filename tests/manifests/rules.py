"""Writes Prometheus' rules as an object of Kubernetes. The argument is the project's folder."""
import pathlib
import sys

import yaml


class Dumper(yaml.SafeDumper):
    """Writes lists and longer texts as people do."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)

    def represent_text(self, text):
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, Dumper.represent_text)


def rule_object(rules):
    """The PrometheusRule with the groups of `rules`, the text of a file of rules (pure)."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "roundelay"},
        "spec": {"groups": yaml.safe_load(rules)["groups"]},
    }


def text(rules):
    """The same as the text of a file (pure)."""
    head = "# Made from deploy/prometheus/rules.yml by `tests/manifests/run --refresh`, which says that it is so, too.\n"
    return head + yaml.dump(rule_object(rules), Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    project = pathlib.Path(sys.argv[1])
    made = text((project / "deploy/prometheus/rules.yml").read_text())
    (project / "deploy/kubernetes/components/prometheus/rules.yaml").write_text(made)

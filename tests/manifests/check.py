"""Checks manifests against schemas, and against each other. tests/manifests/run says what is asked of them.

All mistakes are told, each with where it is; the exit code is 1 when there is one. What needs TypeScript's types is
written to objects.ts in the scratch folder.
"""
import argparse
import base64
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.parse

import kubernetes_validate
import yaml

import rules

# How much longer a supervisor waits than worker.grace, in seconds: what is put off has to be written down.
RESERVE = 10

# Types of objects that are not Kubernetes' own, in the packages that have them.
TYPES = {
    "keda.sh/v1alpha1": "@kubernetes-models/keda/keda.sh/v1alpha1",
    "monitoring.coreos.com/v1": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
    "postgresql.cnpg.io/v1": "@kubernetes-models/cloudnative-pg/postgresql.cnpg.io/v1",
}

# No package has the definitions of RabbitMQ's operators. These are the fields that are used here, as the operators'
# documentation has them (Cluster Operator 2.9 and later, Messaging Topology Operator 1.17 and later): a type, a set of
# words, a table of fields, or a list of one of them. Fields that end with ! must be there.
REFERENCE = {"name!": str}
RABBITMQ = {
    "RabbitmqCluster": {
        "replicas": int,
        "image": str,
        "tls": {"secretName": str, "disableNonTLSListeners": bool},
        "persistence": {"storage": str},
        "resources": None,
        "terminationGracePeriodSeconds": int,
        "rabbitmq": {"additionalPlugins": [str], "additionalConfig": str},
        "affinity": None,
        "override": {"statefulSet": {"spec": {"template": {"spec": {"securityContext": None, "initContainers": None, "containers": None}}}}},
    },
    "Vhost": {
        "name!": str,
        "defaultQueueType": {"quorum", "classic", "stream"},
        "deletionPolicy": {"delete", "retain"},
        "rabbitmqClusterReference!": REFERENCE,
    },
    "User": {
        "tags": [{"management", "policymaker", "monitoring", "administrator"}],
        "rabbitmqClusterReference!": REFERENCE,
    },
    "Permission": {
        "vhost!": str,
        "userReference!": REFERENCE,
        "permissions!": {"configure": str, "write": str, "read": str},
        "rabbitmqClusterReference!": REFERENCE,
    },
}

# The reference systems, which have folders in examples/ and profiles in docker-compose.yml.
SYSTEMS = {"appstore", "channels", "trading", "characters", "missions"}

# Secrets that people, or operators that are not here, must provide; each overlay's file says so.
CERTIFICATES = {"broker-tls", "serve-tls"}


class Problems:
    """What is wrong, and where."""

    def __init__(self):
        self.told = []
        self.looked_at = 0

    def expect(self, right, where, what):
        """Notes `what` when it is not right."""
        self.looked_at += 1
        if not right:
            self.told.append(f"{where}: {what}")


def seconds(text):
    """A duration of one unit or more, as Compose, systemd and Roundelay write it (pure)."""
    units = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)\s*([a-z]*)", str(text)))


def port(address):
    """The port of an address (pure)."""
    return int(str(address).rsplit(":", 1)[1])


def option(arguments, name):
    """What follows `name` in a command line; nothing where it is absent (pure)."""
    return arguments[arguments.index(name) + 1] if name in arguments else None


def misfits(value, shape, path="spec"):
    """Where `value` is not of `shape`, in the language of RABBITMQ (pure)."""
    if shape is None:
        return []
    if isinstance(shape, set):
        return [] if value in shape else [f"{path} is {value!r}, not one of {sorted(shape)}"]
    if isinstance(shape, type):
        return [] if type(value) is shape else [f"{path} is {value!r}, not of the type {shape.__name__}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [found for n, item in enumerate(value) for found in misfits(item, shape[0], f"{path}[{n}]")]
    if not isinstance(value, dict):
        return [f"{path} is no table"]
    fields = {name.rstrip("!"): below for name, below in shape.items()}
    found = [f"{path}.{name} is missing" for name in (n[:-1] for n in shape if n.endswith("!")) if name not in value]
    found += [f"there is no {path}.{name}" for name in value if name not in fields]
    return found + [f for name in value if name in fields for f in misfits(value[name], fields[name], f"{path}.{name}")]


def text_of(problems, project, path):
    """What is in a file; nothing, and a problem, where it is absent."""
    there = (project / path).exists()
    problems.expect(there, path, "is not there")
    return (project / path).read_text() if there else ""


def name_of(thing):
    return f"{thing['kind']} {thing['metadata']['name']}"


def of_kind(objects, *kinds):
    return [thing for thing in objects if thing["kind"] in kinds]


def pod_specs(objects):
    """Pods that the objects make: the object, labels, and the pod's spec."""
    for thing in of_kind(objects, "Deployment", "Job"):
        template = thing["spec"]["template"]
        yield thing, template["metadata"]["labels"], template["spec"]


# ------------------------------------------------------------------- Kubernetes


def schemas(problems, where, objects, version):
    """Each object against the strictest description of it that there is; TypeScript for those of TYPES."""
    lines = []
    for n, thing in enumerate(objects):
        group = thing["apiVersion"]
        if group in TYPES:
            kind = thing["kind"]
            lines.append(f'import type {{ I{kind} as T{n} }} from "{TYPES[group]}/{kind}";')
            lines.append(f"export const {where}{n}: T{n} = {json.dumps(thing)};")
        elif group.startswith("rabbitmq.com/"):
            shape = RABBITMQ.get(thing["kind"])
            problems.expect(shape, where, f"{name_of(thing)}: nothing is known of this kind; add it to RABBITMQ")
            for found in misfits(thing["spec"], shape or None):
                problems.expect(False, where, f"{name_of(thing)}: {found}")
        else:
            try:
                kubernetes_validate.validate(thing, version, strict=True)
                problems.looked_at += 1
            except Exception as error:
                problems.expect(False, where, f"{name_of(thing)}: {error}")
    return lines


def restricted(problems, where, objects):
    """The Pod Security Standard "restricted", and what goes beyond it here."""
    for thing, _, pod in pod_specs(objects):
        at, security = f"{where}: {name_of(thing)}", pod.get("securityContext", {})
        problems.expect(security.get("runAsNonRoot") is True, at, "runAsNonRoot is not true")
        problems.expect(security.get("runAsUser", 0) > 0, at, "runAsUser is no number above 0")
        problems.expect(security.get("seccompProfile", {}).get("type") == "RuntimeDefault", at, "no seccompProfile")
        problems.expect(pod.get("automountServiceAccountToken") is False, at, "gets the token of its service account")
        for forbidden in ("hostNetwork", "hostPID", "hostIPC"):
            problems.expect(not pod.get(forbidden), at, f"{forbidden} is set")
        volumes = {"configMap", "projected", "emptyDir", "secret", "persistentVolumeClaim"}
        for volume in pod.get("volumes", []):
            problems.expect(set(volume) - {"name"} <= volumes, at, f"volume {volume['name']} is of no kind that may be")
        for container in pod["containers"] + pod.get("initContainers", []):
            own = container.get("securityContext", {})
            problems.expect(own.get("allowPrivilegeEscalation") is False, at, "allowPrivilegeEscalation is not false")
            problems.expect(own.get("readOnlyRootFilesystem") is True, at, "readOnlyRootFilesystem is not true")
            capabilities = own.get("capabilities", {})
            problems.expect(capabilities.get("drop") == ["ALL"] and "add" not in capabilities, at, "keeps capabilities")
            resources = container.get("resources", {})
            problems.expect("memory" in resources.get("limits", {}), at, "has no limit of memory")
            problems.expect({"cpu", "memory"} <= set(resources.get("requests", {})), at, "requests no cpu or memory")
            if thing["kind"] == "Deployment":
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    problems.expect(probe in container, at, f"has no {probe}")
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container.get(probe, {}).get("httpGet", {}).get("port")
                problems.expect(asked is None or asked in ports, at, f"{probe} asks at a port that it has not: {asked}")
    # The operator makes the broker's pods, and says less than the namespace asks for.
    for cluster in of_kind(objects, "RabbitmqCluster"):
        pod = cluster["spec"].get("override", {}).get("statefulSet", {}).get("spec", {}).get("template", {}).get("spec", {})
        own, at = pod.get("securityContext", {}), f"{where}: {name_of(cluster)}"
        problems.expect(own.get("runAsNonRoot") is True and own.get("seccompProfile") == {"type": "RuntimeDefault"}, at, "its pods are refused by a namespace that is restricted")
        containers = {c["name"]: c.get("securityContext", {}) for c in pod.get("initContainers", []) + pod.get("containers", [])}
        for name in ("setup-container", "rabbitmq"):
            least = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            problems.expect(containers.get(name) == least, at, f"its container {name} may do more than a restricted namespace allows")


def matches(selector, labels):
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def references(value):
    """Names of the Secrets and ConfigMaps that an object uses, wherever in it (pure)."""
    if isinstance(value, list):
        return [name for item in value for name in references(item)]
    if not isinstance(value, dict):
        return []
    found = []
    for key, below in value.items():
        if key in ("secretKeyRef", "configMapKeyRef", "secret", "configMap") and "name" in below:
            found.append(below["name"])
        elif key in ("secretTargetRef", "configMapTargetRef"):
            found += [ref["name"] for ref in below]
        elif key == "secretName":
            found.append(below)
        else:
            found += references(below)
    return found


def kubernetes(problems, where, objects, known_metrics, overlay, program):
    """What the objects of one overlay say of each other."""
    (configuration,) = [o["data"]["roundelay.toml"] for o in of_kind(objects, "ConfigMap") if "roundelay.toml" in o["data"]]
    settings = tomllib.loads(configuration)
    queues, workers = set(settings["queues"]), {}
    pods = list(pod_specs(objects))
    operators = [{"app.kubernetes.io/component": "rabbitmq", "app.kubernetes.io/name": o["metadata"]["name"]}
                 for o in of_kind(objects, "RabbitmqCluster")]
    operators += [{"cnpg.io/cluster": o["metadata"]["name"]} for o in of_kind(objects, "Cluster")]
    labels_of_pods = [labels for _, labels, _ in pods] + operators

    # What operators make, what people must, and in the overlay without operators whatever its own file asks for.
    provided = {o["metadata"]["name"] for o in of_kind(objects, "Secret", "ConfigMap")}
    provided |= {f"{o['metadata']['name']}-user-credentials" for o in of_kind(objects, "User")}
    provided |= {f"{o['metadata']['name']}-{what}" for o in of_kind(objects, "Cluster") for what in ("app", "ca")}
    words = overlay.read_text()
    provided |= CERTIFICATES | {word for word in re.findall(r"[\w-]+", words) if "-" in word and overlay.parent.name == "plain"}
    for thing in objects:
        for name in references(thing):
            problems.expect(name in provided, where, f"{name_of(thing)} uses {name}, which nobody provides")

    for thing, labels, pod in pods:
        at = f"{where}: {name_of(thing)}"
        (container,) = pod["containers"]
        arguments = container["args"]
        problems.expect(matches(thing["spec"].get("selector", {}), labels), at, "its selector does not match its pods")
        env = {}
        for variable in container["env"]:
            text = variable.get("value", "dummy")
            for name in re.findall(r"\$\((\w+)\)", text):
                problems.expect(name in env, at, f"{variable['name']} uses {name}, which does not stand before it")
            env[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda found: env.get(found[1], "?"), text)
        check_configuration(problems, at, program, configuration, env)
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        if arguments[0] == "worker":
            workers[thing["metadata"]["name"]] = option(arguments, "--queues")
            problems.expect(ports["metrics"] == port(settings["worker"]["listen"]), at, "its port is not that of worker.listen")
            wait = pod.get("terminationGracePeriodSeconds", 30)
            problems.expect(wait >= seconds(settings["worker"]["grace"]) + RESERVE, at, f"is killed after {wait} s, within worker.grace")
        if arguments[0] == "serve":
            problems.expect(ports["api"] == port(option(arguments, "--listen")), at, "its port is not that of --listen")
            hosts = {rule["host"] for ingress in of_kind(objects, "Ingress") for rule in ingress["spec"]["rules"]}
            problems.expect(hosts <= set(settings["api"]["hosts"]), at, f"api.hosts has not all of {hosts}, those of the Ingress")
    consumed(problems, where, queues, workers)

    # What the program says its users need is what they have, and no more.
    told = subprocess.run([program, "topology", "users", "--json", "--config", "/dev/stdin"], input=configuration, capture_output=True, text=True, check=True)
    needed = {user["user"]: {right: user[right] for right in ("configure", "write", "read")} for user in json.loads(told.stdout)["users"]}
    for permission in of_kind(objects, "Permission"):
        spec = permission["spec"]
        user = spec["userReference"]["name"]
        problems.expect(spec["permissions"] == needed.get(user), f"{where}: {name_of(permission)}", f"gives {spec['permissions']}, and `roundelay topology users` says {needed.get(user)}")

    listening = {port["containerPort"] for _, _, pod in pods for c in pod["containers"] for port in c.get("ports", [])}
    for policy in of_kind(objects, "NetworkPolicy"):
        at, spec = f"{where}: {name_of(policy)}", policy["spec"]
        problems.expect(any(matches(spec["podSelector"], labels) for labels in labels_of_pods), at, "is for no pod")
        for rule in spec.get("ingress", []):
            ports = {port["port"] for port in rule.get("ports", [])}
            problems.expect(ports, at, "lets in to every port")
            ours = any(matches(spec["podSelector"], labels) for _, labels, _ in pods)
            problems.expect(not ours or ports <= listening, at, f"lets in to {ports}, where nobody listens")
    denied = [o for o in of_kind(objects, "NetworkPolicy") if o["spec"]["podSelector"] == {} and not {"ingress", "egress"} & set(o["spec"])]
    problems.expect(any(set(o["spec"]["policyTypes"]) == {"Ingress", "Egress"} for o in denied), where, "nothing denies by default")
    for budget in of_kind(objects, "PodDisruptionBudget"):
        problems.expect(any(matches(budget["spec"]["selector"], labels) for labels in labels_of_pods), where, f"{name_of(budget)} is for no pod")
    for deployment in of_kind(objects, "Deployment"):
        budgets = of_kind(objects, "PodDisruptionBudget")
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        problems.expect(sum(matches(b["spec"]["selector"], labels) for b in budgets) == 1, where, f"{name_of(deployment)} has not exactly one PodDisruptionBudget")
    for monitor in of_kind(objects, "PodMonitor"):
        chosen = [pod for _, labels, pod in pods if matches(monitor["spec"]["selector"], labels)]
        names = {port["name"] for pod in chosen for c in pod["containers"] for port in c.get("ports", [])}
        for end in monitor["spec"]["podMetricsEndpoints"]:
            operator = any(matches(monitor["spec"]["selector"], labels) for labels in operators)
            problems.expect(operator or end["port"] in names, where, f"{name_of(monitor)} scrapes {end['port']}, which no pod has")

    scaled = {}
    for thing in of_kind(objects, "ScaledObject"):
        at, spec = f"{where}: {name_of(thing)}", thing["spec"]
        target = spec["scaleTargetRef"]["name"]
        problems.expect(target in workers, at, f"scales {target}, which is no worker")
        (deployment,) = [o for o in of_kind(objects, "Deployment") if o["metadata"]["name"] == target] or [{"spec": {"replicas": 0}}]
        problems.expect("replicas" not in deployment["spec"], at, f"{target} has a number of replicas of its own, too")
        problems.expect(1 <= spec["minReplicaCount"] < spec["maxReplicaCount"], at, "its bounds are no bounds")
        scaled[target] = {"rabbitmq": set(), "prometheus": set()}
        for trigger in spec["triggers"]:
            metadata = trigger["metadata"]
            if trigger["type"] == "rabbitmq":
                scaled[target]["rabbitmq"].add(metadata["queueName"])
                auth = trigger["authenticationRef"]["name"]
                there = [o["metadata"]["name"] for o in of_kind(objects, "TriggerAuthentication")]
                problems.expect(auth in there, at, f"there is no TriggerAuthentication {auth}")
            else:
                scaled[target]["prometheus"] |= set(re.findall(r'queue="([^"]+)"', metadata["query"]))
                for metric in re.findall(r"roundelay_\w+", metadata["query"]):
                    problems.expect(metric in known_metrics, at, f"docs/metrics.md has no {metric}")
        own = {queue for queue in queues if fnmatch.fnmatch(queue, workers.get(target, ""))}
        for kind, asked in scaled[target].items():
            problems.expect(asked == own, at, f"asks {kind} for {sorted(asked)}, and {target} consumes {sorted(own)}")
    if scaled:
        problems.expect(set(scaled) == set(workers), where, f"workers that nothing scales: {set(workers) - set(scaled)}")


def consumed(problems, where, queues, workers):
    """Every queue has a worker, and every worker a queue."""
    for worker, globs in workers.items():
        for glob in globs.split(","):
            problems.expect(fnmatch.filter(queues, glob), where, f"{worker} consumes {glob}, and the queues are {sorted(queues)}")
    for queue in queues:
        taken = any(fnmatch.fnmatch(queue, glob) for globs in workers.values() for glob in globs.split(","))
        problems.expect(taken, where, f"nobody consumes the queue {queue}")


def check_configuration(problems, where, program, text, env):
    """What `roundelay check` says of a configuration with an environment."""
    env = {name: value for name, value in env.items() if name.startswith("ROUNDELAY__")}
    run = subprocess.run([program, "check", "--config", "/dev/stdin"], input=text, env=env, capture_output=True, text=True)
    problems.expect(run.returncode == 0, where, run.stderr.strip())


# ---------------------------------------------------------------- Compose, systemd


def service_rules(problems, at, service):
    """What holds for every service of a Compose file."""
    image = service["image"]
    problems.expect(re.search(r":v?\d+\.\d+", image), at, f"the image {image} has no version")
    problems.expect("max-size" in service["logging"].get("options", {}), at, "its log is not bounded")
    problems.expect("no-new-privileges:true" in service["security_opt"], at, "may gain privileges")
    for published in service.get("ports", []):
        problems.expect(published.get("host_ip") == "127.0.0.1", at, f"the port {published['target']} is open to others")
    for mount in service.get("volumes", []):
        problems.expect(mount["type"] != "bind" or os.path.exists(mount["source"]), at, f"there is no {mount['source']}")
    for needed in service.get("depends_on", {}):
        problems.expect(needed in service["beside"], at, f"depends on {needed}, which is not there")


def mounts(service):
    """Which file or folder of this machine each bind mount of a service is."""
    return {mount["target"]: pathlib.Path(mount["source"]) for mount in service.get("volumes", []) if mount["type"] == "bind"}


def images_built_once(problems, services):
    """One service builds the program's image, and the others wait for it: builds side by side fail on a new machine."""
    at = "docker-compose.yml"
    builders = [name for name, service in services.items() if "build" in service]
    problems.expect(builders == ["topology"], at, f"{builders} have `build`, and only topology may")
    for name, service in services.items():
        if service["image"].startswith("roundelay:"):
            problems.expect(service.get("pull_policy") == "never", f"{at}: {name}", "may pull the image, which is in no registry")


def not_idle(problems, project, services):
    """Without a profile jobs run where they can be seen: chains that begin by themselves, a throttle, a handler that says
    what it does, and a dashboard."""
    at = "deploy/compose/roundelay.toml"
    settings = tomllib.loads((project / at).read_text())
    usual = {name for name, service in services.items() if not service.get("profiles")}
    problems.expect({"worker-ios", "worker-android", "handler", "serve", "door"} <= usual, "docker-compose.yml", f"without a profile there is only {sorted(usual)}")
    problems.expect(any("throttle" in queue for queue in settings["queues"].values()), at, "no queue has a throttle")
    begun = {name: kind["roster"] for name, kind in settings["kinds"].items() if "every" in kind and "roster" in kind}
    problems.expect(begun, at, "no chain begins by itself")
    for name, roster in begun.items():
        for worker in ("worker-ios", "worker-android"):
            source = mounts(services[worker]).get(roster["file"])
            problems.expect(source and len(source.read_text().splitlines()) > 1, at, f"{worker} has no rows for {name} at {roster['file']}")
    for name, kind in settings["kinds"].items():
        url = urllib.parse.urlsplit(kind.get("handler", {}).get("http", {}).get("url", ""))
        called = services.get(url.hostname) or {}
        problems.expect(f"0.0.0.0:{url.port}" in (called.get("command") or []), at, f"no service answers what {name} calls")


def systems(problems, project, services, known, program):
    """The reference systems: each has a profile with a worker, a handler and an upstream, on the files of its example."""
    named = {profile for service in services.values() for profile in service.get("profiles", [])} - {"tools", "observe"}
    problems.expect(named == SYSTEMS, "docker-compose.yml", f"the profiles of systems are {sorted(named)}, not {sorted(SYSTEMS)}")
    for system in sorted(named):
        at, folder = f"docker-compose.yml: {system}", project / "examples" / system
        own = {name for name, service in services.items() if system in service.get("profiles", [])}
        parts = [system, f"{system}-handler", f"{system}-upstream"]
        problems.expect(own == set(parts), at, f"has the services {sorted(own)}")
        if own != set(parts):
            continue
        worker, handler, upstream = (services[name] for name in parts)
        for part in (worker, handler):
            problems.expect(part.get("network_mode") == f"service:{parts[2]}", at, "its parts have not one address")
            problems.expect(mounts(part).get(part["working_dir"]) == folder, at, f"does not start in {folder}")
        problems.expect(worker["command"] == ["worker"], at, f"runs {worker['command']}")
        played = ["demo", system, "--upstream-only", "--listen"]
        problems.expect(upstream["command"][:4] == played, at, f"its upstream is {upstream['command']}")
        problems.expect(handler["environment"]["UPSTREAM"] == f"http://{option(upstream['command'], '--listen')}", at, "its handler calls another upstream")
        problems.expect((folder / handler["command"][-1]).is_file(), at, f"there is no {folder / handler['command'][-1]}")
        text = text_of(problems, project, f"examples/{system}/roundelay.toml")
        for kind in tomllib.loads(text).get("kinds", {}).values():
            url = kind.get("handler", {}).get("http", {}).get("url", "")
            problems.expect(url.startswith("http://127.0.0.1:8000/"), at, f"calls {url}, where its handler does not answer")
            file = kind.get("roster", {}).get("file")
            problems.expect(file is None or (folder / file).is_file(), at, f"there is no roster {file}")
        check_configuration(problems, at, program, text, {**worker["environment"], "ROUNDELAY__BROKER__URL_FILE": str(given_to(known, worker)["broker-url"])})
        apart = worker["environment"]
        problems.expect(apart["ROUNDELAY__BROKER__PREFIX"] == system and f"/{system}.db" in apart["ROUNDELAY__LEDGER__URL"], at, "shares its ledger or its prefix")
        door = mounts(services["door"])["/etc/caddy/Caddyfile"].read_text()
        problems.expect(re.search(rf"^\s*import dashboard {system}-upstream$", door, re.M), at, "no door leads to its dashboard")
    doors = set(re.findall(r"^https://localhost:(\d+)", mounts(services["door"])["/etc/caddy/Caddyfile"].read_text(), re.M))
    published = {str(published["target"]) for published in services["door"]["ports"]}
    problems.expect(doors == published, "docker-compose.yml: door", f"answers on {sorted(doors)}, and {sorted(published)} are published")


def users_of_broker(problems, project, scratch, services, secrets, text, program):
    """RabbitMQ's users: hashes of the very passwords that the URLs have, and what `roundelay` says they need."""
    at = "docker-compose.yml"
    shown = subprocess.run([program, "topology", "users", "--definitions", "--config", "/dev/stdin"], input=text, capture_output=True, text=True, check=True)
    made = "deploy/compose/permissions.json"
    permissions = (project / made).read_text()
    problems.expect(permissions == shown.stdout, made, "is not what `roundelay topology users --definitions --config deploy/compose/roundelay.toml` prints")
    names = {permission["user"] for permission in json.loads(permissions)["permissions"]}
    # Nobody's password is known to others: what is checked in has none.
    problems.expect(not (project / "deploy/compose/secrets").exists(), at, "there are secrets in deploy/compose/secrets")
    for folder in (scratch / "secrets", scratch / "kept/made"):
        there = {path.name for path in folder.iterdir()}
        given = {file.read_text() for file in secrets.values()}
        # A person logs in as the operator, and no service does.
        left = {path.name for path in folder.iterdir() if path.read_text() not in given}
        problems.expect(left == {"operator-password"} or folder.name == "secrets", at, f"no service gets {sorted(left)} of {sorted(there)}")
        problems.expect(all(path.stat().st_mode & 0o077 == 0 for path in [folder, *folder.iterdir()]), at, f"others may read in {folder}")
        users = {user["name"]: user for user in json.loads((folder / "users.json").read_text())["users"]}
        problems.expect(set(users) == names | {"examples"}, at, f"{folder}: users {sorted(users)}, and {made} is for {sorted(names)}")
        for name, user in users.items():
            file = {"monitor": "management-url", "operator": "operator-password"}.get(name, f"{name}-url")
            text = (folder / file).read_text().strip()
            url = urllib.parse.urlsplit(text)
            whose, password = (name, text) if name == "operator" else (url.username, url.password)
            kept = base64.b64decode(user["password_hash"])
            right = whose == name and kept[4:] == hashlib.sha256(kept[:4] + password.encode()).digest()
            problems.expect(right, at, f"{folder}/{file} does not have the user {name} with the password of users.json")
            problems.expect(user["tags"] == (["monitoring"] if name in ("monitor", "operator") else []), at, f"{folder}/users.json: {name} has the tags {user['tags']}")
    conf = (project / "deploy/compose/definitions.conf").read_text()
    # Who runs the reference systems has nothing to do with the others' virtual host.
    (granted,) = json.loads((project / "deploy/compose/examples.json").read_text())["permissions"]
    problems.expect((granted["user"], granted["vhost"]) == ("examples", "examples"), at, f"the user examples: {granted}")
    (folder,) = re.findall(r"^load_definitions = (.*)$", conf, re.M)
    broker = services["rabbitmq"]
    mounted = {mount["target"]: mount["source"] for mount in broker["volumes"] if mount["type"] == "bind"} | {
        f"{folder}/{name}": name for name in given_to(secrets, broker, folder)
    }
    imported = [mounted[target] for target in sorted(mounted) if os.path.dirname(target) == folder]
    problems.expect(imported == ["10-users.json", str(project / made), str(project / "deploy/compose/examples.json")], at, f"RabbitMQ imports {imported}: users come first, then what they may do")
    included = [source for target, source in mounted.items() if target.startswith("/etc/rabbitmq/conf.d/")]
    problems.expect(included == [str(project / "deploy/compose/definitions.conf")], at, f"RabbitMQ's conf.d has {included}")


def made(scratch, services):
    """What the service `secrets` puts into each volume: the files, by volume and name."""
    service = services["secrets"]
    volumes = {mount["target"].removeprefix("/for/"): mount["source"] for mount in service["volumes"] if mount["target"].startswith("/for/")}
    for name in ("kept", "given", *(f"for/{folder}" for folder in volumes)):
        (scratch / name).mkdir(parents=True)
    script = mounts(service)["/project/deploy"] / service["entrypoint"][0].removeprefix("/project/deploy/")
    subprocess.run([script, scratch / "kept", scratch / "given", scratch / "for"], check=True, capture_output=True)
    return {(volume, path.name): path for folder, volume in volumes.items() for path in (scratch / "for" / folder).iterdir()}


def given_to(secrets, service, folder="/run/secrets"):
    """The secrets that a service sees in this folder, by name."""
    (volume,) = [mount["source"] for mount in service["volumes"] if mount["target"] == folder and mount["type"] == "volume"] or [None]
    return {name: file for (of, name), file in secrets.items() if of == volume}


def compose(problems, project, scratch, file, dockerfile, program):
    services = file["services"]
    secrets = made(scratch, services)
    mounted = [mount["source"] for name, service in services.items() if name != "secrets" for mount in service.get("volumes", []) if mount["type"] == "volume"]
    unused = {volume for volume, _ in secrets} - set(mounted)
    problems.expect(unused == {"for-publishers"}, "docker-compose.yml", f"secrets that no service uses: {sorted(unused)}")
    problems.expect("secrets" not in mounted, "docker-compose.yml", "a service has all passwords")
    text = (project / "deploy/compose/roundelay.toml").read_text()
    settings = tomllib.loads(text)
    workers = {}
    users_of_broker(problems, project, scratch, services, secrets, text, program)
    images_built_once(problems, services)
    not_idle(problems, project, services)
    systems(problems, project, services, secrets, program)
    for name, service in services.items():
        at, command = f"docker-compose.yml: {name}", service.get("command") or []
        service_rules(problems, at, {**service, "beside": services})
        lasting = service.get("restart") == "unless-stopped"
        image = service["image"]
        if lasting:
            limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
            problems.expect("memory" in limits, at, "has no limit of memory")
            checked = "test" in service.get("healthcheck", {}) or (image.startswith("roundelay:") and "HEALTHCHECK" in dockerfile)
            # Handlers and upstreams are seen by the runs that call them.
            called = name.endswith(("handler", "-upstream"))
            problems.expect(checked or called or name == "door", at, "has no health check")
        if not image.startswith("roundelay:"):
            continue
        problems.expect(service.get("read_only"), at, "may write to its image")
        problems.expect(service.get("cap_drop") == ["ALL"], at, "keeps capabilities")
        if set(service.get("profiles", [])) & SYSTEMS:
            continue
        env = {key: value for key, value in (service.get("environment") or {}).items()}
        for key, value in env.items():
            if str(value).startswith("/run/secrets/"):
                source = given_to(secrets, service).get(value.removeprefix("/run/secrets/"))
                problems.expect(source, at, f"{key} is {value}, and the service has no such secret")
                env[key] = str(source or value)
        check_configuration(problems, at, program, text, env)
        # Each is the user that it needs to be: only one declares, and tokens are the ledger's alone.
        url = given_to(secrets, service).get("broker-url")
        user, whose = {"topology": "topology", "list": None}.get(command[0], "worker"), url and urllib.parse.urlsplit(url.read_text()).username
        problems.expect(whose == user, at, f"goes to the broker as {whose}, not as {user}")
        if command[0] == "worker":
            problems.expect(settings["broker"].get("declare") is False, at, "its user may not declare, and broker.declare is not false")
            workers[name] = option(command, "--queues")
            wait = seconds(service["stop_grace_period"])
            problems.expect(wait >= seconds(settings["worker"]["grace"]) + RESERVE, at, f"is killed after {wait} s, within worker.grace")
            aliases = service["networks"]["default"]["aliases"]
            scraped = text_of(problems, project, "deploy/prometheus/prometheus.yml")
            problems.expect("workers" in aliases and "workers" in scraped, at, "Prometheus does not find it: no alias `workers`")
            listen = str(port(settings["worker"]["listen"]))
            problems.expect(listen in scraped, at, f"Prometheus does not ask port {listen}")
        if command[0] == "serve":
            door = mounts(services["door"])["/etc/caddy/Caddyfile"].read_text()
            led = f"import dashboard {name}\n" in door and f":{port(option(command, '--listen'))}\n" in door
            problems.expect(led, at, "its door leads elsewhere")
    consumed(problems, "docker-compose.yml", set(settings["queues"]), workers)


def unit(problems, project, scratch, file, program):
    """A service of systemd: what it starts, what it reads, how long it has to stop."""
    at = f"deploy/systemd/{file.name}"
    lines = [line.split("=", 1) for line in file.read_text().splitlines() if "=" in line and line[0] not in "#["]

    def values(name):
        return [value for key, value in lines if key == name]

    (start,) = values("ExecStart")
    is_worker = "worker" in file.name
    # As it is written in the name of a unit, and what it stands for.
    for instance, queues in [("sync-ios:9465", "sync-ios"), (r"sync\x2d\x2a\x2dios:9465", "sync-*-ios")]:
        plain = subprocess.run(["systemd-escape", "--unescape", "--", instance], capture_output=True, text=True, check=True).stdout.strip()
        words = shlex.split(start.replace("%%", "%").replace("$$", "$").replace("%I", plain).replace("/usr/local/bin/roundelay", "echo"))
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        expected = ["worker", "--queues", queues, "--listen", "127.0.0.1:9465"] if is_worker else ["serve"]
        problems.expect(said == expected, at, f"starts {said}, not {expected}")
    if is_worker:
        example = (project / "roundelay.example.toml").read_text()
        usual = seconds(re.search(r'^# grace = "(.*)"', example, re.M)[1])
        problems.expect(seconds(values("TimeoutStopSec")[0]) >= usual + RESERVE, at, "kills within worker.grace")
    problems.expect(values("KillMode") == ["mixed"], at, "tells the programs that handlers have started to stop, too")
    env = dict(value.split("=", 1) for value in values("Environment"))
    credentials = {value.split(":")[0] for value in values("LoadCredential")}
    secrets = scratch / "secrets"
    for key, value in env.items():
        if value.startswith("%d/"):
            problems.expect(value[3:] in credentials, at, f"{key} is {value}, and no credential is of that name")
            env[key] = str(secrets / value[3:].replace("broker-url", "worker-url"))
    text = (project / "deploy/compose/roundelay.toml").read_text()
    check_configuration(problems, at, program, text, env)


def local(problems, file, whole):
    """deploy/local/compose.yml, whose services are those of docker-compose.yml but for the user."""
    for name, service in file["services"].items():
        at = f"deploy/local/compose.yml: {name}"
        service_rules(problems, at, {**service, "beside": file["services"]})
        theirs = whole["services"][name]
        for same in ("image", "ports", "healthcheck", "command", "hostname"):
            problems.expect(service.get(same) == theirs.get(same), at, f"{same} is {service.get(same)}, in docker-compose.yml {theirs.get(same)}")


def versions(problems, project, file, dockerfile, objects):
    """The same versions everywhere."""
    version = tomllib.loads((project / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    rust = tomllib.loads((project / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    problems.expect(f"ARG VERSION={version}\n" in dockerfile, "deploy/Dockerfile", f"VERSION is not {version}")
    problems.expect(f"rust:{rust}-" in dockerfile, "deploy/Dockerfile", f"Rust is not {rust}")
    images = {name: service["image"] for name, service in file["services"].items()}
    for name, image in images.items():
        problems.expect(not image.startswith("roundelay:") or image == f"roundelay:{version}", f"docker-compose.yml: {name}", f"{image} is not of {version}")
    for thing, _, pod in pod_specs(objects):
        image = pod["containers"][0]["image"]
        problems.expect(image.endswith(f"/roundelay:{version}"), name_of(thing), f"{image} is not of {version}")
    (broker,) = of_kind(objects, "RabbitmqCluster")
    problems.expect(broker["spec"]["image"] == images["rabbitmq"], name_of(broker), f"its image is not {images['rabbitmq']}, Compose's")
    (ledger,) = of_kind(objects, "Cluster")
    theirs = re.search(r":(\d+\.\d+)", images["postgres"])[1]
    problems.expect(ledger["spec"]["imageName"].endswith(f":{theirs}"), name_of(ledger), f"its PostgreSQL is not {theirs}, Compose's")


def main():
    parser = argparse.ArgumentParser()
    for name in ("project", "scratch", "kubernetes", "program"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    project, scratch = pathlib.Path(given.project), pathlib.Path(given.scratch)
    problems, types = Problems(), []
    known_metrics = set(re.findall(r"`(roundelay_\w+)", (project / "docs/metrics.md").read_text()))
    dockerfile = (project / "deploy/Dockerfile").read_text()
    for name in ("plain", "example"):
        objects = [thing for thing in yaml.safe_load_all((scratch / f"{name}.yaml").read_text()) if thing]
        overlay = project / f"deploy/kubernetes/overlays/{name}/kustomization.yaml"
        types += schemas(problems, name, objects, given.kubernetes)
        restricted(problems, name, objects)
        kubernetes(problems, name, objects, known_metrics, overlay, given.program)
    (scratch / "objects.ts").write_text("\n".join(types) + "\n")
    alerts, made = "deploy/prometheus/rules.yml", "deploy/kubernetes/components/prometheus/rules.yaml"
    if text := text_of(problems, project, alerts):
        same = text_of(problems, project, made) == rules.text(text)
        problems.expect(same, made, f"is not {alerts}: tests/manifests/run --refresh")
    file = json.loads((scratch / "compose.json").read_text())
    compose(problems, project, scratch, file, dockerfile, given.program)
    local(problems, json.loads((scratch / "local.json").read_text()), file)
    for found in sorted((project / "deploy/systemd").glob("*.service")):
        unit(problems, project, scratch, found, given.program)
    versions(problems, project, file, dockerfile, objects)
    for told in problems.told:
        print(told, file=sys.stderr)
    if problems.told:
        sys.exit(f"{len(problems.told)} of {problems.looked_at} checks failed")
    print(f"{problems.looked_at} checks passed")


if __name__ == "__main__":
    main()

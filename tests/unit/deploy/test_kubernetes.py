"""The manifests of Kubernetes: its schemas accept them, and they fit the settings and the image.

They are not applied here: that needs a cluster.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tailrace import __version__, config
from tailrace.access.access import check_protection
from tailrace.access.password import UNKNOWN_USER
from tailrace.config.replication import host_and_port
from tailrace.observe.hosts import AllowedHosts
from tailrace.replica.leader import check_protection as check_replication

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yml"))
VERSIONS = ("1.29", "1.33")
Object = dict[str, Any]


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return [*yaml.safe_load_all(request.param.read_text())]


@pytest.fixture(scope="module")
def replicas() -> list[Object]:
    return [*yaml.safe_load_all((FOLDER / "replicas.yml").read_text())]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def pods(objects: list[Object]) -> list[Object]:
    """The specifications of the pods of all stateful sets."""
    return [each["spec"]["template"]["spec"] for each in of_kind(objects, "StatefulSet")]


def container(pod: Object) -> Object:
    [only] = pod["containers"]
    assert isinstance(only, dict)
    return only


def environment(objects: list[Object], pod: Object) -> dict[str, str]:
    """The variables of a pod; a password is one that `tailrace user add` accepts."""
    [secret] = of_kind(objects, "Secret")
    found: dict[str, str] = {}
    for variable in container(pod)["env"]:
        if "value" in variable:
            found[variable["name"]] = variable["value"]
            continue
        reference = variable["valueFrom"]["secretKeyRef"]
        assert reference["name"] == secret["metadata"]["name"]
        value = secret["stringData"][reference["key"]]
        found[variable["name"]] = {
            "PASSWORD_ANN": UNKNOWN_USER,
            "REPLICATION_KEY": "at least sixteen characters",
        }.get(variable["name"], value)
    return found


def settings_of(
    objects: list[Object], pod: Object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> config.Config:
    """The settings that the processes of a pod read."""
    for name, value in environment(objects, pod).items():
        monkeypatch.setenv(name, value)
    [content] = of_kind(objects, "ConfigMap")
    file = folder / "tailrace.yml"
    file.write_text(content["data"]["tailrace.yml"])
    return config.load(file)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_accept_every_object(objects: list[Object], version: str) -> None:
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_refuse_an_unknown_key(objects: list[Object]) -> None:
    broken = json.loads(json.dumps(of_kind(objects, "StatefulSet")[0]))
    container(broken["spec"]["template"]["spec"])["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def test_selectors_and_names_fit_together(objects: list[Object]) -> None:
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    labels = []
    for each in of_kind(objects, "StatefulSet"):
        spec = each["spec"]
        found = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == found
        assert spec["serviceName"] in services
        assert spec["replicas"] == 1
        labels.append(found)
        ports = {port["name"] for port in container(spec["template"]["spec"])["ports"]}
        for service in services.values():
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for service in services.values():
        wanted = service["spec"]["selector"].items()
        assert any(wanted <= found.items() for found in labels)


def test_mounts_have_volumes(objects: list[Object]) -> None:
    known = {each["metadata"]["name"] for each in objects} | {"tailrace-tls"}
    for each in of_kind(objects, "StatefulSet"):
        pod = each["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in each["spec"]["volumeClaimTemplates"]}
        mounts = container(pod)["volumeMounts"]
        assert {mount["name"] for mount in mounts} == volumes
        paths = [mount["mountPath"] for mount in mounts]
        assert not [path for path in paths for other in paths if path.startswith(f"{other}/")]
        for volume in pod["volumes"]:
            name = volume.get("configMap", {}).get("name") or volume.get("secret", {}).get(
                "secretName"
            )
            assert name in {None, *known}


def test_pods_have_no_rights(objects: list[Object]) -> None:
    """GIVEN the profile `restricted` of the pod security standards THEN the pods fulfil it, as the
    user of the image, and nothing but /data and /tmp can be written."""
    user = re.search(r"^USER (\d+):(\d+)$", (FOLDER.parent / "Dockerfile").read_text(), re.M)
    assert user is not None
    for pod in pods(objects):
        assert pod["automountServiceAccountToken"] is False
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container(pod)
        assert own["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = [m["mountPath"] for m in own["volumeMounts"] if not m.get("readOnly")]
        assert writable == ["/data", "/tmp"]


def test_settings_are_valid_and_protected(
    objects: list[Object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN the settings of a pod with real secrets THEN they are valid, need no --insecure, write
    to the volume, and name TLS files that are mounted."""
    for pod in pods(objects):
        settings = settings_of(objects, pod, tmp_path, monkeypatch)
        check_protection(settings.http)
        assert settings.log.path.is_relative_to("/data")
        assert settings.data.is_relative_to("/data")
        assert settings.http.tls is not None
        mounted = [Path(mount["mountPath"]) for mount in container(pod)["volumeMounts"]]
        assert settings.http.tls.certificate.parent in mounted
        [file] = [word for word in container(pod)["args"] if word.startswith("/")]
        assert Path(file).parent in mounted
        ports = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
        assert ports["http"] == settings.http.port
        hosts = AllowedHosts(settings.http.host, settings.http.hosts)
        assert hosts.allow("10.1.2.3:9090"), "probes name the address of the pod"
        for service in of_kind(objects, "Service"):
            if service["spec"]["ports"][0]["name"] == "http":
                assert hosts.allow(f"{service['metadata']['name']}:9090")


def test_probes_ask_without_a_login(objects: list[Object]) -> None:
    for pod in pods(objects):
        own = container(pod)
        asked = {
            kind: own[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
        }
        assert {kind: probe["path"] for kind, probe in asked.items()} == {
            "startup": "/health", "liveness": "/health", "readiness": "/ready",
        }  # fmt: skip
        assert all((each["scheme"], each["port"]) == ("HTTPS", "http") for each in asked.values())


def test_the_console_is_reached_when_something_does_not_work(objects: list[Object]) -> None:
    """GIVEN pods that are not ready while a pipeline fails THEN every service has their addresses:
    the console, `--at` and Prometheus are needed then."""
    services = of_kind(objects, "Service")
    assert services
    for service in services:
        assert service["spec"].get("publishNotReadyAddresses") is True, service["metadata"]["name"]


def test_the_image_is_this_release(objects: list[Object]) -> None:
    for pod in pods(objects):
        assert container(pod)["image"].rpartition(":")[2] == __version__


def test_secrets_are_to_be_replaced(objects: list[Object]) -> None:
    [secret] = of_kind(objects, "Secret")
    assert all("replace-me" in value for value in secret["stringData"].values())


def test_replicas_name_each_other(
    replicas: list[Object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN two machines THEN each has the other as its follower, listens on the port that it is
    reached at, and takes over by itself."""
    sets = of_kind(replicas, "StatefulSet")
    names = [f"{each['metadata']['name']}-0.{each['spec']['serviceName']}" for each in sets]
    for each, other in zip(sets, reversed(names), strict=True):
        pod = each["spec"]["template"]["spec"]
        replication = settings_of(replicas, pod, tmp_path, monkeypatch).replication
        [follower] = replication.followers
        ports = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
        assert host_and_port(follower) == (other, ports["replication"])
        assert host_and_port(replication.listen)[1] == ports["replication"]
        check_replication((replication.listen,), protected=replication.protected())
        assert (replication.mode, replication.takeover) == ("sync", "auto")
    [peers] = [each for each in of_kind(replicas, "Service") if "clusterIP" in each["spec"]]
    assert peers["spec"]["publishNotReadyAddresses"] is True


def test_replicas_differ_in_nothing_but_names_and_command(replicas: list[Object]) -> None:
    first, second = (json.dumps(each) for each in of_kind(replicas, "StatefulSet"))
    swapped = first.replace("tailrace-b-0", "tailrace-?-0").replace("tailrace-a", "tailrace-b")
    swapped = swapped.replace("tailrace-?-0", "tailrace-a-0")
    swapped = swapped.replace('instance": "a"', 'instance": "b"')
    swapped = swapped.replace('["run", ', '["follow", "-c", ')
    assert swapped == second


def test_one_machine_is_as_two_are(replicas: list[Object]) -> None:
    """GIVEN the pod of tailrace.yml THEN those of replicas.yml have all of it."""
    [single] = pods([*yaml.safe_load_all((FOLDER / "tailrace.yml").read_text())])
    for pod in pods(replicas):
        for key, value in single.items():
            if key != "containers":
                assert pod[key] == value
        for key, value in container(single).items():
            found = container(pod)[key]
            if key in ("env", "ports"):
                assert [each for each in value if each not in found] == []
            elif key != "args":
                assert found == value

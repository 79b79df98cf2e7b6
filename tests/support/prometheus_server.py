"""A real Prometheus that scrapes what a test gives it."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from patience import PATIENCE

LABELS = 'instance="127.0.0.1:7857",job="heartbeatd"'


class Prometheus:
    """A Prometheus in its own folder on a free loopback port."""

    def __init__(self, folder: Path, config: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._api = f"http://{address}/api/v1"
        self._log = (folder / "prometheus.log").open("w+")
        kept = ("--storage.tsdb.path", str(folder / "tsdb"), "--storage.tsdb.retention.time", "100y")
        command = ["prometheus", "--config.file", str(config), "--web.listen-address", address, *kept]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def query_api(self, path: str, **query: Any) -> Any:
        """The answer of its HTTP API. None while it is not ready."""
        try:
            with urlopen(f"{self._api}/{path}?{urlencode(query)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise
        except URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return None
            raise

    def values(self, expr: str, **when: Any) -> list[float]:
        """All values of all series of a query, now or from `start` to `end`."""
        answer = self.query_api("query_range" if "start" in when else "query", query=expr, **when)
        series = answer["result"] if answer else []
        return [float(value) for each in series for _, value in each.get("values", [each.get("value")])]

    def wait_until(self, question: Callable[[], Any]) -> Any:
        """The first result that is true."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if answer := question():
                return answer
            assert self._process.poll() is None, self.log
            time.sleep(0.1)  # the state is in another process
        raise AssertionError(self.log)

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(20)
        self._log.close()


Begin = Callable[[Path], Prometheus]

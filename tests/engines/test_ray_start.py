"""Ray clusters that do not start, are lost, or must leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import engine_worlds
from process_groups import process_group
from vestige.engines import RayCluster, Unit, ray_cluster, results
from vestige.engines.ray_cluster import private_folder
from vestige.errors import VestigeError

TESTS = Path(__file__).parents[1]


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


class Node:
    """A node of Ray's that starts a process and, if it is told to, does not come up."""

    killed: subprocess.Popen[bytes]

    def __init__(self, fails: BaseException | None = None) -> None:
        self.all_processes = {"raylet": [SimpleNamespace(process=sleeping())]}
        if fails is not None:
            raise fails

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.all_processes["raylet"][0].process

    def kill_all_processes(self, **how: bool) -> None:
        Node.killed = self.process
        self.process.kill()
        self.process.wait()

    def dead_processes(self):
        return [("raylet", self.process)] if self.process.poll() is not None else []


class FakeRay:
    """As much of Ray as an engine asks for; no task ever ends."""

    def __init__(self, fails: BaseException | None = None, loses_raylet: bool = False) -> None:
        self.fails, self.loses_raylet = fails, loses_raylet
        self._private = SimpleNamespace(worker=SimpleNamespace(_global_node=None))
        self.exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
        self.settings: dict[str, object] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **settings: object) -> None:
        self.settings = settings
        folder = settings.get("_temp_dir")
        if isinstance(folder, str):
            os.makedirs(folder)
            os.chmod(folder, 0o777)  # as Ray does
            self.outer = stat.S_IMODE(os.stat(os.path.dirname(folder)).st_mode)
        self._private.worker._global_node = Node(self.fails)

    def shutdown(self) -> None:
        node = self._private.worker._global_node
        if node is not None:
            node.process.kill()  # and does not wait, as Ray

    def put(self, parcel: bytes) -> bytes:
        return parcel

    def remote(self, task: object) -> object:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: object()))

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1}

    def wait(self, tasks, num_returns: int, timeout: float):
        if self.loses_raylet:
            self._private.worker._global_node.process.kill()
            self._private.worker._global_node.process.wait()
        return [], tasks

    def cancel(self, task: object, force: bool) -> None:
        pass


def said_by(ray: FakeRay, monkeypatch, engine: RayCluster | None = None) -> str:
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
    with pytest.raises(VestigeError) as refusal:
        list(results(engine or RayCluster(), engine_worlds.squared, [Unit("t", 0)]))
    sentence = str(refusal.value)
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize(
    "fails",
    [
        Exception("The current node timed out during startup. This\ncould happen"),
        RuntimeError("Failed to start GCS. Last connection error: Traceback (most recent"),
        TimeoutError(),
        OSError("AF_UNIX path length cannot exceed 107 bytes"),
    ],
)
def test_a_start_that_fails_is_one_sentence_and_leaves_no_process(monkeypatch, fails):
    ray = FakeRay(fails)
    assert "could not be started on this machine" in said_by(ray, monkeypatch)
    assert Node.killed.returncode == -signal.SIGKILL
    assert not os.path.exists(os.path.dirname(str(ray.settings["_temp_dir"])))


def test_an_interrupted_start_leaves_no_process(monkeypatch):
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: FakeRay(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(results(RayCluster(), engine_worlds.squared, [Unit("t", 0)]))
    assert Node.killed.returncode == -signal.SIGKILL


def test_a_lost_raylet_is_one_sentence_and_no_zombie(monkeypatch):
    ray = FakeRay(loses_raylet=True)
    assert "Ray's raylet on this machine ended" in said_by(ray, monkeypatch)
    assert ray._private.worker._global_node.process.returncode == -signal.SIGKILL


def test_what_ray_leaves_is_waited_for_and_its_folder_is_private(monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
    with RayCluster().worker_pool(engine_worlds.squared):
        assert ray.outer == 0o700
    node = ray._private.worker._global_node
    assert node.process.returncode == -signal.SIGKILL
    assert not os.path.exists(os.path.dirname(str(ray.settings["_temp_dir"])))


def test_an_address_where_nothing_answers_is_refused_at_once(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:99999999"):
        ray = FakeRay(AssertionError("Ray was asked"))
        said = said_by(ray, monkeypatch, RayCluster(address))
        assert f"No Ray cluster at {address}" in said
        assert not ray.settings


def test_another_version_of_ray_is_said(monkeypatch):
    fails = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9\n")
    said = said_by(FakeRay(fails), monkeypatch, RayCluster("auto"))
    assert "Ray: 2.9" in said
    assert "install the same Ray" in said


def test_the_path_of_a_socket_is_short_enough(monkeypatch, tmp_path):
    session = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
    for home in (tmp_path / ("x" * 60), Path("/tmp")):
        home.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(home))
        with private_folder() as folder:
            assert len(os.path.join(folder, session)) <= 107
            assert stat.S_IMODE(os.stat(os.path.dirname(folder)).st_mode) == 0o700
        assert not os.path.exists(os.path.dirname(folder))


REAL = """
import os, sys, time
from vestige.engines import RayCluster, Unit, results

def work(number):
    print("what a user prints", flush=True)
    if number:
        time.sleep(600)
    return b""

try:
    for _ in results(RayCluster(workers=1), work, [Unit("t", n) for n in range(int(sys.argv[1]))]):
        print("one", flush=True)
except KeyboardInterrupt:
    pass
mine = [p for p in os.listdir("/proc") if p.isdigit() and p != str(os.getpid())]
def parent(process):
    try:
        return int(open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
print("children", [p for p in mine if parent(p) == os.getpid()], os.listdir(sys.argv[2]))
"""


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc who is alive")
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_real_cluster_leaves_neither_processes_nor_files(interrupted):
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
        with process_group(
            [sys.executable, "-c", REAL, "2" if interrupted else "1", home],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": home, "PYTHONPATH": path},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "one\n"
            if interrupted:
                (made,) = Path(home).iterdir()
                assert stat.S_IMODE(made.stat().st_mode) == 0o700
                process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=300)
        assert said.strip() == "children [] []"
        end = time.monotonic() + 60
        while left := commands_with(home):
            assert time.monotonic() < end, left
            time.sleep(0.2)


def commands_with(text: str) -> list[str]:
    """Command lines of processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if text in line]

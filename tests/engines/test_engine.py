"""Engines: the same results wherever work runs, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conformance import ATTACKS, quick, solvable
from test_head_shards import shards

import engine_worlds
from pages.audits import changed
from process_groups import process_group
from vestige import run
from vestige.attacks import DeepLeakage, Guess, InvertingGradients, ReconstructorNetwork
from vestige.content import document_bytes
from vestige.engines import InProcess, LocalProcesses, RayCluster, Unit, WorkerLost, results
from vestige.engines.shipping import pack_work, unpack_work
from vestige.engines.units import Finished, Lost, Raised
from vestige.errors import BadInput, VestigeError
from vestige.files import read_safetensors
from vestige.interfaces import Reconstruction
from vestige.reports.files import load_report
from vestige.reports.parts import Times, VerdictKind
from vestige.studies.audit.trial_files import trial_of
from vestige.studies.audit.trials import AttackStopped, TrialWork, drawn, prepare_attacks
from vestige.studies.unit_files import unit_in
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import LabelOnly, draws, linear_network, model_audit, released_network, small_audit

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ray_cluster():
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        try:
            ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
            yield RayCluster()
        finally:
            ray.shutdown()


PROCESSES = pytest.param("processes", marks=pytest.mark.slow)
RAY = pytest.param("ray", marks=pytest.mark.cluster)


@pytest.fixture(params=["here", PROCESSES, RAY], scope="module")
def engine(request):
    if request.param == "ray":
        return request.getfixturevalue("ray_cluster")
    return InProcess() if request.param == "here" else LocalProcesses(2)


@pytest.fixture(params=[PROCESSES, RAY])
def elsewhere(request):
    if request.param == "ray":
        return request.getfixturevalue("ray_cluster")
    return LocalProcesses(2)


def numbered(count: int) -> list[Unit]:
    return [Unit("test", number) for number in range(count)]


def found(engine, work, count: int, **how) -> dict[int, bytes]:
    said = list(results(engine, work, numbered(count), **how))
    assert len({one.unit for one in said}) == len(said), "a result came twice"
    return {one.unit.number: one.content for one in said}


def without_times(report) -> bytes:
    return document_bytes(changed(report, times=Times()))


class Scripted:
    """An engine that ends its units as a list of choices says: any order, lost, raised, twice."""

    here = False

    def __init__(self, choices, capacity: int, failing: frozenset[int] = frozenset()) -> None:
        self.choices, self.capacity, self.failing = iter(choices), capacity, failing
        self.held: list[Unit] = []
        self.told: list[Unit] = []
        self.started = 0
        self.closed = False

    @contextmanager
    def worker_pool(self, work):
        self.work = work
        try:
            yield self
        finally:
            self.closed = True

    def start(self, unit):
        self.started += 1
        self.held.append(unit)
        assert len(self.held) <= self.capacity

    def report(self):
        choice = next(self.choices, 0)
        if choice % 5 == 4 and self.told:  # what was thought lost comes after all
            return Finished(self.told[choice % len(self.told)], b"stale")
        unit = self.held.pop(choice % len(self.held))
        if choice % 7 == 6:
            return Lost(unit, "chance", blameless=True)
        self.told.append(unit)
        if unit.number in self.failing:
            return Raised(unit, BadInput(f"{unit.number}"))
        return Finished(unit, self.work(unit.number))


@settings(deadline=None, max_examples=200)
@given(
    choices=st.lists(st.integers(0, 34), max_size=60),
    capacity=st.integers(1, 5),
    count=st.integers(0, 12),
    in_order=st.booleans(),
)
def test_each_result_once_in_any_course_of_events(choices, capacity, count, in_order):
    staff = Scripted(choices, capacity)
    taken = []
    for one in results(staff, engine_worlds.squared, numbered(count), in_order=in_order):
        taken.append(one)
        again = sum(choice % 7 == 6 for choice in choices)
        assert staff.started <= len(taken) - 1 + capacity + again, "it ran too far ahead"
    assert sorted(one.unit.number for one in taken) == list(range(count))
    assert all(one.content == engine_worlds.squared(one.unit.number) for one in taken)
    if in_order:
        assert [one.unit.number for one in taken] == list(range(count))
    assert staff.closed is bool(count)


@settings(deadline=None, max_examples=100)
@given(
    choices=st.lists(st.integers(0, 3), max_size=30),
    failing=st.frozensets(st.integers(0, 9), min_size=1),
    in_order=st.booleans(),
)
def test_the_first_failure_is_the_same_in_any_order(choices, failing, in_order):
    staff = Scripted(choices, 4, failing)
    taken: list[int] = []
    found = results(staff, engine_worlds.squared, numbered(10), in_order=in_order)
    with pytest.raises(BadInput) as raised:
        taken.extend(one.unit.number for one in found)
    assert int(str(raised.value)) == min(failing)
    assert set(range(min(failing))) <= set(taken)
    assert staff.closed


def test_results_are_the_same_everywhere(engine):
    wanted = {number: engine_worlds.squared(number) for number in range(9)}
    assert found(engine, engine_worlds.squared, 9) == wanted
    ordered = found(engine, engine_worlds.squared, 9, in_order=True)
    assert list(ordered) == list(range(9))
    assert ordered == wanted


def test_workers_have_one_thread_and_may_print(elsewhere):
    before = torch.get_num_threads()
    assert found(elsewhere, engine_worlds.threads, 2) == {0: b"1", 1: b"1"}
    assert torch.get_num_threads() == before
    assert found(elsewhere, engine_worlds.printed, 2) == {0: b"0", 1: b"1"}


def test_a_lost_workers_unit_is_done_again(elsewhere, tmp_path):
    work = engine_worlds.Killed(tmp_path, 2)
    assert found(elsewhere, work, 6) == {n: engine_worlds.squared(n) for n in range(6)}
    assert len(list(tmp_path.glob("*.killed"))) == 1
    assert len(list(tmp_path.glob("2-*"))) == 2


def test_a_unit_that_ends_three_workers_is_an_error(elsewhere, tmp_path):
    work = engine_worlds.Killed(tmp_path, 1, always=True)
    with pytest.raises(WorkerLost, match="Unit 2 lost 3 workers"):
        found(elsewhere, work, 3)
    assert len(list(tmp_path.glob("1-*"))) == 3


def test_a_worker_killed_from_outside_in_the_middle(tmp_path):
    def kill() -> None:
        note, end = tmp_path / "process", time.monotonic() + 60
        while not note.exists() and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(int(note.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    work = engine_worlds.Waiting(tmp_path, 1)
    assert found(LocalProcesses(2), work, 5) == {n: engine_worlds.squared(n) for n in range(5)}
    killer.join()


def test_exceptions_come_back_as_themselves(engine):
    with pytest.raises(BadInput, match="Unit 3 does not fit"):
        found(engine, engine_worlds.refused, 6)
    with pytest.raises(SystemExit) as left:
        found(engine, engine_worlds.left, 1)
    assert left.value.code == 7


def test_exceptions_that_cannot_be_sent_come_back_in_words(elsewhere):
    with pytest.raises(VestigeError, match="Unsendable: two words"):
        found(elsewhere, engine_worlds.unsendable, 1)


def test_work_that_cannot_be_sent_is_refused_in_a_sentence(elsewhere):
    lock = threading.Lock()
    with pytest.raises(BadInput, match="cannot be sent to another process"):
        found(elsewhere, lambda number: bytes(lock.locked()), 1)


def test_bad_engines_are_refused():
    for wrong in (
        lambda: LocalProcesses(0),
        lambda: RayCluster(workers=0),
        lambda: RayCluster(cpus_per_unit=0),
        lambda: RayCluster(gpus_per_unit=-1),
    ):
        with pytest.raises(BadInput):
            wrong()


def test_a_missing_ray_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match="extra 'cluster'"):
        found(RayCluster(), engine_worlds.squared, 1)


ATTACKED = [InvertingGradients(iterations=8), DeepLeakage(iterations=4), LabelOnly()]


def gradient_audit():
    return small_audit(ATTACKED, batch_size=2, threat=HonestServer(labels=True))


def test_an_audit_gives_one_record_on_every_engine(engine, tmp_path):
    wanted = without_times(run(replace(gradient_audit(), trials=8), seed=3))
    moments = []
    report = run(
        replace(gradient_audit(), trials=8),
        seed=3,
        directory=tmp_path / "run",
        engine=engine,
        watch=moments.append,
    )
    assert without_times(report) == wanted
    assert report.findings.times.cpu_seconds > 0
    if not engine.here:
        assert [moment.done for moment in moments] == list(range(9))
        assert all(moment.part == "" and moment.total == 8 for moment in moments)
    files = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    trials = {f"{number:06}.safetensors" for number in range(8)}
    assert files == {"lock", "manifest.json", "report.json", "digests.json"} | trials
    # Nothing is run again: an engine that cannot start is not asked.
    again = run(
        replace(gradient_audit(), trials=8), seed=3, directory=tmp_path / "run", engine=Broken()
    )
    assert without_times(again) == wanted


class Broken:
    here = False

    def worker_pool(self, work):
        raise AssertionError("nothing was left to do")


@pytest.mark.slow
def test_learned_attacks_are_sent_as_they_were_prepared():
    attack = ReconstructorNetwork(shadows=40, epochs=2, hidden=(16,))
    audit = model_audit([attack], victim=released_network())
    wanted = without_times(run(replace(audit, trials=3), seed=1))
    assert without_times(run(replace(audit, trials=3), seed=1, engine=LocalProcesses(2))) == wanted


@pytest.mark.parametrize("cls", [cls for cls in ATTACKS if cls is not Guess])
def test_every_attack_can_be_sent(cls):
    audit = solvable(cls, quick(cls))
    public = audit.threat.public(audit.victim, audit.prior)
    work = TrialWork(audit, prepare_attacks(audit.all_attacks, public, 5), 5)
    here, there = (trial_of(unit_in(1, one(1))) for one in (work, unpack_work(pack_work(work))))
    assert here.outcomes == there.outcomes
    assert here.remarks == there.remarks
    for name, tensor in here.tensors.items():
        assert torch.equal(tensor.nan_to_num(7.0), there.tensors[name].nan_to_num(7.0))


@dataclass(frozen=True)
class Stopping(LabelOnly):
    """Stops at every record of one class, wherever that trial runs."""

    label: int = 0

    def prepare(self, public, *, generator):
        inner = super().prepare(public, generator=generator)

        def reconstruct(observation, attacker) -> Reconstruction:
            if int(observation.hints.labels[0]) == self.label:
                raise RuntimeError("no memory left")
            return inner(observation, attacker)

        return reconstruct


def test_an_attack_that_stops_makes_the_same_failure(elsewhere, tmp_path):
    told = HonestServer(labels=True)
    first, *others = (
        int(drawn(small_audit([LabelOnly()], threat=told), trial, 0).secret.y)
        for trial in range(12)
    )
    label = next(label for label in others if label != first)
    audit = small_audit([Stopping(label)], threat=told)
    here = run(replace(audit, trials=12))
    assert here.findings.failure is not None
    assert 0 < here.findings.failure.trial < 12
    there = run(replace(audit, trials=12), engine=elsewhere, directory=tmp_path / "run")
    assert there.verdict.kind is VerdictKind.INVALID
    assert there.findings.failure == here.findings.failure
    assert there.findings.trials_finished >= here.findings.failure.trial


class Leaving(SharedGradient):
    def release(self, secret, *, generator):
        if float(secret.x[0, 0, 0, 0]) < 0.3:
            raise ValueError("the client is gone")
        return super().release(secret, generator=generator)


def test_a_victim_that_stops_is_bad_input(engine):
    victim = Leaving(linear_network())
    kept = draws(60, 1000)
    seen = kept[kept.x[:, 0, 0, 0] >= 0.3]
    audit = small_audit([LabelOnly()], threat=HonestServer(labels=True), victim=victim)
    assert len(seen) < len(kept)
    with pytest.raises(BadInput, match=r"victim stopped in trial \d+"):
        run(replace(audit, trials=60), engine=engine)


def test_a_stopped_attack_keeps_what_it_says_on_its_way():
    import copy

    stopped = AttackStopped("Name", 4, RuntimeError("out of memory on the device"))
    stopped.add_note("In a worker: …")
    sent = copy.copy(stopped)  # by the same reduction
    assert type(sent) is AttackStopped
    assert str(sent) == str(stopped)
    assert (sent.part, sent.number) == ("Name", 4)
    assert (sent.message, sent.remedy) == (stopped.message, stopped.remedy)
    assert sent.__notes__ == stopped.__notes__


def test_shards_are_the_same_from_several_workers(engine, tmp_path):
    alone = list(shards(None).stream(110))
    there = list(shards(None).stream(110, engine=engine))
    assert [len(shard) for shard in there] == [20, 20, 20, 20, 20, 10]
    shards(tmp_path / "own").shard(3)
    stamp = next((tmp_path / "own").iterdir()).stat().st_mtime_ns
    kept = list(shards(tmp_path / "own").stream(110, engine=engine))
    for one, other, third in zip(alone, there, kept, strict=True):
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.weights, third.weights)
        assert torch.equal(one.sets.members, other.sets.members)
        assert torch.equal(one.sets.targets, third.sets.targets)
    list(shards(tmp_path / "here").stream(110))
    mine, others = (
        {path.name: read_safetensors(path) for path in (tmp_path / name).iterdir()}
        for name in ("own", "here")
    )
    assert mine.keys() == others.keys()
    for name, (tensors, said) in mine.items():
        assert said == others[name][1]
        assert all(torch.equal(t, others[name][0][n]) for n, t in tensors.items())
    (third,) = (tmp_path / "own").glob("*-000003.safetensors")
    assert third.stat().st_mtime_ns == stamp


def test_a_stream_of_shards_is_only_so_far_ahead(tmp_path):
    """What is not asked for is not made: one hundred shards are wanted, and three are taken."""
    engine = Counting()
    taken = shards(tmp_path).stream(2000, engine=engine)
    for _ in range(3):
        next(taken)
    taken.close()
    assert engine.staff.started <= 3 - 1 + engine.capacity
    assert len(list(tmp_path.iterdir())) == 3


class Counting:
    here = False
    capacity = 4

    def worker_pool(self, work):
        self.staff = Scripted([3, 1, 2] * 50, self.capacity)
        return self.staff.worker_pool(work)


DRIVER = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import time
from dataclasses import replace
from worlds import LabelOnly, small_audit
from vestige import run
from vestige.threats import HonestServer
from vestige.engines import LocalProcesses

place = Path(sys.argv[1])


class Slow(LabelOnly):  # defined in __main__, which workers cannot import
    name = "Slow"

    def prepare(self, public, *, generator):
        inner = super().prepare(public, generator=generator)

        def reconstruct(observation, attacker):
            time.sleep(0.3)
            return inner(observation, attacker)

        return reconstruct


audit = small_audit([Slow()], threat=HonestServer(labels=True))
engine = LocalProcesses(2)
report = run(replace(audit, trials=12), seed=3, directory=place / "run", engine=engine)
print(report.verdict.kind, report.findings.failure and report.findings.failure.message)
"""


def driver(place: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    return process_group(
        [sys.executable, "-c", DRIVER, str(place)],
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )


def state_and_parent(process: int | str) -> tuple[str, int]:
    try:
        said = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "gone", 0
    return said[0], int(said[1])


def children(process: int) -> list[int]:
    names = [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [int(name) for name in names if state_and_parent(name)[1] == process]


def gone(process: int) -> bool:
    return state_and_parent(process)[0] in ("Z", "gone")


@pytest.fixture
def begun(tmp_path):
    with driver(tmp_path) as child:
        yield child


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc who is alive")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_is_stopped_takes_its_workers_along_and_goes_on(begun, tmp_path, how):
    end = time.monotonic() + 400
    while len(list(tmp_path.glob("run/units/*.safetensors"))) < 2:
        assert time.monotonic() < end
        assert begun.poll() is None
        time.sleep(0.02)
    workers = children(begun.pid)
    assert len(workers) == 2
    begun.send_signal(how)
    said, _ = begun.communicate(timeout=200)
    while not all(gone(worker) for worker in workers):
        assert time.monotonic() < end, "workers outlive their driver"
        time.sleep(0.05)
    kept = {p.name: p.read_bytes() for p in tmp_path.glob("run/units/*.safetensors")}
    assert 2 <= len(kept) < 12
    if how == signal.SIGINT:
        assert "INVALID it was interrupted." in said
    with driver(tmp_path) as again:  # the same program resumes
        again.communicate(timeout=300)
    report = load_report(tmp_path / "run" / "report.json")
    assert all((tmp_path / "run" / "units" / n).read_bytes() == b for n, b in kept.items())
    audit = small_audit([Slow()], threat=HonestServer(labels=True))
    assert without_times(report) == without_times(run(replace(audit, trials=12), seed=3))


class Slow(LabelOnly):
    name = "Slow"


USER_FILE = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from dataclasses import dataclass
from beside import shade
from vestige.threats import HonestServer
from worlds import LabelOnly, small_audit


@dataclass(frozen=True)
class Own(LabelOnly):
    factor: float = 1.0
    name = "Own"

    def prepare(self, public, *, generator):
        inner = super().prepare(public, generator=generator)
        return lambda observation, attacker: shade(inner(observation, attacker), self.factor)


audit = small_audit([Own(0.9)], threat=HonestServer(labels=True))
"""

BESIDE = """
from dataclasses import replace


def shade(found, factor):
    return replace(found, candidates=found.candidates * factor)
"""


def test_a_users_file_runs_in_workers(elsewhere, tmp_path, monkeypatch):
    from vestige.cli.user_code import load_plan

    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_audit.py").write_text(USER_FILE)
    (tmp_path / "beside.py").write_text(BESIDE)
    audit = load_plan(tmp_path / "own_audit.py")
    wanted = without_times(run(replace(audit, trials=4), seed=2))
    for name in ("own_audit.py", "beside.py"):
        (tmp_path / name).unlink()  # as on another machine
    try:
        assert without_times(run(replace(audit, trials=4), seed=2, engine=elsewhere)) == wanted
    finally:
        for name in ("user_file_own_audit", "beside"):
            sys.modules.pop(name, None)


def test_another_version_is_refused():
    parcel = pack_work(engine_worlds.squared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vestige.engines.shipping.__version__", "0.0.1")
        with pytest.raises(BadInput, match="install the same version"):
            unpack_work(parcel)

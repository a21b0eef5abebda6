"""One function per fault. It injects the fault and returns a function that undoes it, or None if it is momentary."""

import contextlib
import signal
from collections.abc import Callable

from benchmarks.chaos.findings import CONTROLLERS
from benchmarks.chaos.scene import Missed, Scene
from benchmarks.chaos.schedule import Fault
from tests.slurm.cluster import wait_until

_START_S = 180.0

Undo = Callable[[], object]
Inject = Callable[[Scene, Fault], Undo | None]


def do(scene: Scene, fault: Fault) -> Undo | None:
    """Inject a fault.

    Raises:
        Missed: there was nothing to hit.
    """
    function: Inject = globals()[fault.kind.replace("/", "_")]
    return function(scene, fault)


def trainer_kill(scene: Scene, fault: Fault) -> None:
    _kill(scene, scene.head, "trainer")


def rank_kill(scene: Scene, fault: Fault) -> None:
    _kill(scene, fault.choose(scene.hosts[1:] or scene.hosts), "rank")


def ray_kill(scene: Scene, fault: Fault) -> None:
    _kill(scene, scene.head, "ray")


def engine_kill(scene: Scene, fault: Fault) -> None:
    _kill(scene, fault.choose(scene.hosts), "engine")


def agent_kill(scene: Scene, fault: Fault) -> None:
    _kill(scene, fault.choose(scene.hosts), "agent")


def controller_kill(scene: Scene, fault: Fault) -> None:
    _kill(scene, scene.controllers(), "controller")


def trainer_stop(scene: Scene, fault: Fault) -> Undo:
    return _stop(scene, scene.head, "trainer")


def rank_stop(scene: Scene, fault: Fault) -> Undo:
    return _stop(scene, fault.choose(scene.hosts), "rank")


def agent_stop(scene: Scene, fault: Fault) -> Undo:
    return _stop(scene, fault.choose(scene.hosts), "agent")


def controller_stop(scene: Scene, fault: Fault) -> Undo:
    return _stop(scene, scene.controllers(), "controller")


def _kill(scene: Scene, host: str, target: str) -> None:
    # The newest: of two controllers the older is the keeper; of a shell and its program, the newest is the program.
    scene.signal(host, scene.find(host, target)[-1:], signal.SIGKILL)


def _stop(scene: Scene, host: str, target: str) -> Undo:
    pids = scene.find(host, target)[-1:]
    scene.signal(host, pids, signal.SIGSTOP)
    return lambda: scene.signal(host, pids, signal.SIGCONT)


def node_power(scene: Scene, fault: Fault) -> Undo:
    host = fault.choose(scene.hosts)
    _power_off(scene, host)
    return lambda: _boot(scene, host)


def node_reboot(scene: Scene, fault: Fault) -> None:
    """Reboot before Slurm notices; no process survives."""
    host = fault.choose(scene.hosts)
    _power_off(scene, host)
    _boot(scene, host)


def _power_off(scene: Scene, host: str) -> None:
    if not scene.cluster.is_on(host):
        raise Missed(f"{host} is off")
    batch_host = scene.find_batch_host()
    scene.note(host + (CONTROLLERS if host == batch_host else ""))
    # Unplug first: a machine that loses power closes no connection.
    scene.plug(host, out=True)
    scene.cluster.power_off(host)


def _boot(scene: Scene, host: str) -> None:
    scene.plug(host, out=False)
    scene.cluster.boot(host, wait=False)


def slurmd_kill(scene: Scene, fault: Fault) -> Undo:
    host = fault.choose(scene.hosts)
    return scene.cluster.hold_slurmd(host)


def slurmctld_kill(scene: Scene, fault: Fault) -> Undo:
    scene.cluster.stop_controller(kill=True)
    return scene.cluster.start_controller


def slurmctld_restart(scene: Scene, fault: Fault) -> None:
    scene.cluster.restart_controller()


def slurmdbd_kill(scene: Scene, fault: Fault) -> Undo:
    return scene.cluster.hold_accounting()


def job_preempt(scene: Scene, fault: Fault) -> None:
    words = ["-p", "high", "-w", fault.choose(scene.hosts), "--exclusive", "--mem=100", "--output=/dev/null"]
    _run_slurm(scene, "sbatch", *words, "--wrap", f"sleep {fault.lasts_s}")


def job_requeue(scene: Scene, fault: Fault) -> None:
    _run_slurm(scene, "scontrol", "requeue", scene.run.job)


def _run_slurm(scene: Scene, *argv: str) -> None:
    done = scene.cluster.run(argv)
    if done.returncode:
        raise Missed(done.stderr.strip())


def disk_full(scene: Scene, fault: Fault) -> Undo:
    disk = scene.disk
    assert disk is not None
    disk.fill()
    return disk.empty


def disk_freeze(scene: Scene, fault: Fault) -> Undo:
    return _freeze(scene, (fault.lasts_s, 0.0))


def disk_slow(scene: Scene, fault: Fault) -> Undo:
    """Block writes for four fifths of the time."""
    return _freeze(scene, *[(0.4, 0.1)] * round(fault.lasts_s / 0.5))


def _freeze(scene: Scene, *beats: tuple[float, float]) -> Undo:
    assert scene.disk is not None
    return scene.disk.freeze(*beats).wait


def network_pair(scene: Scene, fault: Fault) -> Undo:
    head, *others = scene.hosts
    if not others:
        raise Missed("one node has no line to another")
    return scene.cut(head, fault.choose(others))


def network_slurmctld(scene: Scene, fault: Fault) -> Undo:
    """Cut off the controller's node: Slurm restarts the job elsewhere while its first start is alive."""
    return scene.cut(scene.controllers(), None)


def network_down(scene: Scene, fault: Fault) -> Undo:
    """Cut off the controller's node, mark it down at once, and heal it when the second start holds the run."""
    host, before = scene.controllers(), len(scene.run.starts)
    heal = scene.cut(host, None)
    try:
        _run_slurm(scene, "scontrol", "update", f"nodename={host}", "state=down", "reason=chaos")
    except Missed:
        heal()
        raise
    scene.note(scene.victim)  # Slurm has given up the node from here on

    def undo() -> None:
        with contextlib.suppress(TimeoutError):  # the wait for progress reports it
            wait_until(lambda: len(scene.run.starts) > before, "another start", timeout_s=_START_S)
        heal()

    return undo


def clock_jump(scene: Scene, fault: Fault) -> Undo:
    """Shift by an hour in either direction; see clock/sitecustomize.py."""
    file = scene.clock / fault.choose(scene.hosts)
    file.write_text("3600" if fault.pick < 0.5 else "-3600")
    return file.unlink

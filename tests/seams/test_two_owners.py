"""Owners that lose and take the Lease while messages are late: pods come to no harm.

The Lease, the fence, the tuning loop, and the pod's own control of its limits are the real ones.
Between them is a network that delivers requests in any order, loses the answers to some and the
wait for others, and whose addresses pass from one pod to another.
"""

import asyncio
import math
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from paceline_engine.engine.control import LimitsControl
from paceline_operator.errors import NotLeadingError
from paceline_operator.fence import Fence
from paceline_operator.leader import Leader
from paceline_sidecar.backend import Deliver, EngineView
from paceline_sidecar.runtime_control import AnotherEngine, EpochTooOld, RuntimeControl
from paceline_sidecar.runtime_patch import LimitsPatch
from paceline_sidecar.service import Service
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.telemetry import a_telemetry
from paceline_tuner.loop import TuningLoop
from paceline_tuner.pods import PodRefusedError, PodUnreachableError, TokenRefusedError
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import SLA, Range, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Load, Telemetry, decode_limits
from paceline_wire import (
    AdaptersState,
    Limits,
    LimitsState,
    LoadAdapter,
    ProfileSteps,
    SetLimits,
    StepTrace,
    Submit,
)
from paceline_wire.adapters import UnloadAdapter
from paceline_wire.limits import Capacity

pytestmark = pytest.mark.slow

_CAPACITY: Final = Capacity(64, 2048, 4096, 16, 4096)
_OWNERS: Final = 2
_SERVICES: Final = ("ns/a", "ns/b")
_PODS: Final = (("ns/a", "a-0"), ("ns/a", "a-1"), ("ns/b", "b-0"))
_TURNS: Final = 30
"""Of the loop: more than any step of a tick takes."""
_numbers = count(1)


@dataclass
class Engine:
    """Backend of one engine: its real limits, and every change that it took."""

    clock: ManualClock
    instance: str = field(default_factory=lambda: f"engine-{next(_numbers)}")
    control: LimitsControl = field(
        default_factory=lambda: LimitsControl(Limits(64, 2048), _CAPACITY)
    )
    accepted: list[int] = field(default_factory=list)
    """The epochs of its changes."""
    state: LimitsState = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.control.state(call=0, decodes=0)

    @property
    def view(self) -> EngineView:
        return EngineView(phase="ready", instance=self.instance, limits=self.state)

    async def set_limits(self, change: SetLimits) -> LimitsState:
        before = self.control.epoch, self.control.limits
        answer = self.control.change(change, now=self.clock(), next_step=0, decodes=0)
        self.state = msgspec.structs.replace(answer, error=None)
        if (self.control.epoch, self.control.limits) != before:
            self.accepted.append(self.control.epoch)
        return answer

    def expire(self) -> None:
        if (state := self.control.expire(now=self.clock(), next_step=0, decodes=0)) is not None:
            self.state = state

    def submit(self, message: Submit, deliver: Deliver) -> None:
        raise AssertionError((message, deliver))

    def abort(self, ids: list[str]) -> None:
        raise AssertionError(ids)

    async def profile_steps(self, asked: ProfileSteps) -> StepTrace:
        raise AssertionError(asked)

    async def change_adapters(self, change: LoadAdapter | UnloadAdapter) -> AdaptersState:
        raise AssertionError(change)


@dataclass
class Pod:
    """A sidecar with its engine."""

    service: str
    name: str
    clock: ManualClock

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.engine = Engine(self.clock)
        self.sidecar = Service(self.engine, run_dir=Path("nowhere"), clock=self.clock)
        self.control = RuntimeControl(self.sidecar, None)

    def telemetry(self) -> Telemetry:
        limits = decode_limits(msgspec.json.encode(self.control.state()))
        return a_telemetry(
            self.clock(),
            instance=self.engine.instance,
            pod=self.name,
            limits=limits,
            load=Load(running=0, waiting=0, waiting_tokens=0, output_tokens=0),
            step_rows=(),
        )


@dataclass(eq=False)
class Request:
    """One request on its way."""

    target: PodTarget
    read: dict[str, "Engine"]
    """Whose telemetry its sender has read last, by the name of the pod that it asked."""
    body: Mapping[str, object] | None
    """None reads telemetry."""
    answer: asyncio.Future[Any]
    read_of: Engine | None = field(init=False)
    """Whose telemetry it was decided from."""

    def __post_init__(self) -> None:
        self.read_of = self.read.get(self.target.name)


class Client:
    """PodClient of one owner: requests wait on the network until they are delivered."""

    def __init__(self, fence: Fence, network: list[Request]) -> None:
        self._fence = fence
        self._network = network
        self.read: dict[str, Engine] = {}

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        assert since >= 0
        telemetry: Telemetry = await self._ask(pod, None)
        return telemetry

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        self._fence.check()
        limits: LimitsAnswer = await self._ask(pod, body)
        return limits

    async def _ask(self, pod: PodTarget, body: Mapping[str, object] | None) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._network.append(Request(pod, self.read, body, answer))
        return await answer


@dataclass
class Owner:
    """A replica: its Lease, its fence with grants on their way, and its loop."""

    leader: Leader
    fence: Fence
    network: list[Request]
    clock: ManualClock
    grants: list[float] = field(default_factory=list)
    targets: dict[str, ServiceTarget] = field(default_factory=dict)
    rounds: dict[str, asyncio.Task[ServiceReport]] = field(default_factory=dict)
    num_terms_cut: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Be a new process."""
        for task in self.rounds.values():
            task.cancel()
        self.rounds.clear()
        self.targets.clear()
        self.grants.clear()
        self.fence.grant(-math.inf)
        self.client = Client(self.fence, self.network)
        self.loop = TuningLoop(self.client, lambda: 1e9 + self.clock())


class OwnersMachine(RuleBasedStateMachine):
    """Terms, messages, restarts and addresses, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.network: list[Request] = []
        self.pods = [Pod(service, name, self.clock) for service, name in _PODS]
        self.addresses = {f"10.0.0.{number}": pod for number, pod in enumerate(self.pods)}
        self.version = 1
        cluster = FakeCluster()
        self.owners = [
            Owner(
                Leader(cluster, "paceline", "lease", f"replica-{number}", self.clock),
                Fence(self.clock),
                self.network,
                self.clock,
            )
            for number in range(_OWNERS)
        ]
        self.num_taken = 0

    @rule(owner=st.integers(0, _OWNERS - 1))
    def renew(self, owner: int) -> None:
        """Take or renew the Lease, and send a grant to the process that tunes."""
        found = self.owners[owner]
        self._run(found.leader.look(may_lead=True))
        if found.leader.is_leading:
            found.grants.append(found.leader.leads_until)

    @rule(owner=st.integers(0, _OWNERS - 1))
    def hand_over(self, owner: int) -> None:
        """The other one asks for the Lease, and gets it when it is safe."""
        found, asker = self.owners[owner].leader, self.owners[1 - owner].leader
        self._run(asker.try_once())
        self._run(asker.ask())
        self.renew(owner)
        if found.is_leading and found.asked_by == asker.identity:
            found.leave_to(asker.identity)
            self.owners[owner].grants.append(-math.inf)

    @rule(owner=st.integers(0, _OWNERS - 1))
    def hear(self, owner: int) -> None:
        """The process that tunes hears the grants that are on their way."""
        found = self.owners[owner]
        while found.grants:
            found.fence.grant(found.grants.pop(0))

    @rule(owner=st.integers(0, _OWNERS - 1), seconds=st.sampled_from([4.0, 9.0, 16.0]))
    def take_over(self, owner: int, seconds: float) -> None:
        """Look at the Lease until it may be stale, and try to take it."""
        self.renew(owner)
        self.wait(seconds)
        self.renew(owner)
        self.hear(owner)

    @rule(owner=st.integers(0, _OWNERS - 1), is_informed=st.booleans())
    def begin(self, owner: int, *, is_informed: bool) -> None:
        """Begin the rounds that do not run, mostly of what was to be tuned some time ago."""
        found = self.owners[owner]
        if is_informed or not found.targets:
            found.targets = {key: self._target(key) for key in _SERVICES}
        for key, target in found.targets.items():
            if key not in found.rounds or found.rounds[key].done():
                self._end(found, key)
                found.rounds[key] = self.runner.create_task(found.loop.tick(target))
        self._run()

    @rule(owner=st.integers(0, _OWNERS - 1), most=st.integers(0, 12), is_informed=st.booleans())
    def work(self, owner: int, most: int, *, is_informed: bool) -> None:
        """Let all go well for a moment, but for what is on its way when the moment ends."""
        self.renew(owner)
        self.hear(owner)
        self.begin(owner, is_informed=is_informed)
        self.flow(most, is_newest_first=True)

    @rule(owner=st.integers(0, _OWNERS - 1))
    def kill(self, owner: int) -> None:
        """End its process; what it sent is still on its way."""
        self.owners[owner].start()
        self._run()

    @rule(seconds=st.sampled_from([1.0, 4.0, 9.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for pod in self.pods:
            pod.engine.expire()

    @precondition(lambda self: self.network)
    @rule(which=st.integers(0, 63), is_answer_lost=st.booleans())
    def deliver(self, which: int, *, is_answer_lost: bool) -> None:
        """Bring a request to whoever has the address now, and mostly the answer back."""
        request = self.network.pop(which % len(self.network))
        try:
            answer = self._answered(request)
        except (PodRefusedError, PodUnreachableError) as refusal:
            self._settle(request, refusal)
        else:
            if is_answer_lost:
                self._settle(request, PodUnreachableError("the answer was lost"))
            else:
                self._settle(request, answer)
        self._run()

    @rule(most=st.integers(1, 12), is_newest_first=st.booleans())
    def flow(self, most: int, *, is_newest_first: bool) -> None:
        """Bring so many requests and their answers; those that are left behind grow old."""
        for _ in range(most):
            if self.network:
                which = len(self.network) - 1 if is_newest_first else 0
                self.deliver(which, is_answer_lost=False)

    @precondition(lambda self: self.network)
    @rule(which=st.integers(0, 63))
    def give_up(self, which: int) -> None:
        """Let the sender wait no longer; the request itself may arrive yet."""
        request = self.network[which % len(self.network)]
        self._settle(request, PodUnreachableError("no answer in time"))
        self._run()

    @rule(which=st.integers(0, len(_PODS) - 1))
    def restart(self, which: int) -> None:
        """Start a pod's engine anew."""
        self.pods[which].restart()

    @rule(which=st.integers(0, len(_PODS) - 1), other=st.integers(0, len(_PODS) - 1))
    def replace(self, which: int, other: int) -> None:
        """Two pods are made anew, and each gets the other's address."""
        places = {id(pod): address for address, pod in self.addresses.items()}
        first, second = self.pods[which], self.pods[other]
        for pod in {id(first): first, id(second): second}.values():
            pod.restart()
        self.addresses[places[id(first)]], self.addresses[places[id(second)]] = second, first

    @rule()
    def declare(self) -> None:
        """Somebody changes both specs."""
        self.version += 1

    @invariant()
    def epochs_only_grow(self) -> None:
        """No engine takes limits of an older epoch, nor two of one."""
        for pod in self.pods:
            epochs = pod.engine.accepted
            assert epochs == sorted(set(epochs))

    @invariant()
    def one_replica_at_most_may_change_limits(self) -> None:
        """However late its grants are."""
        may = [owner for owner in self.owners if _is_open(owner.fence)]
        assert len(may) <= 1
        assert all(owner in may for owner in self.owners if owner.leader.is_leading) or not may

    def teardown(self) -> None:
        """Whatever happened, one owner that is let work brings all pods to what is declared."""
        try:
            while self.network:
                self.deliver(0, is_answer_lost=True)
            self._calm()
        finally:
            for owner in self.owners:
                owner.start()
            self._run()
            self.runner.close()

    def _calm(self) -> None:
        for _ in range(10):
            self.wait(4.0)
            self.renew(0)
            self.hear(0)
            self.begin(0, is_informed=True)
            while self.network:
                self.deliver(0, is_answer_lost=False)
        wanted = f"v{self.version}"
        assert {pod.sidecar.config.config_hash for pod in self.pods} == {wanted}

    def _target(self, key: str) -> ServiceTarget:
        spec = TuningSpec(
            sla=SLA(itl_p99_ms=200.0 + self.version),
            batch_size=Range(1, 8 + self.version),
            config_hash=f"v{self.version}",
        )
        pods = tuple(
            PodTarget(pod.name, f"http://{address}", token=key)
            for address, pod in self.addresses.items()
            if pod.service == key
        )
        return ServiceTarget(key, spec, pods)

    def _answered(self, request: Request) -> Telemetry | LimitsAnswer:
        pod = self.addresses[request.target.admin_url.removeprefix("http://")]
        if pod.service != request.target.token:
            raise TokenRefusedError(pod.name, 401, "another token")
        if request.body is None:
            return pod.telemetry()
        patch = msgspec.convert(dict(request.body), LimitsPatch)
        num_accepted, held = len(pod.engine.accepted), pod.engine.control.epoch
        try:
            body = self._run(pod.control.patch(patch))
        except (AnotherEngine, EpochTooOld) as refusal:
            assert len(pod.engine.accepted) == num_accepted
            raise PodRefusedError(pod.name, 409, type(refusal).__name__) from refusal
        assert patch.epoch >= held
        if len(pod.engine.accepted) > num_accepted:
            self._check_change(request, pod)
        return decode_limits(msgspec.json.encode(body))

    def _check_change(self, request: Request, pod: Pod) -> None:
        """What an engine takes was decided from its own telemetry, and is within its bounds."""
        self.num_taken += 1
        assert request.read_of is pod.engine
        limits = pod.engine.state.requested
        assert 1 <= limits.max_batch_size <= _CAPACITY.max_batch_size
        assert limits.max_batch_size <= limits.token_budget <= _CAPACITY.max_token_budget

    def _settle(self, request: Request, answer: object) -> None:
        if request.answer.done():
            return  # its sender waits no more
        if isinstance(answer, Exception):
            request.answer.set_exception(answer)
            return
        if request.body is None:
            address = request.target.admin_url.removeprefix("http://")
            request.read[request.target.name] = self.addresses[address].engine
        request.answer.set_result(answer)

    def _end(self, owner: Owner, key: str) -> None:
        """Take the result of a round that is over: only the leadership may have cut it short."""
        task = owner.rounds.pop(key, None)
        if task is not None and isinstance(task.exception(), NotLeadingError):
            owner.num_terms_cut += 1
        elif task is not None:
            task.result()

    def _run(self, work: Coroutine[Any, Any, Any] | None = None) -> Any:
        """Let the loop turn until nothing happens by itself."""

        async def turn() -> Any:
            result = await work if work is not None else None
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            return result

        return self.runner.run_until_complete(turn())


def _is_open(fence: Fence) -> bool:
    try:
        fence.check()
    except NotLeadingError:
        return False
    return True


def test_no_pod_is_harmed_whoever_owns_it() -> None:
    """Over random interleavings; more of them by raising max_examples."""
    run_state_machine_as_test(
        OwnersMachine,
        settings=settings(
            max_examples=80,
            stateful_step_count=60,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )

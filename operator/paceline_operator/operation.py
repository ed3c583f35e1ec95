"""The running operator: its parts wired together, its tasks started and stopped."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from kubernetes.aio.client import ApiClient

from paceline_api.labels import Manifest
from paceline_operator.apply import Applier
from paceline_operator.errors import ApiError, ConflictError, NotLeadingError, OperatorError
from paceline_operator.extras import Extras
from paceline_operator.fence import Fence
from paceline_operator.held_up import HeldUpPods
from paceline_operator.index import Index
from paceline_operator.kubernetes_api import KubernetesClient, connect
from paceline_operator.leader import Leader
from paceline_operator.loading import LoadingPods
from paceline_operator.metrics import Metrics
from paceline_operator.news import News
from paceline_operator.observe import Observer, Watched
from paceline_operator.pod_client import AiohttpPodClient
from paceline_operator.reconcile import Outcome, Reconciler
from paceline_operator.render.children import Surroundings
from paceline_operator.report import Reporter
from paceline_operator.rounds import Listener, Rounds
from paceline_operator.settings import OperatorSettings
from paceline_operator.sharding.peers import Peers
from paceline_operator.sharding.shard import Program
from paceline_operator.sharding.shard_leases import ShardLeases
from paceline_operator.sharding.shards import Shards
from paceline_operator.sharding.warm_starts import SharedWarmStart
from paceline_operator.token_key import TokenKey, open_token_key
from paceline_operator.tuning import Tuner, Tuning
from paceline_operator.warm_start_map import ConfigMapStore
from paceline_operator.watch_pace import WatchPace
from paceline_operator.watch_probe import WatchProbe
from paceline_operator.watch_tasks import WatchTasks
from paceline_operator.workqueue import WorkQueue
from paceline_operator.write_permits import WritePermits
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ServiceReport

# Workers that have taken no key for this long hang.
_STUCK_AFTER_S: Final = 600.0

# A key that backs off for this long has failed six times in succession.
_LASTING_CONFLICT_S: Final = 6.0

# When to report a status that was postponed so that other services' children came first.
_TOLD_AFTER_S: Final = 1.0
# Changes of one service within this time, as its children become ready, count as one.
_NEWS_S: Final = 0.1
# How often to look at what no watch reports: a rollout's deadlines, a loading model.
_MOVING_S: Final = 5.0
# Bounds on periodic reconciles and status writes: with many services each comes more rarely.
_RESYNCED_PER_S: Final = 2.0
_TOLD_PER_S: Final = 7.0

# Twelve rounds of the tuner at its usual interval.
_FRESH_S: Final = 60.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Operation:
    """Holds the parts of the running operator; kopf's handlers hand their events to its queue."""

    settings: OperatorSettings
    metrics: Metrics
    queue: WorkQueue = field(default_factory=lambda: WorkQueue(time.monotonic))
    watch_pace: WatchPace = field(init=False)
    """Of kopf's session."""
    leader: Leader | None = field(init=False, default=None)
    tuning: Tuning | None = field(init=False, default=None)
    token_key: TokenKey | None = field(init=False, default=None)
    has_started: bool = field(init=False, default=False)
    start_problem: str = field(init=False, default="")
    """Why the last attempt to start failed; readiness shows it."""
    broken: str = field(init=False, default="")
    """Which of our tasks ended; liveness shows it."""
    ended: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set then: the process ends, and the kubelet starts another."""
    index: Index = field(init=False, default_factory=Index)
    """What kopf's watches have told."""
    watched: Watched | None = field(init=False, default=None)
    probe: WatchProbe | None = field(init=False, default=None)
    news: News = field(init=False, default_factory=lambda: News(_NEWS_S))
    """Services whose targets may have changed; used where the tuner has several shards."""
    peers: Peers | None = field(init=False, default=None)
    """Other replicas, where the tuner has shards to share with them."""
    shard_leases: ShardLeases | None = field(init=False, default=None)
    _wanted: dict[str, tuple[str, int]] = field(init=False, default_factory=dict)
    """The uid and generation of each service that were seen last."""
    _api: ApiClient | None = field(init=False, default=None)
    _pods: AiohttpPodClient | None = field(init=False, default=None)
    _tasks: list[asyncio.Task[None]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Kopf logs in before anything starts."""
        self.watch_pace = WatchPace(self.metrics, time.monotonic)

    @property
    def is_leading(self) -> bool:
        """Whether this replica writes."""
        return self.leader is not None and self.leader.is_leading

    def illness(self) -> str:
        """Say what only a new process can cure; empty where nothing is."""
        if self.broken:
            return self.broken
        # A standby's queue waits for its leader.
        leading_for_s = self.leader.leading_for_s if self.leader else 0.0
        if min(self.queue.oldest_age_s(), leading_for_s) > _STUCK_AFTER_S:
            return "the queue has been stuck for 10 minutes"
        return self.probe.missed() if self.probe else ""

    def service_changed(self, key: str, metadata: Mapping[str, Any]) -> None:
        """Queue a service; a change of its status alone does not shorten its backoff.

        We write the status ourselves: each failure that it told would be followed by another try.
        """
        wanted = metadata["uid"], metadata["generation"]
        if self._wanted.get(key) == wanted and not metadata.get("deletionTimestamp"):
            self.queue.nudge(key)
        else:
            self.queue.add(key, is_urgent=True)
        self._wanted[key] = wanted
        self._note_news(key)

    def owned_changed(self, key: str) -> None:
        """Queue the service of a child or pod that changed or is gone."""
        self.queue.add_after(key, _NEWS_S)
        self._note_news(key)

    def _note_news(self, key: str) -> None:
        if self.settings.tuner_processes > 1:
            self.news.note(key)

    async def start(self) -> None:
        """Connect, wire and start working; raises where the cluster cannot be reached."""
        try:
            await self._start(self.index)
            self.watched = self.index
        except Exception as problem:
            self.start_problem = f"start failed: {problem!r}"
            raise
        self.has_started = True

    async def _start(self, watched: Watched) -> None:
        settings = self.settings
        self._api = self._api or await connect()
        cluster = KubernetesClient(self._api, self.metrics)
        self.token_key = key = await self._prepare(cluster)
        self.leader = leader = self._candidate(cluster, settings.lease_name)
        await leader.try_once()
        owners = self._owners(cluster, leader)
        permits = WritePermits(leader.check, settings.writes_per_second)
        applier = Applier(cluster, key, permits.for_change, time.monotonic)
        reporter = Reporter(
            cluster, self.metrics, permits.for_report, time.monotonic, self._numbers_interval_s
        )
        self._pods = AiohttpPodClient(check_leadership=leader.check)
        shard_leases = ShardLeases(owners, settings.pod_name)
        warm_start = ConfigMapStore(cluster, settings.namespace, shard_leases.check)
        self.tuning = tuning = Tuning(
            watched, applier.token, self.queue.nudge, reporter.numbers_are_due, self.metrics, owners
        )
        tuning.tuner = tuner = self._tuner(tuning, self._pods, warm_start)
        reconciler = Reconciler(
            Observer(watched, tuning.reports, lambda: datetime.now(UTC)),
            applier,
            Extras(cluster, applier, time.monotonic),
            HeldUpPods(cluster, time.monotonic),
            LoadingPods(self._pods, time.monotonic),
            reporter,
            Surroundings(settings.engine_image, settings.sidecar_image, settings.namespace),
        )
        self.probe = probe = WatchProbe(
            cluster, settings.watch_namespaces, watched, time.monotonic, settings.watch_probe_s
        )
        # A replica whose watch has failed would act on stale objects, so it must not lead.
        self._begin(leader.run(lambda: not probe.missed()), "leader")
        self._begin(tuner.run(), "tuner")
        self._begin(tuning.run(), "tuning")
        if settings.tuner_processes > 1:
            self.peers = peers = Peers(leader, owners, key)
            self.shard_leases = shard_leases
            self._share(shard_leases, peers, tuning, probe)
        self._begin(probe.run(), "watch probe")
        self._begin(WatchTasks().run(), "watches")
        self._begin(self._run_workers(reconciler, leader, tuning, probe), "workers")

    def _share(
        self, shard_leases: ShardLeases, peers: Peers, tuning: Tuning, probe: WatchProbe
    ) -> None:
        """Tune some shards, which another replica may reconcile, and have the leader told."""
        tuning.pass_on = peers.tell
        self._begin(
            shard_leases.run(lambda: not probe.missed() and peers.may_own()), "shard leases"
        )
        self._begin(peers.run(), "peers")
        self._begin(self.news.run(tuning.follow_again), "news")

    def _candidate(self, cluster: KubernetesClient, name: str) -> Leader:
        settings = self.settings
        return Leader(
            cluster,
            settings.namespace,
            name,
            settings.pod_name,
            time.monotonic,
            settings.address,
        )

    def _owners(self, cluster: KubernetesClient, leader: Leader) -> tuple[Leader, ...]:
        """Return the owner of each shard: the leader for one shard, else its own Lease's holder."""
        settings = self.settings
        if settings.tuner_processes == 1:
            return (leader,)
        names = (f"{settings.lease_name}-shard-{n}" for n in range(settings.tuner_processes))
        return tuple(self._candidate(cluster, name) for name in names)

    def _tuner(
        self, listener: Listener, pods: AiohttpPodClient, warm_start: ConfigMapStore
    ) -> Tuner:
        """Tune in this process, which is cheapest for few pods, or in several beside it."""
        settings = self.settings
        if settings.tuner_processes == 1:
            loop = TuningLoop(pods, time.time, warm_start)
            return Rounds(loop, listener, Fence(time.monotonic))
        shared, program = SharedWarmStart(warm_start), Program(settings.log_level)
        return Shards(listener, shared, self.metrics, settings.tuner_processes, program)

    async def _prepare(self, cluster: KubernetesClient) -> TokenKey:
        """Fail, to be retried, until the CRD is installed; then open the key of all tokens."""
        settings = self.settings
        for namespace in settings.watch_namespaces or ("",):
            # kopf looks only once at which kinds there are: ours must be there by then.
            await cluster.versions("InferenceService", namespace)
        return await open_token_key(cluster, settings.namespace, settings.lease_name)

    async def stop(self) -> None:
        """Stop working, then give the Leases back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.shard_leases:
            await self.shard_leases.release()
        if self.leader:
            await self.leader.release()
        if self._pods:
            await self._pods.close()
        if self._api:
            await self._api.close()

    def refresh_metrics(self) -> None:
        """Read the gauges; called at each scrape."""
        self.metrics.queue_depth.set(self.queue.depth())
        self.metrics.queue_oldest_age.set(self.queue.oldest_age_s())
        services = [*self.watched.keys()] if self.watched else []
        self.metrics.services.set(len(services))
        self.metrics.stalled.set(sum(map(self._is_stalled, services)))
        untuned = self.tuning.untuned() if self.tuning and self.is_leading else []
        self.metrics.untuned.set(len(untuned))
        self.metrics.is_leader.set(self.is_leading)
        if self.shard_leases is not None:
            for number, lease in enumerate(self.shard_leases.leases):
                self.metrics.shard_owned.labels(str(number)).set(lease.is_leading)
        self.metrics.reports_waiting.set(self.peers.num_waiting if self.peers else 0)
        self.metrics.api_silence.set(self.probe.silent_s() if self.probe else 0.0)
        self.metrics.watch_problem.set(bool(self.probe and self.probe.problem()))
        self.metrics.show_experiments(self.tuning.reports if self.tuning else {})
        self.metrics.of_services.show_reports(self._fresh_reports())
        self.metrics.of_services.show_statuses(self._led(services), datetime.now(UTC))

    def _led(self, keys: Iterable[str]) -> Iterator[Manifest]:
        """Yield the services' manifests if this replica leads; else nothing."""
        if self.watched is not None and self.is_leading:
            yield from filter(None, map(self.watched.service, keys))

    def _fresh_reports(self) -> dict[str, ServiceReport]:
        """Give what was concluded just now: an autoscaler must not follow what was true once."""
        reports = self.tuning.reports if self.tuning and self.is_leading else {}
        oldest = time.time() - _FRESH_S
        return {key: report for key, report in reports.items() if report.at >= oldest}

    def _is_stalled(self, key: str) -> bool:
        raw = (self.watched.service(key) if self.watched else None) or {}
        conditions = raw.get("status", {}).get("conditions") or ()
        return any(
            found.get("type") == "Stalled" and found.get("status") == "True" for found in conditions
        )

    def _begin(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._note_end)
        self._tasks.append(task)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Our tasks run for ever: one that ends by itself took its work with it."""
        if not task.cancelled():
            self.broken = f"{task.get_name()} ended: {task.exception()!r}"
            _log.error("%s", self.broken)
            self.ended.set()

    async def _run_workers(
        self, reconciler: Reconciler, leader: Leader, tuning: Tuning, probe: WatchProbe
    ) -> None:
        """Start after the watch's first list: a child not yet seen would be created again."""
        await probe.until_heard()
        async with asyncio.TaskGroup() as group:
            for number in range(self.settings.workers):
                work = self._work(reconciler, leader, tuning)
                group.create_task(work, name=f"worker {number}")

    async def _work(self, reconciler: Reconciler, leader: Leader, tuning: Tuning) -> None:
        """Take keys for ever; a key that fails comes back later."""
        while True:
            await leader.lead()
            key = await self.queue.get()
            try:
                with self.metrics.reconcile_duration.time():
                    outcome = await reconciler.reconcile(
                        key, may_tell_later=self.queue.has_urgent()
                    )
            except NotLeadingError as late:
                _log.debug("%s: %s", key, late)
                self.queue.failed(key)
            except ConflictError as late:
                self._note_conflict(key, late, self.queue.failed(key))
                tuning.follow(key)  # its pods can be tuned all the same
            except Exception as problem:  # noqa: BLE001 - a bug in one service must not stop the others
                self.metrics.reconciles.labels("error").inc()
                delay_s = self.queue.failed(key, not_before_s=_asked_s(problem))
                is_bug = not isinstance(problem, OperatorError)
                _log.warning("%s: %s; again in %.1f s", key, problem, delay_s, exc_info=is_bug)
                if not is_bug:
                    tuning.follow(key)
            else:
                self._settle(key, outcome, tuning)

    def _note_conflict(self, key: str, conflict: ConflictError, delay_s: float) -> None:
        """Log a single conflict quietly (a late watch), lasting ones loudly (a rival writer)."""
        is_lasting = delay_s >= _LASTING_CONFLICT_S
        self.metrics.reconciles.labels("error" if is_lasting else "conflict").inc()
        level = logging.WARNING if is_lasting else logging.DEBUG
        _log.log(level, "%s: %s; again in %.1f s", key, conflict, delay_s)

    def _settle(self, key: str, outcome: Outcome, tuning: Tuning) -> None:
        """Come back when it is time, and tune what is there, whether or not it could be written."""
        if outcome.service is None:
            self.queue.done(key)
            self.queue.forget(key)
            self._wanted.pop(key, None)
            tuning.forget(key)
            return
        self.metrics.reconciles.labels("refused" if outcome.refusal else "ok").inc()
        if outcome.refusal:
            delay_s = self.queue.failed(key, not_before_s=_asked_s(outcome.refusal))
            _log.warning("%s: %s; again in %.1f s", key, outcome.refusal, delay_s)
        else:
            self.queue.done(key)
            self.queue.add_after(key, self._next_look_s(outcome))
        tuning.follow(key)

    def _next_look_s(self, outcome: Outcome) -> float:
        if not outcome.is_told:
            return _TOLD_AFTER_S
        if outcome.is_moving:
            return min(_MOVING_S, self.settings.resync_s)
        return max(self.settings.resync_s, self._num_services / _RESYNCED_PER_S)

    def _numbers_interval_s(self) -> float:
        return max(self.settings.status_interval_s, self._num_services / _TOLD_PER_S)

    @property
    def _num_services(self) -> int:
        return len(self._wanted)


def _asked_s(problem: Exception) -> float:
    """Return how long the API server asked to be left alone."""
    return problem.retry_after_s if isinstance(problem, ApiError) else 0.0

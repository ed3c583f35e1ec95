"""Jobs: the parts of a run, done in several processes and cached."""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from tune_report import episode
from tune_report.arms.table import named
from tune_report.cache import Cache, Code, key_of
from tune_report.score import EpisodeScore, score
from tune_report.workloads import workload_named

Result_co = TypeVar("Result_co", covariant=True)


class CachedJob(Protocol[Result_co]):
    """A part whose result depends on its fields and on code, and on nothing else."""

    def code(self, code: Code) -> str:
        """Return the digest of the code that it depends on."""
        ...

    def run(self) -> Result_co:
        """Do it."""
        ...


@dataclass(frozen=True, slots=True)
class Play:
    """One episode, judged."""

    workload: str
    arm: str
    seed: int
    unit_rps: float
    trace: Path | None

    def code(self, code: Code) -> str:
        """A fixed arm's result does not change with the tuner's code."""
        if self.arm.startswith(("static ", "default ")):
            return code.engine
        return code.product if named(self.arm).uses_product else code.rules

    def run(self) -> EpisodeScore:
        """Play."""
        workload = workload_named(self.workload, self.trace)
        return score(workload, episode.run(workload, named(self.arm), self.seed, self.unit_rps))


class Bench:
    """Does jobs, a number of them at a time, and asks the cache first."""

    def __init__(self, folder: Path, processes: int) -> None:
        """Remember in `folder`."""
        self._cache = Cache(folder)
        self._code = Code()
        self._processes = processes

    def all(
        self, jobs: Sequence[CachedJob[Result_co]], kind: type[Result_co], title: str
    ) -> list[Result_co]:
        """Do the jobs; results in their order."""
        keys = [key_of(job.code(self._code), job) for job in jobs]
        found = {key: self._cache.get(key) for key in keys}
        missing = {k: j for k, j in zip(keys, jobs, strict=True) if found[k] is None}
        begun = time.perf_counter()
        for key, value in self._done(missing):
            found[key] = value
            self._cache.put(key, value)
        spent = time.perf_counter() - begun
        print(f"{title}: {len(jobs)} results, {len(missing)} computed in {spent:.0f} s", flush=True)
        return [msgspec.convert(found[key], kind, strict=False) for key in keys]

    def _done(self, jobs: dict[str, CachedJob[Result_co]]) -> Iterator[tuple[str, object]]:
        if self._processes == 1:
            for key, job in jobs.items():
                yield key, _built_in(job)
            return
        # Forked: every process runs the code that this one has read, whatever is edited meanwhile.
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(self._processes, mp_context=context) as pool:
            futures = {pool.submit(_built_in, job): key for key, job in jobs.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()


def _built_in(job: CachedJob[object]) -> object:
    """Do one, as plain values."""
    return msgspec.to_builtins(job.run())

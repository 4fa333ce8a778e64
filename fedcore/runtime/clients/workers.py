"""Pools of worker threads, and the dispatch of jobs to them."""

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import attrs

from fedcore.errors import FedcoreError
from fedcore.runtime.clients.blocked import blocked_threads
from fedcore.runtime.stopping import GRACE_S, Stop, Stopped
from fedcore.slow_steps import timed_as_here

Job = TypeVar("Job")


@attrs.define(eq=False)
class _Task:
    """A task of a run. A run is a `dispatch` or a `Workers.call`.

    Args:
        run: identifies the run.
        perform: does the work, and hands over its outcome; must not raise.
        in_users_code: the task now runs user code, which may block, or may start a run and wait for it.
    """

    run: Hashable
    perform: Callable[[], None]
    in_users_code: bool = False


class _Pool:
    """The threads of one device.

    A thread refers to its pool; the pool does not refer to its `Workers`, so that these are closed when they are
    dropped, though threads still run.

    Args:
        each: number of threads that serve the queue; further ones serve one task each, see `_start_threads`.
        name: prefix of the threads' names.
        first: number of the first thread, in its name.
    """

    def __init__(self, each: int, name: str, first: int) -> None:
        self._each = each
        self._name = name
        self._first = first
        self._started = 0  # number of threads that were ever started
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # the collector may close the pool where this thread holds the lock
        self._threads: set[threading.Thread] = set()  # threads that take further tasks
        self._performing: dict[threading.Thread, _Task] = {}
        self._waiting = 0  # number of tasks that no thread performs yet
        self._closed = False

    def submit(self, task: _Task) -> None:
        """Has the next free thread perform a task. Raises FedcoreError if the pool is closed."""
        with self._lock:
            if self._closed:
                raise FedcoreError("the runtime is closed")
            self._waiting += 1
            self._queue.put(task)
            self._start_threads()

    def close(self) -> None:
        """Refuses further tasks, and ends each thread after the tasks that wait."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in range(self._each):
                    self._queue.put(None)

    def join(self, until: float) -> None:
        """Waits for the threads to end, up to a time of `time.monotonic`."""
        for thread in [*self._threads]:  # a thread that starts for the last tasks meanwhile is not waited for
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def abandon(self, run: Hashable) -> list[str]:
        """Abandons and replaces the threads that still perform tasks of a run; returns their names."""
        with self._lock:
            abandoned = [thread for thread, task in self._performing.items() if task.run is run]
            for thread in abandoned:
                blocked_threads.add(thread)
                self._threads.discard(thread)
                del self._performing[thread]
            self._start_threads()
        return [thread.name for thread in abandoned]

    def mark(self, task: _Task, *, in_users_code: bool) -> None:
        """Notes that a task begins or ends to run user code."""
        with self._lock:
            task.in_users_code = in_users_code
            if in_users_code:
                self._start_threads()

    def _start_threads(self) -> None:
        """Starts threads for waiting tasks: at most `each`; if all threads run user code, one more for each further
        run.
        """
        # A new thread may run at once. It waits for the lock before it reads or leaves `_threads` and `_performing`, in
        # which it is noted by then.
        idle = len(self._threads) - sum(thread in self._threads for thread in self._performing)
        while self._waiting > idle and len(self._threads) < self._each:
            self._threads.add(self._start(self._serve))
            idle += 1
            if self._closed:
                self._queue.put(None)
        if self._waiting and idle <= 0 and all(task.in_users_code for task in self._performing.values()):
            served = {task.run for task in self._performing.values()}
            for task in self._take(served):
                self._performing[self._start(self._perform_one, task)] = task

    def _take(self, served: set[Hashable]) -> list[_Task]:
        """Removes from the queue, and returns, a waiting task of each run not in `served`; adds these runs to it."""
        waiting: list[_Task | None] = []
        while True:
            try:
                waiting.append(self._queue.get_nowait())
            except queue.Empty:
                break
        tasks = []
        for task in sorted(waiting, key=lambda task: task is None):  # a None ends a thread, so it comes last
            if task is None or task.run in served:
                self._queue.put(task)
            else:
                served.add(task.run)
                tasks.append(task)
        self._waiting -= len(tasks)
        return tasks

    def _start(self, target: Callable, *args: object) -> threading.Thread:
        """Starts a thread. The first `each` that the pool starts are numbered on from `first`, as `worker_4`.

        Later ones take the place of abandoned threads, or serve a further run while all threads run user code. Their
        names count them behind the number of the first thread, as `worker_4+1`.
        """
        further = self._started - self._each + 1
        name = (
            f"{self._name}_{self._first + self._started}" if further <= 0 else f"{self._name}_{self._first}+{further}"
        )
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._started += 1
        thread.start()
        return thread

    def _serve(self) -> None:
        """Performs tasks of the queue until the pool is closed or this thread is abandoned."""
        thread = threading.current_thread()
        while (task := self._queue.get()) is not None:
            # Until this thread has the lock, its task still counts as waiting, and this thread as idle: the two cancel
            # out in `_start_threads`. `abandon` misses the task, whose graph calls raise `Stopped` then. It comes
            # `GRACE_S` after the stop, so it misses user code that blocks only if this thread has not run for so long.
            with self._lock:
                self._waiting -= 1
                self._performing[thread] = task
            if not self._perform(task):
                return
            del task

    def _perform_one(self, task: _Task) -> None:
        """Performs a task in a thread that was started for its run, see `_start_threads`, and then ends.

        Another such thread may be needed for a task that waits.
        """
        self._perform(task)
        with self._lock:
            self._start_threads()

    def _perform(self, task: _Task) -> bool:
        """Performs a task. Returns whether the thread still belongs to the pool."""
        thread = threading.current_thread()
        _here.pool, _here.task = self, task
        task.perform()
        _here.pool = _here.task = None
        # The task has told its outcome, so its run may end, or submit the next task, before this thread has the lock.
        # It still counts as busy: `submit` may start a thread too many, at most `each` in all, and `abandon` may have
        # replaced this thread, which then ends.
        with self._lock:
            if self._performing.pop(thread, None) is None:
                blocked_threads.discard(thread)
            return thread in self._threads


class _Here(threading.local):
    """The task that the current thread performs, and its pool; None in threads of no pool."""

    pool: _Pool | None = None
    task: _Task | None = None


_here = _Here()


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """Marks the `with` block as user code, if the current thread performs a task.

    User code may block, and may call computations. Such a call never waits for the thread of this task: if all threads
    of a pool run user code, each further run gets a new thread.
    """
    pool, task = _here.pool, _here.task
    if pool is None or task is None:
        yield
        return
    pool.mark(task, in_users_code=True)
    try:
        yield
    finally:
        pool.mark(task, in_users_code=False)


class Workers:
    """Pools of threads, one pool for each device.

    Guarantees:
      - A pool has at most `each` threads, made when first needed. If all of them are in `users_code`, each further run
        that has work gets one more thread.
      - A thread whose task has not ended when its run is stopped is abandoned, and a new thread takes its place.
      - Threads keep no reference to a task that has ended.
      - Threads are daemons: a kernel that does not end does not keep the process alive.
      - `close`, or dropping the last reference, ends idle threads at once, and busy threads after their task.

    Args:
        pools: number of pools.
        each: threads of a pool.
    """

    def __init__(self, pools: int, each: int, name: str = "fedcore-worker") -> None:
        self.each = each
        self.pools = pools
        self._pools = [_Pool(each, name, pool * each) for pool in range(pools)]
        self._close = weakref.finalize(self, _close, self._pools)

    def submit(self, pool: int, task: Callable[[], None], run: Hashable = None) -> None:
        """Runs `task`, which must not raise, on the pool's first free thread.

        Raises:
            FedcoreError: the workers are closed.
        """
        self._pools[pool].submit(_Task(run, timed_as_here(task)))

    def call(self, function: Callable, stop: Stop, pool: int = 0) -> Any:
        """Runs a function on a thread of the pool; returns its result or raises its error.

        Meanwhile the calling thread handles signals, so that Ctrl-C ends the call.
        """
        answer: queue.SimpleQueue = queue.SimpleQueue()
        run, running = object(), 0
        try:
            self.submit(pool, lambda: answer.put(_outcome(function)), run)
            running = 1
            result, error = _next(answer, stop)
        except BaseException:
            stop.cancel()
            _wait(answer, running)  # not for a task that closed workers refused
            self.abandon(run)
            raise
        if error is not None:
            raise error
        return result

    def abandon(self, run: Hashable) -> list[str]:
        """Abandons and replaces the threads that still perform tasks of a run; returns their names."""
        return [name for pool in self._pools for name in pool.abandon(run)]

    def close(self) -> None:
        """Ends the threads, and waits for them up to `GRACE_S`."""
        self._close()
        until = time.monotonic() + GRACE_S
        for pool in self._pools:
            pool.join(until)


def _close(pools: list[_Pool]) -> None:
    for pool in pools:
        pool.close()


def _outcome(function: Callable) -> tuple[Any, BaseException | None]:
    """(result, None) of a call, or (None, the error that it raises)."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


def dispatch(
    jobs: Iterator[Job],
    perform: Callable[[int, Job], None],
    workers: Workers,
    stop: Stop,
    *,
    ahead: int = 0,
    is_open: Callable[[int], bool] = lambda pool: True,
) -> None:
    """Performs all jobs, each on a thread of one of the pools.

    Args:
        perform: (pool number, job) -> None.
        ahead: number of jobs that each pool queues, so that a thread that becomes free need not wait for this thread.
        is_open: pool number -> whether the pool takes jobs now. If no pool is open and no job runs, all take jobs.
    Guarantees:
      - The calling thread takes jobs from the iterator, and only when a pool has a free thread (or room `ahead`).
      - An iterator that has ended is asked again when a job ends, since this job may be put back.
      - Job i goes to pool i modulo the number of pools; if this pool is busy, to the next free pool.
      - If a job fails, the iterator raises, or Ctrl-C comes: no more jobs are taken, running jobs are stopped, and the
        first failure is raised. User code that blocks is abandoned with its thread.
    """
    outcomes: queue.SimpleQueue = queue.SimpleQueue()
    run = object()
    free = [workers.each + ahead] * workers.pools  # for each pool, how many more jobs it takes
    running = started_jobs = 0

    def start(pool: int, job: Job) -> None:
        def task() -> None:
            outcomes.put((pool, _outcome(lambda: perform(pool, job))[1]))

        workers.submit(pool, task, run)

    def free_pool() -> int | None:
        """The number of the pool for the next job; None if all are busy or closed, and a job runs."""
        turn = started_jobs % workers.pools
        in_turn = [*range(turn, workers.pools), *range(turn)]
        first_free = next((pool for pool in in_turn if free[pool] and is_open(pool)), None)
        return in_turn[0] if first_free is None and not running else first_free

    try:
        while True:
            while (pool := free_pool()) is not None and (job := next(jobs, None)) is not None:
                start(pool, job)
                free[pool] -= 1
                started_jobs, running = started_jobs + 1, running + 1
            if not running:
                break
            pool, error = _next(outcomes, stop)
            free[pool], running = free[pool] + 1, running - 1
            if error is not None:
                raise error
    except BaseException:
        stop.cancel()
        _wait(outcomes, running)
        workers.abandon(run)
        raise
    if stop.is_stopped:
        raise Stopped("the call was stopped")


def _next(answers: queue.SimpleQueue, stop: Stop) -> Any:
    """The next answer. Polls, since a signal that arrives just before a wait begins does not interrupt that wait.

    Raises:
        Stopped: another thread stopped the call, and there is no answer.
    """
    while True:
        try:
            return answers.get(timeout=0.2)
        except queue.Empty:
            if stop.is_stopped:
                raise Stopped("the call was stopped") from None


def _wait(outcomes: queue.SimpleQueue, number: int) -> None:
    """Waits up to `GRACE_S` until `number` stopped jobs have ended."""
    until = time.monotonic() + GRACE_S
    for _ in range(number):
        try:
            outcomes.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return

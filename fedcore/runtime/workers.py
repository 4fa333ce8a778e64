"""The threads of a stack, and jobs dealt out to them."""

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import attrs

from fedcore.errors import FedcoreError
from fedcore.runtime.blocked import blocked_threads
from fedcore.runtime.stopping import GRACE_S, Stop, Stopped

Job = TypeVar("Job")


@attrs.define(eq=False)
class _Task:
    """One task of a run.

    Args:
        run: tells the tasks of one run from those of others.
        in_users_code: it reads clients' data now, with code that may block, or may wait for a run of its own.
    """

    run: Hashable
    perform: Callable[[], None]
    in_users_code: bool = False


class _Lane:
    """The threads of one device. They know the lane, and the lane knows nothing of its `Workers`."""

    def __init__(self, each: int, name: str, first: int):
        self._each = each
        self._name = name
        self._first = first
        self._started = 0
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # the collector may close the lane where this thread holds the lock
        self._threads: set[threading.Thread] = set()  # those that go on to the next task
        self._performing: dict[threading.Thread, _Task] = {}
        self._waiting = 0
        self._closed = False

    def submit(self, task: _Task) -> None:
        with self._lock:
            if self._closed:
                raise FedcoreError("the runtime is closed")
            self._waiting += 1
            self._queue.put(task)
            self._find_threads()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in range(self._each):
                    self._queue.put(None)

    def join(self, until: float) -> None:
        for thread in [*self._threads]:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def leave_behind(self, run: Hashable) -> list[str]:
        """Has other threads take the place of those that still perform tasks of a run; gives the names of the old."""
        with self._lock:
            left = [thread for thread, task in self._performing.items() if task.run is run]
            for thread in left:
                blocked_threads.add(thread)
                self._threads.discard(thread)
                del self._performing[thread]
            self._find_threads()
        return [thread.name for thread in left]

    def read(self, task: _Task, reads: bool) -> None:
        """Notes that a task begins or ends to read clients' data."""
        with self._lock:
            task.in_users_code = reads
            if reads:
                self._find_threads()

    def _find_threads(self) -> None:
        """Starts the threads that the waiting tasks need: `each` of them, and where all of those read clients' data,
        one for each further run."""
        idle = len(self._threads) - sum(thread in self._threads for thread in self._performing)
        while self._waiting > idle and len(self._threads) < self._each:
            self._threads.add(self._start(self._serve))
            idle += 1
            if self._closed:
                self._queue.put(None)
        if self._waiting and idle <= 0 and all(task.in_users_code for task in self._performing.values()):
            served = {task.run for task in self._performing.values()}
            for task in self._taken(served):
                self._performing[self._start(self._perform_one, task)] = task

    def _taken(self, served: set) -> list[_Task]:
        """A waiting task of each run that is not served, out of the queue."""
        waiting: list[_Task | None] = []
        while True:
            try:
                waiting.append(self._queue.get_nowait())
            except queue.Empty:
                break
        taken = []
        for task in sorted(waiting, key=lambda task: task is None):  # no task behind an end
            if task is None or task.run in served:
                self._queue.put(task)
            else:
                served.add(task.run)
                taken.append(task)
        self._waiting -= len(taken)
        return taken

    def _start(self, target: Callable, *args) -> threading.Thread:
        further = self._started - self._each + 1
        name = (
            f"{self._name}_{self._first + self._started}" if further <= 0 else f"{self._name}_{self._first}+{further}"
        )
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._started += 1
        thread.start()
        return thread

    def _serve(self) -> None:
        thread = threading.current_thread()
        while (task := self._queue.get()) is not None:
            with self._lock:
                self._waiting -= 1
                self._performing[thread] = task
            if not self._perform(task):
                return
            del task

    def _perform_one(self, task: _Task) -> None:
        self._perform(task)
        with self._lock:
            self._find_threads()

    def _perform(self, task: _Task) -> bool:
        """Performs a task; whether the thread is still one of the lane's."""
        thread = threading.current_thread()
        _here.lane, _here.task = self, task
        task.perform()
        _here.lane = _here.task = None
        with self._lock:
            if self._performing.pop(thread, None) is None:
                blocked_threads.discard(thread)
            return thread in self._threads


class _Here(threading.local):
    """The task that a thread performs."""

    lane: _Lane | None = None
    task: _Task | None = None


_here = _Here()


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """Inside, a task runs Python code of the user's: it may block, and may call computations of its own.

    Those never wait for the worker of this task: where all workers run such code, each further run gets a thread.
    """
    lane, task = _here.lane, _here.task
    if lane is None or task is None:
        yield
        return
    lane.read(task, True)
    try:
        yield
    finally:
        lane.read(task, False)


class Workers:
    """Threads in lanes, one lane a device.

    Guarantees:
      - `each` threads a lane, made when first needed and never more, whatever is submitted; but where all of them are
        in `users_code`, one more for each further run that has work.
      - A thread whose task has not ended when its run was stopped is left behind, and another takes its place.
      - They hold nothing of a task that has ended, and are daemons: a kernel that does not end keeps no process alive.
      - `close`, or dropping the last reference, ends the threads that are idle; the others end after their task.
    """

    def __init__(self, lanes: int, each: int, name: str = "fedcore-worker"):
        self.each = each
        self.lanes = lanes
        self._lanes = [_Lane(each, name, lane * each) for lane in range(lanes)]
        self._close = weakref.finalize(self, _close, self._lanes)

    def submit(self, lane: int, task: Callable[[], None], run: Hashable = None) -> None:
        """Runs `task`, which raises nothing, on the lane's first free thread.

        Raises:
            FedcoreError: the workers are closed.
        """
        self._lanes[lane].submit(_Task(run, task))

    def call(self, function: Callable, stop: Stop, lane: int = 0):
        """What the function returns or raises, on a thread of the lane; this one stays open to signals.

        A Ctrl-C here ends the call.
        """
        answer: queue.SimpleQueue = queue.SimpleQueue()
        run = object()
        try:
            self.submit(lane, lambda: answer.put(_outcome(function)), run)
            result, error = _next(answer, stop)
        except BaseException:
            stop.cancel()
            _wait(answer, 1)
            self.leave_behind(run)
            raise
        if error is not None:
            raise error
        return result

    def leave_behind(self, run: Hashable) -> list[str]:
        """Has other threads take the place of those that still perform tasks of a run; gives the names of the old."""
        return [name for lane in self._lanes for name in lane.leave_behind(run)]

    def close(self) -> None:
        """Ends the threads, and waits for those that are idle or about to be."""
        self._close()
        until = time.monotonic() + GRACE_S
        for lane in self._lanes:
            lane.join(until)


def _close(lanes: list[_Lane]) -> None:
    for lane in lanes:
        lane.close()


def _outcome(function: Callable) -> tuple:
    try:
        return function(), None
    except BaseException as error:
        return None, error


def dispatch(
    jobs: Iterator[Job], perform: Callable[[int, Job], None], workers: Workers, stop: Stop, *, ahead: int = 0
) -> None:
    """Performs all jobs, each on a lane of the workers.

    Args:
        ahead: jobs of each lane that are drawn before a worker is free, so that it need not wait for this thread.
    Guarantees:
      - Jobs are drawn in the calling thread, and only when a worker is free.
      - Job i goes to lane i modulo their number, or if that is busy to the next one that is free.
      - When a job fails, or drawing does, or Ctrl-C comes: no more are drawn, those that run are stopped, and the first
        failure is raised. Code of the user's that blocks is left behind with its thread.
    """
    done: queue.SimpleQueue = queue.SimpleQueue()
    run = object()
    free = [workers.each + ahead] * workers.lanes
    running = drawn = 0

    def start(lane: int, job: Job) -> None:
        def task() -> None:
            done.put((lane, _outcome(lambda: perform(lane, job))[1]))

        workers.submit(lane, task, run)

    try:
        more = True
        while more or running:
            while more and any(free):
                job = next(jobs, None)
                if job is None:
                    more = False
                    break
                lane = next(k % workers.lanes for k in range(drawn, drawn + workers.lanes) if free[k % workers.lanes])
                start(lane, job)
                free[lane] -= 1
                drawn, running = drawn + 1, running + 1
            if not running:
                break
            lane, error = _next(done, stop)
            free[lane], running = free[lane] + 1, running - 1
            if error is not None:
                raise error
    except BaseException:
        stop.cancel()
        _wait(done, running)
        workers.leave_behind(run)
        raise
    if stop.is_stopped:
        raise Stopped("the call was stopped")


def _next(answers: queue.SimpleQueue, stop: Stop):
    """The next answer; a signal that comes just before a wait begins, and does not end it, is seen at the next turn.

    Raises:
        Stopped: another thread stopped the call, and there is no answer.
    """
    while True:
        try:
            return answers.get(timeout=0.2)
        except queue.Empty:
            if stop.is_stopped:
                raise Stopped("the call was stopped") from None


def _wait(done: queue.SimpleQueue, number: int) -> None:
    """For so many that were stopped to end, but not for long."""
    until = time.monotonic() + GRACE_S
    for _ in range(number):
        try:
            done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return

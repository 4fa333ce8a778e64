"""The threads of a stack, and jobs dealt out to them."""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from fedcore.errors import FedcoreError
from fedcore.runtime.stopping import GRACE_S, Stop, Stopped

Job = TypeVar("Job")


class Workers:
    """Threads in lanes, one lane a device.

    Guarantees:
      - `each` threads a lane, made when first needed and never more, whatever is submitted.
      - They hold nothing of a task that has ended, and are daemons: a kernel that does not end keeps no process alive.
      - `close`, or dropping the last reference, ends the threads that are idle; the others end after their task.
    """

    def __init__(self, lanes: int, each: int, name: str = "fedcore-worker"):
        self.each = each
        self.lanes = lanes
        self._name = name
        self._tasks: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in range(lanes)]
        self._threads: list[list[threading.Thread]] = [[] for _ in range(lanes)]
        self._busy = [0] * lanes  # tasks that wait or run
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, _end, self._tasks, each)

    def submit(self, lane: int, task: Callable[[], None]) -> None:
        """Runs `task`, which raises nothing, on the lane's first free thread.

        Raises:
            FedcoreError: the workers are closed.
        """
        with self._lock:
            if not self._close.alive:
                raise FedcoreError("the runtime is closed")
            self._busy[lane] += 1
            threads = self._threads[lane]
            if len(threads) < min(self.each, self._busy[lane]):
                name = f"{self._name}_{lane * self.each + len(threads)}"
                thread = threading.Thread(target=_serve, args=(self._tasks[lane],), name=name, daemon=True)
                threads.append(thread)
                thread.start()
        self._tasks[lane].put((task, weakref.WeakMethod(self._ended), lane))

    def _ended(self, lane: int) -> None:
        with self._lock:
            self._busy[lane] -= 1

    def call(self, function: Callable, stop: Stop, lane: int = 0):
        """What the function returns or raises, on a thread of the lane; this one stays open to signals.

        A Ctrl-C here ends the call.
        """
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self.submit(lane, lambda: answer.put(_outcome(function)))
        try:
            result, error = _next(answer)
        except BaseException:
            stop.cancel()
            _wait(answer, 1)
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Ends the threads, and waits for those that are idle or about to be."""
        self._close()
        until = time.monotonic() + GRACE_S
        for thread in [t for threads in self._threads for t in threads]:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))


def _serve(tasks: queue.SimpleQueue) -> None:
    while (given := tasks.get()) is not None:
        task, ended, lane = given
        task()
        told = ended()
        if told is not None:
            told(lane)
        del task, given, told


def _end(tasks: list[queue.SimpleQueue], each: int) -> None:
    for lane in tasks:
        for _ in range(each):
            lane.put(None)


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
        failure is raised.
    """
    done: queue.SimpleQueue = queue.SimpleQueue()
    free = [workers.each + ahead] * workers.lanes
    running = drawn = 0

    def start(lane: int, job: Job) -> None:
        def task() -> None:
            done.put((lane, _outcome(lambda: perform(lane, job))[1]))

        workers.submit(lane, task)

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
            lane, error = _next(done)
            free[lane], running = free[lane] + 1, running - 1
            if error is not None:
                raise error
    except BaseException:
        stop.cancel()
        _wait(done, running)
        raise
    if stop.is_stopped:
        raise Stopped("the call was stopped")


def _next(answers: queue.SimpleQueue):
    """The next answer; a signal that comes just before a wait begins, and does not end it, is seen at the next turn."""
    while True:
        try:
            return answers.get(timeout=0.5)
        except queue.Empty:
            continue


def _wait(done: queue.SimpleQueue, number: int) -> None:
    """For so many that were stopped to end, but not for long."""
    until = time.monotonic() + GRACE_S
    for _ in range(number):
        try:
            done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return

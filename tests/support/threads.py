"""Threads of a test: they begin together, and what one of them raises is raised by the test."""

import threading
from collections.abc import Callable

import dtr_alloc


def in_threads(*work: Callable[[], object], join: bool = True) -> None:
    """Runs them side by side to their ends, in the scope that is open or, without `join`, beside
    it."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(job: Callable[[], object]) -> None:
        try:
            start.wait()
            if join:
                with dtr_alloc.join_scope():
                    job()
            else:
                job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]

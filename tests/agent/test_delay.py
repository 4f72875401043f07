from __future__ import annotations

import os
import threading

from tracelens.agent.fetch import Meter, delay_file


class Fetcher:
    collate_fn = staticmethod(list)


def test_a_fetch_in_the_training_thread_says_how_long_it_waited_for_a_core() -> None:
    meter = Meter(delay_file())
    fetcher = Fetcher()
    meter.attach(fetcher)
    begun = meter.begin()
    found = meter.end(fetcher, begun, None)
    assert found["run_delay_ms"] is None or found["run_delay_ms"] >= 0.0
    assert found["rss"] is None


def test_one_file_a_thread_and_none_is_left_open() -> None:
    first = delay_file()
    assert delay_file() is first
    before = len(os.listdir("/proc/self/fd"))
    others: list[object] = []
    thread = threading.Thread(target=lambda: others.append(delay_file()))
    thread.start()
    thread.join()
    assert others[0] is not first
    assert delay_file() is not first  # the other thread's is not ours
    assert len(os.listdir("/proc/self/fd")) == before

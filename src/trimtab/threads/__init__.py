"""Event loops and the threads that wait for them; what a process does when it forks or ends.

    loop_thread.py  a thread that runs an event loop for callers on other threads
    event_loop.py   which kind of loop runs: uvloop, or asyncio's own
    waiting.py      threads that wait for a loop; the locks that they share with it
    unclosed.py     clients that nobody closes: garbage-collected, or open when the process ends
    forks.py        what a forked process does first
    clock.py        the clocks

The blocking clients need it, and so does the cluster that is embedded in a process.

Tests of event_loop: test_loop_thread.py
Tests of unclosed: tests/unit/client/test_unclosed.py
"""

"""What a client uses of its process and machine, whether it is asynchronous or not.

    clock.py     the clocks
    waiting.py   threads that wait for an event loop; the locks that they share with it
    unclosed.py  clients that nobody closes: garbage-collected, or open when the process ends
    forks.py     what a forked process does first
    network.py   certificates and keys for TLS, sockets, random nonces

The rooms above get these as arguments, or import them from here.
"""

# SPDX-License-Identifier: MIT
"""Python threads that start simultaneously."""

import threading


def at_once(count, work):
    """Run work(0), work(1), ... in threads that start together; raise an exception that one of them raised."""
    start, errors = threading.Barrier(count), []

    def run(number):
        try:
            start.wait(30)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

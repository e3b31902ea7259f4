"""Seconds that calls waited for cores which other programs had.

Drafting is planned by what calls cost in relation to each other. A busy machine interrupts them at random, some for longer than
they take themselves. Such seconds count in all that users are told, and are left out where costs are learnt.
"""

from __future__ import annotations

from threading import local


class Interrupted(local):
    """Of each thread, all calls so far; the difference of two readings is that of the calls in between.

    What is as long as these calls themselves, or longer, is not believed.
    """

    seconds: float = 0.0


interrupted = Interrupted()
"""What finds out that its call was interrupted adds to it, on the thread that called."""

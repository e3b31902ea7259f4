import threading

from augury.interruption import interrupted


def test_each_thread_has_its_own_interruptions(monkeypatch):
    monkeypatch.setattr(interrupted, "seconds", 0.25)
    seen = []

    def other():
        before = interrupted.seconds
        interrupted.seconds += 2.0
        seen.append((before, interrupted.seconds))

    interrupted.seconds += 0.5
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [(0.0, 2.0)]
    assert interrupted.seconds == 0.75

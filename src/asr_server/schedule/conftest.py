"""A batch without a model, for the tests of the engine thread."""

import threading

from asr_server.core.errors import EngineFailed, ModelUnavailable
from asr_server.schedule.model import RowDelta, RowDone, RowFailed

WAIT_S = 10


class Scripted:
    """A batch whose rows take as many steps as their item says; a text is a fault: of the item ("bad"), of the row
    ("fail"), of the step ("explode"), or of the engine ("die"). `answer`: of each row."""

    loaded = False

    def __init__(self, rows=4, answer="done"):
        self.rows, self.size, self.answer = {}, rows, answer
        self.unloads = self.broken_loads = 0
        self.gate = threading.Event()  # no step is made before it is set
        self.gate.set()
        self.admitted, self.begin_s = [], []

    @property
    def free_slots(self):
        return self.size - len(self.rows)

    urgent_slots = free_slots

    def load(self):
        if self.broken_loads:
            self.broken_loads -= 1
            raise ModelUnavailable("no weights")
        self.loaded = True

    def unload(self):
        self.unloads += 1
        self.loaded = False

    def admit(self, key, item, urgent=False):
        assert self.loaded
        assert len(self.rows) < self.size, "admitted without a free slot"
        if item == "bad":
            raise ValueError("bad item")
        self.admitted.append(item)
        self.rows[key] = item

    def step(self, begin_s=None):
        self.begin_s.append(begin_s)
        self.gate.wait(WAIT_S)
        if "die" in self.rows.values():
            raise EngineFailed("an illegal memory access was encountered")
        if "explode" in self.rows.values():
            raise RuntimeError("the whole step failed")
        for key, left in list(self.rows.items()):
            if left == "fail":
                del self.rows[key]
                yield RowFailed(key, RuntimeError("row failed"))
            elif left <= 0:
                del self.rows[key]
                yield RowDone(key, self.answer)
            else:
                self.rows[key] = left - 1
                yield RowDelta(key, left)

    def drop(self, key):
        self.rows.pop(key, None)

"""What no file may make run: every call of it is noted. The mutators write its names into files."""

notes = []
armed = [False]         # whether `exercise.Watch` listens


def note(what):
    notes.append(what)


def touch(*args, **kwargs):
    """Note that it was called."""
    note("fuzz.canary.touch was called")


class Touched:
    """Notes that it was made, given a state, or asked anything."""

    def __new__(cls, *args, **kwargs):
        note("fuzz.canary.Touched was made")
        return super().__new__(cls)

    def __setstate__(self, state):
        note("fuzz.canary.Touched got a state")

    def __reduce__(self):
        note("fuzz.canary.Touched was asked how to pickle it")
        return touch, ()

    def method(self):
        note("a method of fuzz.canary.Touched was called")


def touched():
    """Note that it was called, under another name."""
    note("fuzz.canary.touched was called")

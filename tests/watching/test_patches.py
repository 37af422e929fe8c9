"""Attributes that are replaced and put back: by identity, in any order of ending, beside replacements by others."""

import threading

import pytest

from amp_lab.watching.recording import patches as room
from amp_lab.watching.recording.patches import Patches, _Replacement, defining, with_subclasses


def make():
    class Base:
        def call(self):
            return ["call"]

        @staticmethod
        def static(x):
            return [x]

        @classmethod
        def of_class(cls):
            return [cls.__name__]

    class Derived(Base):
        pass

    return Base, Derived


def saying(word):
    def around(call, *args, **kwargs):
        return [word, *call(*args, **kwargs)]

    return around


def test_it_stands_around_the_call_and_is_taken_out():
    base, derived = make()
    before = vars(base)["call"]
    patches = Patches()
    patches.put_around(base, "call", saying("a"))
    assert derived().call() == ["a", "call"]
    assert vars(base)["call"].__name__ == "call"
    patches.undo()
    assert vars(base)["call"] is before
    assert derived().call() == ["call"]


def test_an_inherited_attribute_leaves_no_copy():
    base, derived = make()
    patches = Patches()
    patches.put_around(derived, "call", saying("a"))
    assert derived().call() == ["a", "call"]
    assert base().call() == ["call"]
    patches.undo()
    assert "call" not in vars(derived)


@pytest.mark.parametrize(("name", "args", "result"), [("static", (3,), 3), ("of_class", (), "Derived")])
def test_static_and_class_methods_stay_such(name, args, result):
    base, derived = make()
    before = vars(base)[name]
    patches = Patches()
    patches.put_around(base, name, saying("a"))
    assert getattr(derived, name)(*args) == ["a", result]
    assert type(vars(base)[name]) is type(before)
    patches.undo()
    assert vars(base)[name] is before


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_may_end_in_any_order(first_out):
    base, _ = make()
    before = vars(base)["call"]
    both = [Patches(), Patches()]
    for patches, word in zip(both, "ab", strict=True):
        patches.put_around(base, "call", saying(word))
    assert base().call() == ["b", "a", "call"]
    both[first_out].undo()
    assert base().call() == ["ba"[first_out], "call"]
    both[1 - first_out].undo()
    assert vars(base)["call"] is before


def test_what_somebody_else_has_put_there_stays():
    base, _ = make()
    patches = Patches()
    patches.put_around(base, "call", saying("a"))
    ours = base.call

    def theirs(self):
        return ["theirs", *ours(self)]

    base.call = theirs
    patches.undo()
    assert vars(base)["call"] is theirs
    assert base().call() == ["theirs", "call"]  # what is left of ours says nothing


def test_a_second_watch_goes_on_top_of_what_somebody_else_has_put_there():
    base, _ = make()
    first, second = Patches(), Patches()
    first.put_around(base, "call", saying("a"))
    ours = base.call

    def theirs(self):
        return ["theirs", *ours(self)]

    base.call = theirs
    second.put_around(base, "call", saying("b"))
    assert base().call() == ["b", "theirs", "a", "call"]
    first.undo()
    assert base().call() == ["b", "theirs", "call"]
    second.undo()
    assert vars(base)["call"] is theirs


def test_undone_in_another_thread():
    base, _ = make()
    before = vars(base)["call"]
    patches = Patches()
    patches.put_around(base, "call", saying("a"))
    thread = threading.Thread(target=patches.undo)
    thread.start()
    thread.join()
    assert vars(base)["call"] is before


def test_what_cannot_be_replaced_is_an_error_and_nothing_stays():
    with pytest.raises((TypeError, AttributeError)):
        Patches().put_around(list, "append", saying("a"))
    patches = Patches()
    with pytest.raises((TypeError, AttributeError)):  # and again: the first try has left nothing behind
        patches.put_around(list, "append", saying("a"))


def test_where_a_method_stands():
    base, derived = make()
    assert defining(derived, "call") == [base]
    assert with_subclasses(base) == [base, derived]


def test_a_class_that_refuses_to_be_restored_does_not_stop_the_others():
    class Once(type):
        refuses = False

        def __setattr__(cls, name, value):
            if Once.refuses:
                raise ZeroDivisionError("no")
            super().__setattr__(name, value)

    class Strange(metaclass=Once):
        def call(self):
            return ["strange"]

    base, _ = make()
    both = vars(base)["call"], vars(Strange)["call"]
    patches = Patches()
    patches.put_around(base, "call", saying("a"))
    patches.put_around(Strange, "call", saying("a"))
    Once.refuses = True
    assert patches.undo() == []
    assert (vars(base)["call"], vars(Strange)["call"]) == both


def test_what_cannot_be_restored_is_told_and_the_others_are(monkeypatch):
    base, derived = make()
    before = vars(base)["call"]
    patches = Patches()
    patches.put_around(base, "call", saying("a"))
    patches.put_around(derived, "static", saying("a"))
    real = _Replacement.take_out

    def take_out(self):
        if self.name == "static":
            raise ZeroDivisionError("no")
        real(self)

    monkeypatch.setattr(_Replacement, "take_out", take_out)
    ((name, error),) = patches.undo()
    assert name == "Derived.static"
    assert isinstance(error, ZeroDivisionError)
    assert vars(base)["call"] is before
    assert derived.static(3) == [3]


def test_a_lock_that_was_left_locked_stops_nobody(monkeypatch):
    """As it would be after Ctrl-C in the moment in which it was to be given back."""
    monkeypatch.setattr(room, "_PATIENCE", 0.05)
    made = Patches()

    class Owner:
        def call(self):
            return 1

    taken = threading.Thread(target=room._lock.acquire)
    taken.start()
    taken.join()
    made.put_around(Owner, "call", lambda call, *args: 1 + call(*args))
    assert Owner().call() == 2
    assert made.undo() == []
    assert Owner().call() == 1

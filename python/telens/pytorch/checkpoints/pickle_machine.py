"""Interprets untrusted pickles without calling the functions that they name.

``pickle.Unpickler`` imports classes, calls them, and sets attributes of the results. A hostile
pickle can make it run or grow without end, or change a class of this process. This interpreter
executes the opcodes itself. The caller maps each name in a pickle to a function created for this
load. Opcodes, bytes and the sizes of numbers, keys and names are bounded, which also bounds the
time. Time itself is not measured: the ranks of a job must agree about which state loads.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

__all__ = ["PickleMachine", "UnreadablePickle", "Work"]

# An _extra_state of Transformer Engine has about 300 opcodes and 20 KB, one of a GroupedLinear with
# 256 GEMMs and a history of 1,024 rows 6 MB.
_MOST_OPCODES = 100_000
_MOST_BYTES = 64 << 20
_MOST_NAMES = 100
# Hashing an integer and comparing equal texts take time in proportion to their length, at each use
# as a key. torch.save's magic number has 77 bits, the longest name in a state 40 characters.
_MOST_BITS = 80
_MOST_CHARACTERS = 1000


class UnreadablePickle(Exception):
    """Raised for a pickle that the reader rejects."""


class _Mark:
    """The stack's marker."""


_MARK = _Mark()

# Opcodes whose argument is the value.
_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BYTEARRAY8"),
    )
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


class Work:
    """The number of opcodes that one load may still execute, over all nested pickles.

    Arguments of calls and attributes, which one opcode passes on, count like opcodes.
    """

    def __init__(self) -> None:
        self._left = _MOST_OPCODES

    def spend(self, opcodes: int) -> None:
        """Raises UnreadablePickle if fewer are left."""
        if self._left < opcodes:
            raise UnreadablePickle(f"more than {_MOST_OPCODES} instructions")
        self._left -= opcodes


class PickleMachine:
    """Executes a pickle.

    ``find``: called with the module and the name of each GLOBAL; returns the function that REDUCE
    and NEWOBJ call with the arguments as a list. It raises UnreadablePickle for a name that is not
    accepted.
    ``build``: called with an object and its state by BUILD.
    ``persistent``: called with the value of a persistent id. None if ids are not accepted.
    ``work``: shared by the machines of a load. None for a load of a single pickle.
    """

    def __init__(
        self,
        find: Callable[[str, str], Callable[[list[Any]], Any]],
        build: Callable[[Any, Any], None],
        persistent: Callable[[Any], Any] | None = None,
        work: Work | None = None,
    ) -> None:
        self._find, self._build, self._persistent = find, build, persistent
        self._work = work or Work()
        self.consumed = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._names: dict[tuple[str, str], _Function] = {}

    def load(self, data: bytes) -> Any:
        """Returns the pickle's value. Raises UnreadablePickle.

        Sets ``consumed`` to the length of the pickle; other bytes may follow it.
        """
        if len(data) > _MOST_BYTES:
            raise UnreadablePickle(f"{len(data)} bytes; expected at most {_MOST_BYTES}")
        try:
            for opcode, argument, place in pickletools.genops(data):
                self._work.spend(1)
                if opcode.name == "STOP":
                    self.consumed = place + 1
                    return self._pop()
                self._execute(opcode.name, argument)
        except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise UnreadablePickle(f"a broken pickle ({type(error).__name__})") from error
        raise UnreadablePickle("a pickle without an end")

    def _execute(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            if type(argument) is int and argument.bit_length() > _MOST_BITS:
                raise UnreadablePickle(f"an integer of more than {_MOST_BITS} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._pop_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._top()
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._top()
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif not (self._execute_container(name) or self._execute_call(name, argument)):
            raise UnreadablePickle(f"the instruction {name}")

    def _execute_container(self, name: str) -> bool:
        stack = self._stack
        if name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "LIST":
            stack.append(self._pop_mark())
        elif name == "TUPLE":
            stack.append(tuple(self._pop_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = [self._pop() for _ in range(count)]
            stack.append(tuple(reversed(items)))
        elif name == "DICT":
            stack.append(_set_items({}, self._pop_mark()))
        elif name == "APPEND":
            value = self._pop()
            _of_type(self._top(), list).append(value)
        elif name == "APPENDS":
            values = self._pop_mark()
            _of_type(self._top(), list).extend(values)
        elif name == "SETITEM":
            value, key = self._pop(), self._pop()
            _set_items(_of_type(self._top(), dict), [key, value])
        elif name == "SETITEMS":
            items = self._pop_mark()
            _set_items(_of_type(self._top(), dict), items)
        else:
            return False
        return True

    def _execute_call(self, name: str, argument: Any) -> bool:
        stack = self._stack
        if name == "GLOBAL":
            module, _, word = argument.partition(" ")
            stack.append(self._function(module, word))
        elif name == "STACK_GLOBAL":
            word, module = self._pop(), self._pop()
            stack.append(self._function(_of_type(module, str), _of_type(word, str)))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = _of_type(self._pop(), tuple), self._pop()
            self._work.spend(len(arguments))
            stack.append(_of_type(function, _Function).call(list(arguments)))
        elif name == "BUILD":
            state = self._pop()
            for values in state if isinstance(state, tuple) else (state,):
                self._work.spend(len(values) if isinstance(values, dict) else 1)
            self._build(self._top(), state)
        elif name == "BINPERSID" and self._persistent is not None:
            stack.append(self._persistent(self._pop()))
        else:
            return False
        return True

    def _function(self, module: str, name: str) -> _Function:
        if len(module) + len(name) > _MOST_CHARACTERS:
            raise UnreadablePickle(f"a name of more than {_MOST_CHARACTERS} characters")
        known = self._names.get((module, name))
        if known is None:
            if len(self._names) >= _MOST_NAMES:
                raise UnreadablePickle(f"more than {_MOST_NAMES} names")
            known = self._names[module, name] = _Function(self._find(module, name))
        return known

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise UnreadablePickle("a broken pickle (a mark as a value)")
        return self._stack[-1]

    def _pop(self) -> Any:
        value = self._top()
        del self._stack[-1]
        return value

    def _pop_mark(self) -> list[Any]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                values = self._stack[place + 1 :]
                del self._stack[place:]
                return values
        raise UnreadablePickle("a broken pickle (no mark)")


class _Function:
    """The function for a name in a pickle. An object of this load, without attributes that outlive
    it."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[list[Any]], Any]) -> None:
        self.call = call


def _of_type(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise UnreadablePickle(f"a {type(value).__name__} in the place of a {kind.__name__}")
    return value


def _set_items(target: dict, items: list[Any]) -> dict:
    """Rejects tuples as keys: hashing nested tuples takes unbounded time."""
    if len(items) % 2:
        raise UnreadablePickle("a broken pickle (a key without a value)")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) not in (str, int, float, bool, bytes, type(None)):
            raise UnreadablePickle(f"a {type(key).__name__} as the key of a dictionary")
        if isinstance(key, str | bytes) and len(key) > _MOST_CHARACTERS:
            raise UnreadablePickle(f"a key of more than {_MOST_CHARACTERS} characters")
        target[key] = value
    return target

"""Of every operation: the types foretell the tensors, and the inverse undoes it, both ways."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from blockaudit.migrate import ops
from blockaudit.records.migration import State
from blockaudit.records.operations import Operation, Pad, Split, Stack, Transpose
from tests.migrate.ops.states import after, same, types
from tests.migrate.ops.strategies import INVERTIBLE, LOSSY

ALL = {**INVERTIBLE, **LOSSY}
COUNT = settings(max_examples=40, deadline=None)


def test_no_operation_is_left_out() -> None:
    assert {name.split()[0] for name in ALL} == {str(kind.__struct_config__.tag) for kind in ops.TABLE}


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
@COUNT
def test_types_foretell_the_tensors(name: str, data: st.DataObject) -> None:
    op, state = data.draw(ALL[name]())
    after(state, op)


@pytest.mark.parametrize("name", INVERTIBLE)
@given(data=st.data())
@COUNT
def test_the_inverse_undoes_it(name: str, data: st.DataObject) -> None:
    op, state = data.draw(INVERTIBLE[name]())
    back = _inverse([op], state)
    assert same(after(after(state, op), *back), state)


@pytest.mark.parametrize("name", INVERTIBLE)
@given(data=st.data())
@COUNT
def test_the_inverse_of_the_inverse_does_it_again(name: str, data: st.DataObject) -> None:
    op, state = data.draw(INVERTIBLE[name]())
    done = after(state, op)
    back = _inverse([op], state)
    again = ops.inverse(back, ops.types_after(back, types(done)))
    if name in ("pad", "cast") and types(done) != types(state):
        assert again is back[0]  # it cuts or rounds, which here loses nothing, and elsewhere would
    else:
        assert isinstance(again, list)
        assert same(after(state, *again), done)


# Why some have no inverse in their own words: the length before, the dtype before, and how many parts there were.
_WORDLESS = {"pad", "cast", "replicated", "concat ranks"}


@pytest.mark.parametrize("name", INVERTIBLE)
@given(data=st.data())
@COUNT
def test_its_own_words_undo_it(name: str, data: st.DataObject) -> None:
    """What a map is turned round by, before there is a tensor to look at."""
    op, state = data.draw(INVERTIBLE[name]())
    back = ops.handler(op).backwards(op)
    if back is None:
        assert name in _WORDLESS
        return
    if isinstance(back, Split) and back.count is None and back.sizes is None and back.layout is None:
        parts = {t.shape[back.dim] for t in state[0].values}
        if len(parts) > 1:
            return  # a split without sizes is one into equal parts
        back = replace(back, count=len(state[0].values))  # as many as `to` names
    assert same(after(after(state, op), back), state)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_chain_is_undone_from_its_end(data: st.DataObject) -> None:
    """An operation, then others that take any tensors."""
    op, state = data.draw(st.sampled_from(sorted(INVERTIBLE)).flatmap(lambda name: INVERTIBLE[name]()))
    chain = [op, *_more(data.draw(st.permutations(["pad", "stack", "rows"])), state, op)]
    back = _inverse(chain, state)
    assert same(ops.apply(back, after(state, *chain)), state)


def _more(kinds: list[str], state: State[torch.Tensor], first: Operation) -> list[Operation]:
    found: list[Operation] = []
    for kind in kinds:
        foretold = ops.types_after([first, *found], types(state))[-1]
        alike = len({t for r in foretold for t in r.values}) == 1
        if kind == "pad" and alike and foretold[0].values[0].shape:
            found.append(Pad(size=foretold[0].values[0].shape[0] + 1, value=3.0))
        elif kind == "stack" and alike and not foretold[0].at:
            found.append(Stack(dim=0))
        elif kind == "rows" and all(len(t.shape) > 1 for r in foretold for t in r.values):
            found.append(Transpose())
    return found


@pytest.mark.parametrize("name", LOSSY)
@given(data=st.data())
@COUNT
def test_what_loses_something_has_no_inverse(name: str, data: st.DataObject) -> None:
    op, state = data.draw(LOSSY[name]())
    found = ops.inverse([op], ops.types_after([op], types(state)))
    if name == "slice" and types(after(state, op)) == types(state):
        assert same(after(state, *_inverse([op], state)), state)  # it cuts nothing off
    else:
        assert found is op


def _inverse(chain: list[Operation], state: State[torch.Tensor]) -> list[Operation]:
    found = ops.inverse(chain, ops.types_after(chain, types(state)))
    assert isinstance(found, list), f"{ops.name(found)} says that it has no inverse"
    return found

"""One rank of a simulation: it does one token after the other, and waits where its collectives are not done."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from amp_lab.scaling.rule import shown
from amp_lab.train.arguments import kind_of
from amp_lab.train.simulating import tokens
from amp_lab.train.simulating.calls import Call, Calls
from amp_lab.train.simulating.events import Event
from amp_lab.train.simulating.programs import ProgramError, Running, next_token
from amp_lab.train.simulating.replicas import Replica, not_finite

MOST_TOKENS = 20_000  # of one rank: a program that goes on longer does not end
_Waiting = Generator[Sequence[Call], None, Any]


class Rank:
    """A rank that follows its program; `go` takes it to where it has to wait, or to its end."""

    def __init__(
        self, number: int, program: Running, replica: Replica, calls: Calls, buckets: Sequence[float]
    ) -> None:
        self.number, self.replica, self.calls, self.buckets = number, replica, calls, buckets
        self.now = 0.0  # in milliseconds
        self.step = 0
        self.events: list[Event] = []
        self.scales = [replica.scale]
        self.skipped: list[bool] = []
        self._micro_batch = 0
        self._sync = True  # model.require_backward_grad_sync
        self._forwards = 0  # how many losses there are to go backward from
        self._prepared = False  # whether the next backward sends its gradients
        self._waits_for: Sequence[Call] = ()
        self._doing = self._follow(program)

    def go(self) -> None:
        """Go on if what the rank waits for has happened."""
        if all(call.end is not None for call in self._waits_for):
            self._waits_for = next(self._doing, ())  # after its end there is nothing to wait for

    def _follow(self, program: Running) -> _Waiting:
        given = None
        for _ in range(MOST_TOKENS):
            try:
                token = next_token(program, given)
            except StopIteration:
                return
            try:
                given = yield from self._do(token)
            except ProgramError as error:
                raise ProgramError(f"rank {self.number}, step {self.step}: {error}") from None
        raise ProgramError(
            f"rank {self.number}: its program has not ended after {MOST_TOKENS:,} tokens: let its loop end"
        )

    def _do(self, token: tokens.Token) -> _Waiting:
        match token:
            case tokens.NoSync():
                yield from self._no_sync(token)
            case tokens.Forward():
                self._work("forward", token.ms)
                self._forwards += 1
                self._prepared = self._prepared or self._sync
                return token.loss
            case tokens.Backward():
                yield from self._backward(token)
            case tokens.AllReduce():
                return (yield from self._talk("all-reduce", token.what, token.value))
            case tokens.Broadcast():
                if token.source >= len(self.calls.made):
                    raise ProgramError(f"{token}: there is no such rank; ranks are counted from 0")
                return (yield from self._talk("broadcast", token.what, token.value, token.source))
            case tokens.Barrier():
                yield from self._talk("barrier", "", 0.0)
            case tokens.Token():
                return self._alone(token)
            case _:
                raise ProgramError(
                    f"{kind_of(token)} is no token: yield Forward(), Backward() and so on, made with ()"
                )

    def _no_sync(self, block: tokens.NoSync) -> _Waiting:
        before, self._sync = self._sync, False
        for token in block.tokens:
            yield from self._do(token)
        self._sync = before

    def _alone(self, token: Any) -> Any:
        """Do what needs no other rank."""
        replica, ms = self.replica, getattr(token, "ms", 0.0)
        match token:
            case tokens.SetGradient():
                if token.bucket >= len(self.buckets):
                    raise ProgramError(f"{token}: the buckets are 0 to {len(self.buckets) - 1}")
                replica.gradients[token.bucket] = token.value
            case tokens.Unscale():
                self._work("unscale", ms)
                return replica.unscale()
            case tokens.Clip():
                self._work("clip", ms)
                return replica.clip(token.max_norm)
            case tokens.Step():
                moved = replica.step()
                self._work("step" if moved else "skip", ms)
                self._next_step(skipped=not moved)
                return moved
            case tokens.Skip():
                self._work("skip", ms)
                replica.drop()
                self._next_step(skipped=True)
            case tokens.Update():
                self.scales.append(replica.update())
                changed = self.scales[-1] != self.scales[-2]
                self._work("update", ms, f"scale {shown(replica.scale)}" if changed else "", self.step - 1)
                return replica.scale
            case _:
                self._work(type(token).__name__.lower(), ms)
        return None

    def _backward(self, token: tokens.Backward) -> _Waiting:
        if not self._forwards:
            raise ProgramError("Backward comes before Forward: run the model first")
        # As in DDP, a forward outside no_sync says so to the next backward, whosever loss that goes back from.
        sync, begin = self._prepared, self.now
        self._forwards -= 1
        self._prepared = False
        self.replica.backward(token.gradients)
        self._work("backward", token.ms, not_finite(self.replica.gradients))
        if sync:
            # Every bucket takes a share of the time according to its size, and is sent as soon as it is full.
            whole, full, sent = sum(self.buckets), 0.0, []
            for bucket, mb in enumerate(self.buckets):
                full += mb
                joined = begin + token.ms * (full / whole)
                sent.append(self.calls.join(self._bucket(bucket, mb, joined)))
            yield from self._wait(sent)
            self.replica.gradients = [call.result for call in sent]
        self._micro_batch += 1

    def _bucket(self, bucket: int, mb: float, joined: float) -> Call:
        what = f"bucket {bucket} of step {self.step}"
        if self._micro_batch:
            what += f", micro-batch {self._micro_batch}"
        value, size = self.replica.gradients[bucket], self.calls.wire.bytes(mb)
        assert value is not None
        return Call(
            self.number, self.step, "all-reduce", what, size, value, joined, average=True, label=str(bucket)
        )

    def _talk(self, kind: str, what: str, value: float, source: int | None = None) -> _Waiting:
        size = 0 if kind == "barrier" else 4  # one FP32 number
        call = self.calls.join(Call(self.number, self.step, kind, what, size, value, self.now, source=source))
        yield from self._wait([call])
        return call.result

    def _wait(self, calls: Sequence[Call]) -> _Waiting:
        yield calls
        end = max(call.end for call in calls if call.end is not None)
        if end > self.now:
            self._work("wait", end - self.now)

    def _work(self, kind: str, ms: float, what: str = "", step: int | None = None) -> None:
        step = self.step if step is None else max(step, 0)
        self.events.append(Event(self.number, kind, what, self.now, self.now + ms, step))
        self.now += ms

    def _next_step(self, *, skipped: bool) -> None:
        self.skipped.append(skipped)
        self.step += 1
        self._micro_batch = 0
        self._forwards = 0  # what was prepared stays so: DDP does not hear of it

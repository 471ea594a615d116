"""When a lane is suspected of holding up its neighbours, and when it is trusted again. Pure: the time is handed in.

A lane is suspect when its request is silent, or when it gets nothing but errors while others get through: requests are
shared with the neighbours, and one partition that is not answered leaves them all without an answer. Where nobody is
answered it may be the brokers, the network or the machine, so a request is given three times as long. But then its
lanes move, too: partitions that are well may share a request with one that is not on every broker there is, and nobody
gets through until they are sent apart. Silence is neither an answer nor a byte that moves: a slow line moves no lane.
"""

SILENCE = 1.0  # seconds; a healthy broker answers in milliseconds, a leader moves in a few hundred
SILENCE_OF_ALL = 3.0  # seconds without an answer to anybody: then it may be anything, a pause of the broker for one
CROWDED = 4.0  # seconds for a suspect's request while others wait for a connection: each gets its turn
CROWDED_TURNS = 4  # silences; behind them that is twice as long each time, too: a line may hide its slowness
STEADY = 60.0  # seconds in the healthy session after which an old suspicion is forgotten
FIRST_STAY = 1.0  # seconds that a lane has to be well which came back too early; twice as long each time
LONGEST_STAY = 60.0  # seconds


def patience(silences: int, *, others_answered: bool, longest: float, crowded: bool = False) -> float:
    """Seconds that a request may be silent; ``silences``: how often its batches were given up before.

    Twice as long each time: a cluster that needs five seconds for everything is slow, and must get through.
    ``crowded``: others wait for its connection.
    """
    first = SILENCE if others_answered else SILENCE_OF_ALL
    turn = CROWDED * 2.0 ** min(max(0, silences - CROWDED_TURNS), 10) if crowded else longest
    return min(longest, turn, first * 2.0 ** min(silences, 10))


class Suspicion:
    """What is held against one lane."""

    __slots__ = ("_returned", "_since", "_stay", "_through", "_well", "suspect", "why")

    def __init__(self) -> None:
        """Hold nothing against it yet."""
        self.suspect = False
        self.why = ""  # the error that made it one, for the log
        self._since: float | None = None  # when the batch at hand failed first
        self._through = 0  # batches of others that had got through then
        self._stay = 0.0  # seconds that it has to be well before it is trusted
        self._well = 0.0  # since when it is
        self._returned: float | None = None  # when it was trusted again

    def failed(self, now: float, through: int, *, silent: bool) -> bool:
        """One more attempt failed; True when this makes the lane a suspect.

        ``through``: how many batches of all lanes have got through so far; ``silent``: the request was silent for as
        long as `patience` allows. An error that was answered suspects a lane only after a second of them in which
        others got through.
        """
        if self._since is None:
            self._since, self._through = now, through
        if self.suspect:
            self._well = now
            return False
        stuck = now - self._since >= SILENCE and through > self._through
        if not (silent or stuck):
            return False
        self.suspect = True
        again = self._returned is not None and now - self._returned < STEADY
        self._stay = min(LONGEST_STAY, max(FIRST_STAY, self._stay * 2)) if again else 0.0
        self._well = now
        return True

    def acknowledged(self, now: float, began: float) -> bool:
        """A batch that was handed over at ``began`` got through; True when the lane is no suspect any more.

        At once, the first time. One that came back and was suspected again within a minute has to be well for a while:
        each time that it fails among the others costs them a second.
        """
        self._since = None
        if not self.suspect:
            return False
        if now - began >= SILENCE:
            self._well = now
        if now - self._well < self._stay:
            return False
        self.suspect = False
        self._returned = now
        return True

    def rested(self, now: float) -> bool:
        """As `acknowledged`, where nothing is sent any more: it got through last, and was well for as long since."""
        if not self.suspect or self._since is not None or now - self._well < self._stay:
            return False
        self.suspect = False
        self._returned = now
        return True

    def forgotten(self, now: float) -> bool:
        """Nothing is held against it any more."""
        if self.suspect or self._since is not None:
            return False
        return self._returned is None or now - self._returned >= STEADY

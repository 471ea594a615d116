"""Since when nobody gets an answer."""

from aiorecover.delivery.silence import QUIET, Silence


def test_silence_lasts_from_the_first_attempt_on_while_something_is_in_flight() -> None:
    silence = Silence()
    assert silence.lasts(10.0) == 0.0
    silence.began(10.0)
    silence.began(12.0)
    assert silence.lasts(15.0) == 5.0
    silence.ended(15.0)
    assert silence.lasts(16.0) == 6.0
    silence.ended(16.0)
    assert silence.lasts(17.0) == 0.0


def test_an_answer_ends_it_and_what_is_still_in_flight_waits_from_then_on() -> None:
    silence = Silence()
    silence.began(10.0)
    silence.began(10.0)
    silence.ended(13.0)
    silence.broken(13.0)
    assert silence.lasts(14.0) == 1.0
    silence.ended(15.0)
    silence.broken(15.0)
    silence.began(16.0)
    assert silence.lasts(17.0) == 1.0


def test_attempts_that_follow_each_other_are_one_silence_and_a_pause_in_between_begins_another() -> None:
    silence = Silence()
    silence.began(10.0)
    silence.ended(11.0)
    silence.began(11.0 + QUIET)
    assert silence.lasts(14.0) == 4.0
    silence.ended(14.0)
    silence.began(15.0 + QUIET)
    assert silence.lasts(16.0 + QUIET) == 1.0


def test_what_was_answered_with_an_error_is_no_silence() -> None:
    silence = Silence()
    silence.began(10.0)
    silence.began(11.0)
    silence.forget()
    silence.ended(12.0)
    assert silence.lasts(12.0) == 0.0
    silence.began(13.0)
    assert silence.lasts(15.0) == 2.0


def test_on_a_slow_line_silence_begins_when_the_last_byte_has_moved() -> None:
    silence = Silence()
    assert not silence.moves(0.0)
    silence.began(0.0)
    silence.moved(50.0)
    assert silence.moves(51.0)
    assert silence.lasts(53.0) == 3.0
    assert not silence.moves(53.0)

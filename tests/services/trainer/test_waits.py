from __future__ import annotations

from services.trainer.stream.waits import BatchWaits


def test_a_step_after_which_the_next_batch_is_at_hand_kept_the_feed_waiting() -> None:
    waits = BatchWaits()
    waits.given(10.0)
    waits.taken(13.0)
    waits.given(13.0)
    assert (waits.put_s, waits.get_s) == (3.0, 0.0)


def test_a_step_after_which_the_loop_had_to_wait_did_not() -> None:
    waits = BatchWaits()
    waits.given(10.0)
    waits.taken(13.0)
    waits.waited(0.1)
    waits.waited(0.2)
    waits.given(13.3)
    assert waits.put_s == 0.0
    assert abs(waits.get_s - 0.3) < 1e-9


def test_lateness_is_forgotten_with_the_next_batch() -> None:
    waits = BatchWaits()
    waits.waited(5.0)
    waits.given(5.0)
    waits.taken(6.0)
    waits.given(6.0)
    waits.taken(8.0)
    waits.given(8.0)
    assert (waits.put_s, waits.get_s) == (3.0, 5.0)

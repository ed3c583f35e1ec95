"""Who gets the candidate, and that it stays so."""

from paceline_tuner.experiment.arms import candidates

PODS = [f"pod-{number}" for number in range(8)]


def test_a_canary_is_one_pod() -> None:
    """However many there are."""
    assert len(candidates("x", "Canary", PODS, 0.5, ())) == 1
    assert len(candidates("x", "Canary", PODS[:2], 0.9, ())) == 1


def test_the_order_of_pods_does_not_matter() -> None:
    """Two operators that list them differently draw the same."""
    for kind in ("Canary", "AB"):
        assert candidates("x", kind, PODS, 0.5, ()) == candidates("x", kind, PODS[::-1], 0.5, ())


def test_names_draw_different_pods() -> None:
    """No pod is the guinea pig of every experiment."""
    drawn = {candidates(f"experiment-{n}", "Canary", PODS, 0.5, ()) for n in range(30)}

    assert len(drawn) > 4


def test_an_ab_takes_its_share_and_leaves_one() -> None:
    """Each arm keeps a pod, whatever the share."""
    assert len(candidates("x", "AB", PODS, 0.25, ())) == 2
    assert len(candidates("x", "AB", PODS[:2], 0.9, ())) == 1
    assert len(candidates("x", "AB", PODS[:3], 0.1, ())) == 1


def test_a_pod_that_comes_moves_no_other() -> None:
    """What a pod has served under one policy is not mixed with another."""
    before = candidates("x", "AB", PODS[:4], 0.5, ())

    after = candidates("x", "AB", PODS, 0.5, before)

    assert before < after
    assert len(after) == 4


def test_a_canary_that_goes_is_replaced() -> None:
    """The next one is drawn; the others stay where they are."""
    before = candidates("x", "Canary", PODS, 0.5, ())
    left = [pod for pod in PODS if pod not in before]

    after = candidates("x", "Canary", left, 0.5, before)

    assert len(after) == 1
    assert not after & before

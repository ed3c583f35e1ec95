"""What the page on long prompts says beside goodput is read off runs of the product."""

from tune_report.long_findings import DEPTHS, LongRun, chunk_ms
from tune_report.settings import H100_LONG_ITL


def test_a_chunk_costs_more_the_deeper_it_lies() -> None:
    prices = [chunk_ms(H100_LONG_ITL.hardware, before) for before in DEPTHS]

    assert prices == sorted(prices)
    assert prices[-1] > 2 * prices[0]


def test_a_light_load_refuses_nobody_and_a_heavy_one_does() -> None:
    name = "H100 long ITL 60: agents, 90 % cached 1.2"

    light = LongRun(name, 1, 0.5, None).run()
    heavy = LongRun(name, 1, 9.0, None).run()

    assert (light.shed, light.late, light.late_tokens) == (0, 0, 0.0)
    assert heavy.shed > 0
    assert heavy.kv_full > light.kv_full
    assert 1.0 < heavy.spread_long < 1.2

"""Each service of which something was heard is told of, once for a burst."""

import asyncio
from copy import copy

from paceline_operator.news import News


async def test_a_burst_is_told_once_and_what_comes_later_again() -> None:
    """Kopf gives its handlers copies of whoever holds the news: they note in the same."""

    class Holder:
        news = News(0.0)

    holder, told = Holder(), asyncio.Queue[str]()
    running = asyncio.create_task(holder.news.run(told.put_nowait))
    for key in ("ns/a", "ns/b", "ns/a"):
        copy(holder).news.note(key)

    assert [await asyncio.wait_for(told.get(), 30) for _ in range(2)] == ["ns/a", "ns/b"]
    copy(holder).news.note("ns/a")
    assert await asyncio.wait_for(told.get(), 30) == "ns/a"
    assert told.empty()
    running.cancel()

"""Clients that ask at a rate which may be changed, and keep how each request ended."""

import threading
import time
from collections.abc import Callable

import httpx


class Clients:
    """Requests at a rate that may be changed, each to the next pod that a Service would choose."""

    def __init__(self, serving: Callable[[], list[str]], model: str) -> None:
        """Ask the pods at the base URLs that `serving` gives, for this model."""
        self.rate_rps = 0.0
        self.codes: list[int] = []
        """Of each request; 0 where there was no answer."""
        self._serving, self._model = serving, model
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, name="clients", daemon=True)
        self._thread.start()

    def are_answered(self, requests: int) -> bool:
        """Whether each of the newest so many requests got an answer."""
        newest = self.codes[-requests:]
        return newest == [200] * requests

    def close(self) -> None:
        """Ask no more, and wait for the answers."""
        self._over.set()
        self._thread.join(60)

    def _send(self) -> None:
        number, next_at = 0, time.monotonic()
        with httpx.Client(timeout=60) as client:
            asking: list[threading.Thread] = []
            while not self._over.is_set():
                next_at += 1 / self.rate_rps if self.rate_rps else 0.2
                self._over.wait(max(0.0, next_at - time.monotonic()))
                urls = self._serving()
                if not self.rate_rps or not urls:
                    continue
                number += 1
                url = urls[number % len(urls)]
                asking = [each for each in asking if each.is_alive()]
                asking.append(threading.Thread(target=self._ask, args=(client, url, number)))
                asking[-1].start()
            for each in asking:
                each.join(60)

    def _ask(self, client: httpx.Client, url: str, number: int) -> None:
        body = {"model": self._model, "prompt": f"Tell me about {number}.", "max_tokens": 16}
        try:
            self.codes.append(client.post(f"{url}/v1/completions", json=body).status_code)
        except httpx.TransportError:
            self.codes.append(0)

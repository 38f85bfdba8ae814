"""A frontend's own process: ``frontend_main LISTENER CHANNEL``, two inherited descriptors."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

from rtlang.runtime.server.channel import Channel, Setup
from rtlang.runtime.server.keys import KeyStore, environment_key
from rtlang.runtime.server.logs import configure_logging
from rtlang.runtime.server.relay import Relay
from rtlang.runtime.server.serve import Frontend, new_loop
from rtlang.runtime.server.threads import in_thread


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the supervisor hears them, and says what to do
        signal.signal(number, signal.SIG_IGN)
    listener, end = (socket.socket(fileno=int(given)) for given in sys.argv[1:3])
    with asyncio.Runner(loop_factory=new_loop()) as runner:
        status = runner.run(_run(listener, end))
    sys.exit(status)


async def _run(listener: socket.socket, end: socket.socket) -> int:
    """0 when every request had its end, else 1."""
    channel = await Channel.open(end)
    setup = await channel.receive()
    if setup is None:
        return 1
    assert isinstance(setup, Setup), setup
    configure_logging(setup.config)
    relay = Relay(channel)
    keys = KeyStore(setup.config, environment_key())
    frontend = Frontend(setup.config, listener, keys=keys, limiter=relay)
    frontend.state.index, frontend.state.metrics_dir = setup.index, setup.metrics_dir
    frontend.state.relay_abort = relay.abort
    frontend.observe()
    # Without a supervisor nobody would ever end this process: no word more.
    listening = asyncio.create_task(relay.listen(frontend.state, lambda: os._exit(1)))
    if setup.is_late:
        engine = await in_thread(relay.load)
        serving = asyncio.create_task(frontend.run(lambda: engine))
    else:
        serving = asyncio.create_task(frontend.run(relay.load))
    draining = asyncio.create_task(relay.draining.wait())
    await asyncio.wait({serving, draining}, return_when=asyncio.FIRST_COMPLETED)
    all_ended = serving.done() or await frontend.shut_down(relay.patience_s, relay.hurry)
    await serving
    await in_thread(frontend.close)
    listening.cancel()
    channel.close()
    return 0 if all_ended and not frontend.has_died else 1


if __name__ == "__main__":
    main()

"""Clients of HTTP/3 on aioquic: ADDRESS. Each downloads on a connection of its own and asks there who serves it; prints what came, as JSON."""

import asyncio
import json
import ssl
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

CLIENTS, LENGTH, RATE = 60, 100_000, 20_000  # bytes, and bytes a second
host, port = sys.argv[1].rsplit(":", 1)


class Client(QuicConnectionProtocol):
    http = None

    async def get(self, path, headers=()):
        stream = self._quic.get_next_available_stream_id()
        answer = self.answers[stream] = {"body": b"", "done": asyncio.get_running_loop().create_future()}
        self.http.send_headers(stream, [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", host.encode()), (b":path", path), *headers], True)
        self.transmit()
        await asyncio.wait_for(answer["done"], 30)
        return answer["headers"][b"x-server"].decode(), answer["body"]

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http, self.answers = H3Connection(self._quic), {}
        for http in self.http.handle_event(event) if self.http else ():
            answer = self.answers.get(getattr(http, "stream_id", None))
            if isinstance(http, HeadersReceived):
                answer["headers"] = dict(http.headers)
            elif isinstance(http, DataReceived):
                answer["body"] += http.data
            if getattr(http, "stream_ended", False) and not answer["done"].done():
                answer["done"].set_result(None)


async def ping(client):
    while True:  # who only receives does not notice that a translator has forgotten it
        await asyncio.sleep(0.3)
        await client.ping()


async def download(said):
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE, server_name="lab")
    try:
        async with connect(host, int(port), configuration=configuration, create_protocol=Client) as client:
            pinging = asyncio.ensure_future(ping(client))
            try:
                server, body = await client.get(b"/slow/%d/blob" % RATE, [(b"range", b"bytes=0-%d" % (LENGTH - 1))])
                again, name = await client.get(b"/name")
            finally:
                pinging.cancel()
            if len(body) != LENGTH or server != again or name.decode().strip() != server:
                raise ValueError(f"{len(body)} bytes of {server}, then {again}")
            said["servers"].append(server)
            said["protocols"].append(client._quic.tls.alpn_negotiated)
    except Exception as error:
        said["failed"] += 1
        print(repr(error), file=sys.stderr)


async def main():
    said = {"servers": [], "failed": 0, "protocols": []}
    await asyncio.gather(*(download(said) for _ in range(CLIENTS)))
    print(json.dumps(said))


asyncio.run(main())

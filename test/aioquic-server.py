"""An HTTP/3 server of a lab, on aioquic: ADDRESS NAME CERTIFICATE [FILE], whose connection ids name it by the agent's FILE."""

import asyncio
import os
import sys
import time

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "quic"))
import ballast_ids

address, name, certificate, *file = sys.argv[1:]


class Server(QuicConnectionProtocol):
    http = None

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
            self.uploads = set()
        if self.http is None:
            return
        for http in self.http.handle_event(event):
            if isinstance(http, HeadersReceived):
                headers = dict(http.headers)
                if headers[b":method"] == b"PUT" and not http.stream_ended:
                    self.uploads.add(http.stream_id)
                else:
                    asyncio.ensure_future(self.answer(http.stream_id, headers))
            elif isinstance(http, DataReceived) and http.stream_ended and http.stream_id in self.uploads:
                self.uploads.discard(http.stream_id)
                self.begin(http.stream_id, 204, 0)
                self.transmit()

    def begin(self, stream, status, length):
        headers = [(b":status", b"%d" % status), (b"x-server", name.encode()), (b"content-length", b"%d" % length)]
        if status == 204:
            headers.pop()
        self.http.send_headers(stream, headers, end_stream=length == 0)

    async def answer(self, stream, headers):
        parts = headers[b":path"].decode().strip("/").split("/")
        left = int(headers[b"range"].decode().removeprefix("bytes=0-")) + 1 if b"range" in headers else 0
        rate = int(parts[1]) if parts[0] == "slow" else 0
        body = (name + "\n").encode() if parts[0] == "name" else None
        self.begin(stream, 200, len(body) if body else left)
        if body:
            self.http.send_data(stream, body, True)
            self.transmit()
            return
        start, sent = time.monotonic(), 0
        while left:
            some = min(left, 8192)
            left -= some
            sent += some
            self.http.send_data(stream, bytes(some), left == 0)
            self.transmit()
            if rate and left:
                await asyncio.sleep(max(0, start + sent / rate - time.monotonic()))


async def main():
    length = 8
    while file:
        try:
            length = ballast_ids.install(file[0]).length
            break
        except FileNotFoundError:  # an agent that starts writes it
            await asyncio.sleep(0.05)
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN, connection_id_length=length)
    configuration.load_cert_chain(certificate + ".crt", certificate + ".key")
    host, port = address.rsplit(":", 1)
    await serve(host.strip("[]"), int(port), configuration=configuration, create_protocol=Server)
    await asyncio.Future()


asyncio.run(main())

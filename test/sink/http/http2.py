"""A receiver of HTTP/2 with h2 of PyPI, whose connections and streams end as the test says.

answer(request) gives a status, a Reply, or one of
    Reset(code)             RST_STREAM instead of an answer
    GoAway(below, close)    GOAWAY that says that streams below this one were the last
    Mute()                  no answer
    Begin(reset)            headers and a part of a body, then nothing, or RST_STREAM
"""
import contextlib
import ssl

from fetched import library
from receiver import Receiver, Reply, Request

NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0x0, 0x2, 0x7, 0x8, 0xb


class Reset:
    def __init__(self, code=CANCEL):
        self.code = code


class GoAway:
    """below: this stream is not among those that are handled; close: end the connection, too."""

    def __init__(self, below=False, close=True, code=NO_ERROR):
        self.below, self.close, self.code = below, close, code


class Mute:
    pass


class Begin:
    def __init__(self, reset=None):
        self.reset = reset


class Receiver2(Receiver):
    """tls: an ssl.SSLContext that offers h2; without it the client has to know that this is HTTP/2.

    streams: how many the client may have open at a time.
    """

    def __init__(self, *args, streams=100, **kwargs):
        self.h2 = library("h2.connection"), library("h2.config"), library("h2.events"), library("h2.exceptions"), library("h2.settings")
        self.streams = streams
        super().__init__(*args, **kwargs)

    async def talk(self, c):
        connection, config, events, exceptions, settings = self.h2

        class Lenient(connection.H2Connection):
            """h2 ends a connection with a stream too many; RFC 9113 lets a server refuse the stream alone."""
            open_inbound_streams = 0
        h = Lenient(config.H2Configuration(client_side=False, header_encoding="utf-8"))
        h.local_settings[settings.SettingCodes.MAX_CONCURRENT_STREAMS] = self.streams
        h.initiate_connection()
        await c.send(h.data_to_send())
        streams = {}
        flights = {}
        try:
            while not c.closing:
                data = await c.reader.read(65536)
                if not data:
                    return
                for e in h.receive_data(data):
                    if isinstance(e, events.RequestReceived):
                        if len(streams) + len(flights) >= self.streams:
                            h.reset_stream(e.stream_id, REFUSED_STREAM)
                        else:
                            streams[e.stream_id] = (e.headers, bytearray())
                    elif isinstance(e, events.DataReceived):
                        if e.stream_id in streams:
                            streams[e.stream_id][1].extend(e.data)
                        h.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
                    elif isinstance(e, events.StreamReset):
                        streams.pop(e.stream_id, None)
                        self.end(flights, e.stream_id)
                    elif isinstance(e, events.StreamEnded) and e.stream_id in streams:
                        headers, body = streams.pop(e.stream_id)
                        pseudo = {k: v for k, v in headers if k.startswith(":")}
                        r = Request(pseudo[":method"], pseudo[":path"], [(k, v) for k, v in headers if k[0] != ":"],
                                    bytes(body), c.number, c.requests)
                        r.version = "2"
                        c.requests += 1
                        flights[e.stream_id] = self.in_flight(r)
                        flights[e.stream_id].__enter__()
                        await self.note(r)
                        await self.say_on(c, h, e.stream_id, r, flights)
                with contextlib.suppress(ssl.SSLError):
                    await c.send(h.data_to_send())
        except exceptions.ProtocolError:
            pass        # frames behind the GOAWAY
        finally:
            for stream in list(flights):
                self.end(flights, stream)

    @staticmethod
    def end(flights, stream):
        if stream in flights:
            flights.pop(stream).__exit__(None, None, None)

    async def say_on(self, c, h, stream, r, flights):
        said = self.answer(r) if callable(self.answer) else self.answer
        if isinstance(said, int):
            said = Reply(said)
        if isinstance(said, Mute):
            return
        if isinstance(said, Begin):
            h.send_headers(stream, [(":status", "200"), ("content-length", "1000")])
            h.send_data(stream, b"x" * 10)
            if said.reset is None:
                return
            h.reset_stream(stream, said.reset)
        elif isinstance(said, Reset):
            h.reset_stream(stream, said.code)
        elif isinstance(said, GoAway):
            h.close_connection(said.code, last_stream_id=stream - 2 if said.below else stream)
            await c.send(h.data_to_send())
            if said.close:
                c.close()
        else:
            headers = [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in said.headers)]
            h.send_headers(stream, [(":status", str(said.status)), ("content-length", str(len(said.body))), *headers])
            h.send_data(stream, said.body, end_stream=True)
        self.end(flights, stream)

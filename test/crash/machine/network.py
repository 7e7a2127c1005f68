"""A network of two hosts, and the faults between them.

The far host is a network namespace at the other end of a veth pair; its packet filter drops
or resets.  The proxy is a peer that is slow, mute or lies.
"""
import collections
import select
import socket
import threading
import time

from server import run

NEAR, FAR = "10.99.0.1", "10.99.0.2"


class Network:
    prefix = ["ip", "netns", "exec", "far"]

    def __init__(self):
        run("ip", "netns", "add", "far")
        run("ip", "link", "add", "near0", "type", "veth", "peer", "name", "far0", "netns", "far")
        run("ip", "addr", "add", f"{NEAR}/30", "dev", "near0")
        run("ip", "link", "set", "near0", "up")
        run(*self.prefix, "ip", "addr", "add", f"{FAR}/30", "dev", "far0")
        run(*self.prefix, "ip", "link", "set", "far0", "up")
        run(*self.prefix, "ip", "link", "set", "lo", "up")
        self.filter("add table inet t",
                    "add chain inet t i { type filter hook input priority 0; }",
                    "add chain inet t o { type filter hook output priority 0; }")

    def filter(self, *rules):
        run(*self.prefix, "nft", "; ".join(rules))

    def drop(self):
        self.filter("add rule inet t i iifname far0 drop", "add rule inet t o oifname far0 drop")

    def drop_answers(self):
        self.filter("add rule inet t o oifname far0 drop")

    def reset(self):
        self.filter("add rule inet t i iifname far0 meta l4proto tcp reject with tcp reset")

    def heal(self):
        self.filter("flush chain inet t i", "flush chain inet t o")


class Proxy:
    """A proxy between the relay and the far host, in one of several moods.

    through   forwards
    slow      forwards 200 bytes at a time, with pauses: some ten events a second
    tarpit    accepts, reads nothing, says nothing
    garbage   answers everything with bytes that mean nothing
    cut       forwards, and closes in the middle of an answer
    """

    def __init__(self, host, port):
        self.behind = (host, port)
        self.mood = "through"
        self.met = collections.Counter()    # mood -> connections that it befell
        self.hung_up = 0                    # so often in the middle of an answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            self.met[self.mood] += 1
            threading.Thread(target=self.serve, args=(client, self.mood), daemon=True).start()

    def serve(self, client, mood):
        try:
            if mood == "tarpit":
                while self.mood == "tarpit":
                    time.sleep(0.1)
            elif mood == "garbage":
                client.recv(4096)
                client.sendall(b"S\xff\x00\xff" * 512)
                client.recv(4096)
            else:
                with socket.create_connection(self.behind, 10) as server:
                    self.forward(client, server, mood)
        except OSError:
            pass
        finally:
            client.close()

    def forward(self, client, server, mood):
        left = 2000
        while self.mood == mood:
            for here in select.select([client, server], [], [], 0.1)[0]:
                data = here.recv(200 if mood == "slow" else 65536)
                if not data:
                    return
                if mood == "slow":
                    time.sleep(0.05)
                if mood == "cut" and here is server:
                    left -= len(data)
                    if left < 0:
                        client.sendall(data[:len(data) // 2])
                        self.hung_up += 1
                        return
                (server if here is client else client).sendall(data)

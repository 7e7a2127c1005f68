"""A scene of address_test.py, in network and mounts of its own: addresses, names and a DNS server are what it wants.

    address_scene.py SCENE

Every address of the scene is one of the loopback interface of this network, so a connection
that the program must not make would succeed, and is seen.
"""
import atexit
import pathlib
import shutil
import socket
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[0] = str(HERE)
sys.path += [str(HERE.parent), str(HERE.parent.parent / "python")]

from receiver import Receiver, Reply  # noqa: E402
from target import Ended, at_once, fate, sink, start  # noqa: E402
from tokenserver import TokenServer, grant  # noqa: E402

# Ranges that are not public, each by addresses of it, with its first and its last.
CLOSED = {
    "0.0.0.0/8": ["0.0.0.0"],
    "127.0.0.0/8": ["127.0.0.1", "127.255.255.254"],
    "10.0.0.0/8": ["10.0.0.1", "10.255.255.254"],
    "172.16.0.0/12": ["172.16.0.1", "172.31.255.254"],
    "192.168.0.0/16": ["192.168.0.1", "192.168.255.254"],
    "169.254.0.0/16": ["169.254.0.1", "169.254.169.254", "169.254.255.254"],
    "100.64.0.0/10": ["100.64.0.1", "100.127.255.254"],
    "198.18.0.0/15": ["198.18.0.1", "198.19.255.254"],
    "240.0.0.0/4": ["240.0.0.1", "254.1.2.3"],
    "::1/128": ["::1"],
    "::/128": ["::"],
    "fc00::/7": ["fc00::1", "fd12:3456::1"],
    "fe80::/10": ["fe80::1%25lo", "fe80::a9fe:a9fe%251"],
}
# The same addresses in others: mapped, compatible, translated by NAT64, 6to4.
INSIDE = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.0.1", "100.64.0.1"]
OPEN = ["9.255.255.255", "11.0.0.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "126.255.255.255", "128.0.0.1",
        "169.253.255.255", "169.255.0.1", "172.15.255.255", "172.32.0.1", "192.167.255.255", "192.169.0.1", "198.17.255.255",
        "198.20.0.1", "223.255.255.254", "2600::1", "2a00::1"]


def numbers(address):
    return socket.inet_aton(address)


def embedded(address):
    a, b, c, d = numbers(address)
    one, two = f"{a:02x}{b:02x}", f"{c:02x}{d:02x}"
    return {"mapped": f"::ffff:{one}:{two}", "compatible": f"::{one}:{two}", "NAT64": f"64:ff9b::{one}:{two}",
            "6to4": f"2002:{one}:{two}::1"}


def texts(address):
    """The ways to write an IPv4 address that inet_aton and browsers know."""
    a, b, c, d = numbers(address)
    whole = int.from_bytes(numbers(address), "big")
    yield from (f"{whole}", f"0x{whole:x}", f"0{whole:o}", f"{a}.{(b << 16) + (c << 8) + d}", f"{a}.{b}.{(c << 8) + d}",
                f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}", f"0x{a:x}.{b}.0{c:o}.{d}",
                f"{a:04}.{b:04}.{c:04}.{d:04}", f"{address}.", f"%3{str(a)[0]}{str(a)[1:]}.{b}.{c}.{d}",
                address.replace(".", "%2e"), address.replace(".", "\u3002"), "".join(chr(0x2460 + int(x) - 1) if x in "123456789" else x
                                                                                     for x in address))


def corpus(port, inside="127.0.0.1"):
    """URLs that lead inside though their text may not look like it."""
    public = "93.184.216.34"
    for host in texts(inside):
        yield f"http://{host}:{port}/x"
    for form in embedded(inside).values():
        yield f"http://[{form}]:{port}/x"
    for text in ("http://{p}:x@{i}:{port}/", "http://{p}@{i}:{port}/", "http://{p}%40{i}:{port}/", "http://{p}#@{i}:{port}/",
                 "http://{p}\\@{i}:{port}/", "http://{p}:80\\@{i}:{port}/", "http://{p}&@{i}:{port}#@{p}/", "http://{i}:{port}#.{p}/",
                 "http://{i}:{port}?@{p}/", "http://{i}:{port}\\.{p}/", "http://a:b@c:d@{i}:{port}/", "http://{p}:80@{i}:{port}/",
                 "http:{i}:{port}/", "http:/{i}:{port}/", "http:///{i}:{port}/", "http:\\\\{i}:{port}/", "HTTP://{i}:{port}/",
                 "//{i}:{port}/", "http:// {i}:{port}/", "\thttp://{i}:{port}/", "http://{i}:{port}\t/", "http://{i}:0{port}/",
                 "http://localhost:{port}/", "http://LOCALHOST:{port}/", "http://localhost.:{port}/", "http://foo.localhost:{port}/",
                 "http://ip6-localhost:{port}/", "http://[::1]:{port}/", "http://[0:0:0:0:0:0:0:1]:{port}/", "http://[::]:{port}/",
                 "http://0:{port}/", "http://0.0.0.0:{port}/", "http://127.1:{port}/", "http://[::ffff:127.0.0.1]:{port}/",
                 "http://[::ffff:0:7f00:1]:{port}/", "http://[::1%25lo]:{port}/", "http://[fe80::1%25lo]:{port}/",
                 "http://[fe80::1%lo]:{port}/"):
        yield text.format(p=public, i=inside, port=port)


class Names(socketserver.BaseRequestHandler):
    """A DNS server: name -> addresses of its answers, one answer after the other; the last one stays."""

    answers = {}
    asked = []
    lock = threading.Lock()

    def handle(self):
        data, sock = self.request
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1:at + 1 + data[at]].decode("latin-1").lower())
            at += data[at] + 1
        name, kind = ".".join(labels), struct.unpack("!H", data[at + 1:at + 3])[0]
        question = data[12:at + 5]
        with self.lock:
            self.asked.append((name, kind))
            known = self.answers.get(name)
            rounds = [n for n, _ in self.asked].count(name)
            family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
            chosen = known(rounds) if callable(known) else known or []
        records = [a for a in chosen if family == (socket.AF_INET6 if ":" in a else socket.AF_INET)]
        out = data[:2] + struct.pack("!HHHHH", 0x8180 if known is not None else 0x8183, 1, len(records), 0, 0) + question
        for a in records:
            packed = socket.inet_pton(family, a)
            out += struct.pack("!HHHIH", 0xc00c, kind, 1, 0, len(packed)) + packed
        sock.sendto(out, self.client_address)


def temporary(prefix):
    """A directory that goes when this process ends."""
    directory = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def prepare():
    """Bring up the interface with all addresses, and be the machine's resolver."""
    def ip(*args):
        subprocess.run(["ip", *args], check=True, stderr=subprocess.DEVNULL)
    ip("link", "set", "lo", "up")
    addresses = {a for group in CLOSED.values() for a in group} | set(OPEN) | set(INSIDE)
    addresses |= {e for a in INSIDE for name, e in embedded(a).items() if name != "mapped"}
    for a in sorted(a.partition("%")[0] for a in addresses):
        if a.startswith(("127.", "0.")) or a in ("::", "::1"):
            continue
        # a broadcast address is none for lo
        try:
            ip("addr", "add", a + ("/64" if a.startswith("fe80") else "/128" if ":" in a else "/32"), "dev", "lo",
               *(["nodad"] if ":" in a else []))
        except subprocess.CalledProcessError:
            print(f"# no {a} on this machine")
    server = socketserver.ThreadingUDPServer(("127.0.0.1", 53), Names)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    directory = temporary("idem-http-names.")
    for path, text in (("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n"), ("nsswitch.conf", "hosts: files dns\n"),
                       ("hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.0.1 in-the-hosts-file.example\n")):
        file = pathlib.Path(directory) / path
        file.write_text(text)
        # resolv.conf may be a link to a file that is not there
        there = pathlib.Path("/etc", path).resolve()
        if there.exists():
            subprocess.run(["mount", "--bind", file, there], check=True)
        else:
            sys.exit(f"this machine has no {there}")


class Everywhere(Receiver):
    """One that listens on all addresses of both families."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, host="::", **kwargs)


def dual_stack():
    """socket.create_server listens on IPv6 alone, unless it is told otherwise."""
    create = socket.create_server
    socket.create_server = lambda address, **kw: create(address, **kw, **({"dualstack_ipv6": True} if address[0] == "::" else {}))


def host(address):
    return f"[{address}]" if ":" in address else address


def closed(there, url, **options):
    """The program does not connect, and says why, without what an event could be told by."""
    before = there.connections
    got = fate(url=url, allowed_addresses=options.pop("allowed_addresses", None), connect_timeout=3000, **options)
    assert got.outcome in ("rejected", "outage", "retry"), (url, got)
    assert there.connections == before, f"{url}: the program connected: {got}"
    return got


def delivered(there, url, **options):
    got = fate(url=url, **options)
    return got.outcome == "acked"


def scene_ranges():
    with Everywhere() as there:
        for net, addresses in CLOSED.items():
            for a in addresses:
                url = f"http://{host(a)}:{there.port}/"
                got = closed(there, url)
                assert "address" in got.message, (url, got)
                allowed = net if a not in ("0.0.0.0", "::") else "0.0.0.0/8, ::/128"
                assert delivered(there, url, allowed_addresses=allowed), f"{url} is not reached with {allowed}"
        # what is listed opens that range alone
        closed(there, f"http://10.0.0.1:{there.port}/", allowed_addresses="127.0.0.0/8, ::1, 192.168.0.0/16")
        closed(there, f"http://127.0.0.2:{there.port}/", allowed_addresses="127.0.0.1")
        assert delivered(there, f"http://127.0.0.1:{there.port}/", allowed_addresses="127.0.0.1")


def scene_public():
    with Everywhere() as there:
        for a in OPEN:
            assert delivered(there, f"http://{host(a)}:{there.port}/", allowed_addresses=None), a
            assert delivered(there, f"http://{host(a)}:{there.port}/", allowed_addresses="127.0.0.1"), a


def scene_embedded():
    """An address within another one is judged by both."""
    with Everywhere() as there:
        for a in INSIDE:
            for name, form in embedded(a).items():
                url = f"http://[{form}]:{there.port}/"
                got = closed(there, url)
                assert "address" in got.message, (name, url, got)
        for name, form in embedded("127.0.0.1").items():
            if name == "mapped":
                assert delivered(there, f"http://[{form}]:{there.port}/", allowed_addresses="127.0.0.0/8"), form


def scene_corpus():
    with Everywhere() as there:
        urls = [*corpus(there.port), *corpus(there.port, "169.254.169.254")]
        at_once(lambda url: closed(there, url), [[u] for u in urls], 4)
        lead = [u for u in urls if delivered(there, u, allowed_addresses="0.0.0.0/0, ::/0")]
        print(f"# {len(urls)} URLs, {len(lead)} of which lead inside")
        assert len(lead) > 30, lead


def scene_names():
    with Everywhere() as there:
        Names.answers.update({
            "inside.example": ["127.0.0.1"], "metadata.example": ["169.254.169.254"], "six.example": ["::1"],
            "both.example": ["127.0.0.1", "::1"], "public.example": ["93.184.216.34"], "mapped.example": ["::ffff:127.0.0.1"],
            "nat64.example": ["64:ff9b::7f00:1"], "zero.example": ["0.0.0.0"]})
        for name in ("inside", "metadata", "six", "both", "mapped", "nat64", "zero", "in-the-hosts-file"):
            closed(there, f"http://{name}.example:{there.port}/")
        assert delivered(there, f"http://public.example:{there.port}/", allowed_addresses=None)
        assert delivered(there, f"http://inside.example:{there.port}/", allowed_addresses="127.0.0.1")
        # one address of a name is inside: the program may use the other one, and nothing else
        Names.answers["mixed.example"] = ["127.0.0.1", "93.184.216.34"]
        before = len(there.reached)
        for _ in range(4):
            fate(url=f"http://mixed.example:{there.port}/", allowed_addresses=None)
        assert not any("127.0.0.1" in a for a in there.reached[before:]), there.reached[before:]


def scene_rebinding():
    """A name that is public when it is looked at, and inside when it is connected to."""
    for rounds in (1, 2, 3, 4, 5):
        name = f"rebinds{rounds}.example"
        Names.answers[name] = lambda n, rounds=rounds: ["93.184.216.34"] if n <= rounds else ["127.0.0.1"]
        with Everywhere() as there:
            w = start({"url": f"http://{name}:{there.port}/", "allowed_addresses": None}, hello=False)
            try:
                w.hello_or_ended()
                for _ in range(4):
                    w.one()
                    # so that it asks for the name, and connects, again
                    for task in list(there.tasks):
                        there.loop.call_soon_threadsafe(task.cancel)
            except Ended:
                pass
            finally:
                w.kill()
            assert there.reached or rounds < 2, "no answer was public"
            assert not any("127.0.0.1" in a for a in there.reached), (rounds, there.reached)


def scene_redirects():
    """Nothing that the receiver says leads anywhere else."""
    with Everywhere() as inside:
        def answer(r):
            return Reply(int(r.parts[0]), b"", f"Location: http://127.0.0.1:{inside.port}/admin", "Refresh: 0; url=http://127.0.0.1/",
                         f'Alt-Svc: http/1.1="127.0.0.1:{inside.port}"; ma=999')
        with Everywhere(answer) as there:
            for status in (200, 201, 300, 301, 302, 303, 307, 308, 305):
                for _ in range(2):
                    fate(url=f"http://93.184.216.34:{there.port}/{status}", allowed_addresses=None)
            assert not inside.connections and len(there.requests) == 18, len(there.requests)


def scene_proxies():
    """The environment names no proxy: neither for the events nor for tokens."""
    with Everywhere() as proxy, Everywhere() as there, TokenServer(lambda r: grant("tok")) as tokens:
        url = f"http://127.0.0.1:{proxy.port}"
        env = {name: url for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")}
        home = temporary("idem-http-home.")
        pathlib.Path(home, ".netrc").write_text("machine 127.0.0.1 login admin password s3cret\n")
        pathlib.Path(home, ".curlrc").write_text(f"proxy = {url}\n")
        there.url = f"http://127.0.0.1:{there.port}"
        with sink(there, env={**env, "HOME": home, "CURL_HOME": home}) as w:
            assert w.one().outcome == "acked"
        with sink(there, env=env, auth="oauth2", token_url=tokens.url, user="u", password="p") as w:
            assert w.one().outcome == "acked"
        assert not proxy.connections and all(r.header("authorization") in (None, "Bearer tok") for r in there.requests)


def scene_token_url():
    """The token server's address is checked as the receiver's is."""
    with Everywhere() as there, Everywhere() as inside:
        options = {"auth": "oauth2", "user": "u", "password": "p"}
        for a in ("127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "93.184.216.34@127.0.0.1", "2130706433"):
            got = fate(url=f"http://93.184.216.34:{there.port}/", allowed_addresses=None, token_url=f"http://{a}:{inside.port}/token",
                       timeout=20, **options)
            assert got.outcome != "acked" and not inside.connections and not there.requests, (a, got)
            got = fate(url=f"http://93.184.216.34:{there.port}/", allowed_addresses=None,
                       token_url=f"https://{a}:{inside.port}/token", **options)
            assert got.outcome != "acked" and not inside.connections and not there.requests, (a, got)


def scene_templates():
    """No event makes the program connect elsewhere."""
    with Everywhere() as there, Everywhere() as inside:
        for key in ("@127.0.0.1", "127.0.0.1", f":x@127.0.0.1:{inside.port}", f"127.0.0.1:{inside.port}/", "\\@127.0.0.1", "?@127.0.0.1"):
            for url in ("/{aggregate_id}", "?{aggregate_id}", "/x?y={aggregate_id}"):
                fate({"key": key}, url=f"http://93.184.216.34:{there.port}{url}", allowed_addresses=None)
        assert not inside.connections and there.requests


if __name__ == "__main__":
    prepare()
    dual_stack()
    globals()["scene_" + sys.argv[1]]()

"""The programs of rdma-core, unmodified: on our library, against themselves on the kernel's drivers."""

import re

from .common import UCMATOSE_PORT, case, finish, ping, ucmatose
from .rxe import persistent
from .rxe_programs import mckey, pingpong, udaddy
from .sides import expect, last
from .stock import unmodified

BOTH = ("client", "server")


def add(name, conversation, *arguments, default=BOTH):
    """Adds a case for each role of ours; DEFAULT: the roles whose cases run by default."""
    link, rest = name.split("/", 1)
    for connector in BOTH:
        chosen = connector in default
        case(f"{link}/rdma-core-{connector}/{rest}", connector, *arguments, default=chosen)(unmodified(conversation))


def server_first(connector, kind, options, case):
    """ucmatose: the passive side sends first, the active side answers, the passive side disconnects."""
    client_side, server_side = case.sides(connector)
    ucmatose(case, client_side, server_side, kind, options)


def rstream(connector, kind, options, case):
    """Sockets over RDMA: latencies and bandwidths, the data checked."""
    client_side, server_side = case.sides(connector)
    # A port that is not its usual one (7471), since over iWARP it is TCP's.
    common = ["-p", case.port, "-T", "v", *options]
    server = case.run(server_side.program("server", ["rstream", "-b", server_side.address(kind), *common]))
    server.wait_listening(case.port)
    client = case.run(client_side.program("client", ["rstream", "-s", server_side.address(kind), *common]))
    for who, output in finish({"client": client, "server": server}).items():
        # Latency and bandwidth; of how many octets, and how fast.
        lines = re.findall(r"^\S+ +64k +20 +2 +\S+ +[\d.]+s +([\d.]+) +[\d.]+$", output, re.M)
        expect(lines and all(float(rate) > 0 for rate in lines), f"{who} measured nothing: {last(output)}")


for link in ("siw", "rxe"):
    add(f"{link}/rping/ipv4/65535-bytes", ping, "4", 65535)
    add(f"{link}/rping/ipv6/64-bytes", ping, "6", 64, default=())
    add(f"{link}/rping/link-local/64-bytes", ping, "local", 64, default=())
    add(f"{link}/ucmatose/ipv4/5-connections", server_first, "4", ["-c", 5, "-C", 10, "-S", 1000])
    add(f"{link}/ucmatose/ipv6/64-KiB-messages", server_first, "6", ["-C", 10, "-S", 65536], default=())
    one = ("client",) if link == "siw" else ("server",)
    add(f"{link}/rstream/ipv4", rstream, "4", ["-S", 65536, "-C", 20, "-I", 2], default=one)
    add(f"{link}/rstream/ipv6", rstream, "6", ["-S", 65536, "-C", 20, "-I", 2], default=())

add("rxe/rping-persistent/ipv4", persistent, "4", default=())
add("rxe/udaddy/ipv4", udaddy, "4", ["-C", 50], default=("server",))
add("rxe/udaddy/ipv6", udaddy, "6", ["-c", 5, "-C", 10, "-S", 1024], default=())
for kind, services in (("4", ("rc", "ud")), ("6", ("uc", "srq"))):
    for service, size in (("rc", 100000), ("uc", 20000), ("ud", 1000), ("srq", 5000)):
        chosen = ("client",) if service in services else ()
        add(f"rxe/ibv_{service}_pingpong/ipv{kind}", pingpong, service, kind, size, default=chosen)

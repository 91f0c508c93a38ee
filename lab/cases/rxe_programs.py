"""RoCEv2, against the kernel's rxe: datagrams, multicast and ping-pong with the stock programs."""

import time

from .common import case, finish
from .sides import Failed, expect, last
from .stock import gid_index, wait_for_tcp

UDADDY_PORT = 7174


def udaddy(connector, kind, options, case):
    """Datagrams to whom the connection manager names (SIDR), answered with as many."""
    client_side, server_side = case.sides(connector)
    address = server_side.address(kind)
    peer = {side: side.example("udaddy_peer") if side.softverbs else "udaddy" for side in (client_side, server_side)}
    listen = ["--server"] if server_side.softverbs else []
    server = case.run(server_side.program("server", [peer[server_side], *listen, "-b", address, *options]))
    server.wait_listening(UDADDY_PORT)
    to = [] if client_side.softverbs else ["-s"]
    client = case.run(client_side.program("client", [peer[client_side], *to, address, *options]))
    for who, output in finish({"client": client, "server": server}).items():
        good = "test complete" in output and "fail" not in output
        expect(good, f"{who} is not content: {last(output)}")


for connector in ("client", "server"):
    for kind in ("4", "6"):
        case(f"rxe/udaddy-{connector}/ipv{kind}", connector, kind, ["-C", 50])(udaddy)
    several = ["-c", 5, "-C", 10, "-S", 1024]
    case(f"rxe/udaddy-{connector}/ipv4/5-queue-pairs", connector, "4", several)(udaddy)


def mckey(sender, kind, case):
    """Datagrams to a multicast group. (Of IPv4: the kernel joins none of IPv6 over RoCEv2.)"""
    group = "239.7.7.7"
    receiver_side, sender_side = (case.guest, case.ours) if sender == "ours" else (case.ours, case.guest)

    def start(name, side, *options):
        command = side.example("mckey_peer") if side.softverbs else "mckey"
        common = ["-b", side.address(kind), "-m", group, "-C", 20, "-S", 1000]
        program = case.run(side.program(name, [command, *common, *options]))
        for _ in range(200):
            if "joined" in program.output():
                return program
            time.sleep(0.1)
        raise Failed(f"{name} did not join: {last(program.output())}")

    receiver = start("receiver", receiver_side)
    sender = start("sender", sender_side, "-s")
    for who, output in finish({"receiver": receiver, "sender": sender}).items():
        expect("data transfers complete" in output, f"{who} is not content: {last(output)}")


for sender in ("ours", "guest"):
    case(f"rxe/mckey-from-{sender}/ipv4", sender, "4")(mckey)


def pingpong(connector, service, kind, size, case):
    """ibv_rc_pingpong and its kin: queue pairs connected by hand."""
    client_side, server_side = case.sides(connector)
    mtu = 4096 if case.guest.lab.link.mtu > 4096 else 1024
    common = ["-p", 18500, "-s", size, "-n", 300]
    common += ["-m", mtu] if service != "ud" else []
    common += ["-q", 8] if service == "srq" else []

    def start(name, side, server):
        if side.softverbs:
            command = [side.example("pingpong_peer"), "-t", service, "-b", side.address(kind)]
            return case.run(side.program(name, command + common + (["-c", server] if server else [])))
        command = [f"ibv_{service}_pingpong", "-g", gid_index(side, kind), *common]
        command += ["-c"] if service == "rc" else []
        return case.run(side.program(name, command + ([server] if server else [])))

    server = start("server", server_side, None)
    if server_side.softverbs:
        server.wait_listening(18500)
    else:
        wait_for_tcp(server_side, server, 18500)
    # The stock servers listen for the exchange of addresses on IPv4 only.
    client = start("client", client_side, server_side.address(kind if server_side.softverbs else "4"))
    for who, output in finish({"client": client, "server": server}).items():
        expect("all well" in output or "iters in" in output, f"{who} is not content: {last(output)}")
        expect("invalid data" not in output, f"{who} got other data: {last(output)}")


for connector, kind in (("client", "4"), ("server", "6")):
    for service, size in (("rc", 100000), ("uc", 20000), ("ud", 1000), ("srq", 5000)):
        case(f"rxe/pingpong-{connector}/{service}/ipv{kind}", connector, service, kind, size)(pingpong)
    case(f"rxe-4096/pingpong-{connector}/rc/ipv{kind}", connector, "rc", kind, 100000)(pingpong)

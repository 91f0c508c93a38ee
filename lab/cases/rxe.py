"""RoCEv2, against the kernel's rxe: connections, and the stock programs of the RDMA CM."""

from .common import add_refusals, case, expect_pings, finish, ping, ping_ends, ucmatose

for connector in ("client", "server"):
    for kind in ("4", "6"):
        for size in (23, 4096, 65535) if kind == "4" else (64, 65535):
            case(f"rxe/ping-{connector}/ipv{kind}/{size}-bytes", connector, kind, size)(ping)
        case(f"rxe-4096/ping-{connector}/ipv{kind}/65535-bytes", connector, kind, 65535)(ping)
    case(f"rxe/ping-{connector}/link-local/64-bytes", connector, "local", 64)(ping)


def persistent(connector, kind, case):
    """A persistent server and four clients, two at a time."""
    client_side, server_side, bind, address = ping_ends(connector, kind, case)
    options = ["-S", 1000, "-v", "-V"]
    server = case.run(server_side.ping_server(bind, case.port, "-P", *options))
    server.wait_listening(case.port)
    for first in ("one", "three"):
        clients = {
            name: case.run(client_side.ping_client(address, case.port, "-C", 50, *options, name=name))
            for name in (first, f"after-{first}")
        }
        for who, output in finish(clients).items():
            expect_pings(output, 1000, who, 50)


for connector in ("client", "server"):
    case(f"rxe/persistent-{connector}/ipv4", connector, "4")(persistent)


def server_first(connector, kind, connections, count, size, case):
    """The passive side sends first, the active side answers, the passive side disconnects."""
    client_side, server_side = case.sides(connector)
    ucmatose(case, client_side, server_side, kind, ["-c", connections, "-C", count, "-S", size])


for connector in ("client", "server"):
    for kind in ("4", "6"):
        case(f"rxe/server-first-{connector}/ipv{kind}/1-connection", connector, kind, 1, 100, 100)(server_first)
    case(f"rxe/server-first-{connector}/ipv4/20-connections", connector, "4", 20, 10, 100)(server_first)
    for link in ("rxe", "rxe-4096"):
        case(f"{link}/server-first-{connector}/ipv4/1-MiB-messages", connector, "4", 1, 10, 1 << 20)(server_first)

add_refusals("rxe")

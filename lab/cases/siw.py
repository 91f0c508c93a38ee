"""iWARP, against the kernel's siw."""

from .common import add_refusals, case, ping, ucmatose
from .sides import Failed, expect

# The smallest and the largest size that rping accepts are 23 and 65535: it wants room for its
# text, and compares with 64 KiB - 1.
SIZES = (23, 64, 4096, 65535)

for connector in ("client", "server"):
    for kind in ("4", "6"):
        for size in SIZES:
            case(f"siw/ping-{connector}/ipv{kind}/{size}-bytes", connector, kind, size)(ping)
    case(f"siw/ping-{connector}/link-local/64-bytes", connector, "local", 64)(ping)


def siw_to_siw(case, client_side, server_side, kind, options):
    """ucmatose from siw to siw, tried again when siw's server was too fast for siw's client.

    Its first message then comes together with the MPA reply, and the client gives up with EPROTO
    or EINVAL.
    """
    for _ in range(5):
        try:
            return ucmatose(case, client_side, server_side, kind, options)
        except Failed as failure:
            last_failure = failure
            case.stop()
    raise Failed(f"no run between siw and siw succeeded; {last_failure}")


def server_first(connector, kind, connections, count, size, case):
    """The passive side sends first, which stock siw never announces: no deadlock, no stall.

    The time is compared with the same run from siw to siw. A grace that every connection or every
    message waited for anew would make a multiple of it.
    """
    options = ["-c", connections, "-C", count, "-S", size]
    client_side, server_side = case.sides(connector)
    run = ucmatose if case.ours.softverbs else siw_to_siw
    seconds = run(case, client_side, server_side, kind, options)
    usual = siw_to_siw(case, case.guest, case.guest, kind, options)
    expect(seconds <= 3 * usual + 2, f"took {seconds:.1f} s where siw to siw took {usual:.1f} s")


for connector in ("client", "server"):
    case(f"siw/server-first-{connector}/ipv4/1-connection", connector, "4", 1, 100, 100)(server_first)
    case(f"siw/server-first-{connector}/ipv6/1-connection", connector, "6", 1, 100, 100)(server_first)
    # More messages for so many connections and siw has no memory left for completion queues.
    case(f"siw/server-first-{connector}/ipv4/20-connections", connector, "4", 20, 10, 100)(server_first)
    case(f"siw/server-first-{connector}/ipv4/64-KiB-messages", connector, "4", 1, 100, 65536)(server_first)

add_refusals("siw")

"""The programs of perftest, unmodified: on our library, against themselves on the kernel's drivers."""

import re

from .common import case, finish
from .sides import expect, last
from .stock import StockProgram, gid_index, unmodified, wait_for_tcp

COUNT = 100


# When its peer closes as soon as it has the last Send, siw may say of that Send, which has arrived, that it
# failed: it looks whether the connection still stands only after it has sent (docs/interop.md).
SIW_CLOSE_RACE = (1, "Bad wc status 2\\n Unable to write (to|from) socket/rdma_cm\\nFailed to close connection")


def option(options, name, default):
    """The value of an option, where it is given."""
    return options[options.index(name) + 1] if name in options else default


def expect_figures(who, program, options, output):
    """The line of figures: as many octets and iterations as asked for, and figures that can be."""
    size = int(option(options, "-s", 8 if "atomic" in program else 65536 if program.endswith("_bw") else 2))
    count = int(option(options, "-n", COUNT)) * int(option(options, "-q", 1))
    lines = re.findall(rf"^ *{size} +(\d+) +([0-9. \t]+)$", output, re.M)
    expect(len(lines) == 1, f"{who} printed {len(lines)} lines of figures: {last(output)}")
    iterations, figures = int(lines[0][0]), [float(figure) for figure in lines[0][1].split()]
    both = 2 if "-b" in options else 1
    expect(iterations in (count, both * count), f"{who} did {iterations} iterations, not {count}")
    if program.endswith("_bw"):
        _, average, rate = figures[:3]
        expect(rate > 0, f"{who} measured no messages: {lines[0]}")
        megabytes = rate * size * 1e6 / (1 << 20)
        expect(abs(average - megabytes) <= 0.01 + 0.02 * megabytes, f"{who}: bandwidth and rate differ: {lines[0]}")
    else:
        least, most, typical, average = figures[:4]
        expect(0 < least <= typical <= most and least <= average <= most, f"{who}: no latencies: {lines[0]}")


def perftest(connector, program, options, case):
    """One run of a program: status 0 and figures at both ends."""
    client_side, server_side = case.sides(connector)
    options = options.split()
    by_cm, kind = "-R" in options, "6" if "--ipv6" in options else "4"
    port = 18000 + case.port % 1000

    def start(name, side, server):
        command = [program, "-F", "-p", port, *options]
        command += ["-n", COUNT] if "-n" not in options else []
        # The connection manager chooses for itself.
        command += ["-x", gid_index(side, kind)] if not by_cm else []
        hold = {"SOFTVERBS_LAB_HOLD": side.lab.run_folder / name} if by_cm and server else {}
        return case.run(side.program(name, command + server, hold))

    server = start("server", server_side, [])
    if by_cm:
        server.wait_listening(port)
    else:
        wait_for_tcp(server_side, server, port)
    # perftest 4.5 exchanges addresses over IPv4 only; --ipv6 is about the GID.
    client = start("client", client_side, [server_side.address("4")])
    if by_cm and isinstance(client, StockProgram):
        client.hold_until(lambda: server.wait_listening(port))
    # The passive end of these knows of no request.
    silent = program in ("ib_read_lat", "ib_atomic_lat")
    excuse = SIW_CLOSE_RACE if case.guest.lab.link.driver == "siw" else None
    for who, output in finish({"client": client, "server": server}, excuse).items():
        if excuse and re.search(excuse[1], output):
            case.note(f"siw told {who} that its last message, which arrived, had failed")
        if who == "client" or not silent:
            expect_figures(who, program, options, output)


def add(link, program, options, default=()):
    """Adds a case for each role of ours; DEFAULT: the roles whose cases run by default."""
    name = f"{program} {options}".strip().replace(" ", "_")
    for connector in ("client", "server"):
        chosen = connector in default
        case(f"{link}/perftest-{connector}/{name}", connector, program, options, default=chosen)(unmodified(perftest))


OURS_CLIENT, OURS_SERVER = ("client",), ("server",)

# iWARP: reliable connections that the connection manager makes, which is -R.
add("siw", "ib_write_bw", "-R", OURS_CLIENT)
add("siw", "ib_read_bw", "-R", OURS_SERVER)
add("siw", "ib_send_bw", "-R", OURS_CLIENT)
add("siw", "ib_send_lat", "-R", OURS_CLIENT)
add("siw", "ib_write_lat", "-R", OURS_SERVER)
add("siw", "ib_read_lat", "-R")
add("siw", "ib_send_bw", "-R -e")
add("siw", "ib_send_lat", "-R -e")
add("siw", "ib_read_bw", "-R -q 4 -s 4096")
add("siw", "ib_send_bw", "-R -q 4 -s 4096", OURS_SERVER)
add("siw", "ib_write_bw", "-R -q 4 -s 4096")
add("siw", "ib_write_bw", "-R -b")
add("siw", "ib_write_bw", "-R -s 1048576 -n 10")

# RoCE: connected by hand, and by the connection manager.
add("rxe", "ib_write_bw", "", OURS_CLIENT)
add("rxe", "ib_write_bw", "-R", OURS_SERVER)
add("rxe", "ib_read_bw", "", OURS_SERVER)
add("rxe", "ib_read_bw", "-R", OURS_CLIENT)
add("rxe", "ib_send_bw", "", OURS_CLIENT)
add("rxe", "ib_send_bw", "-R", OURS_SERVER)
add("rxe", "ib_atomic_bw", "", OURS_CLIENT)
add("rxe", "ib_atomic_bw", "-R -A CMP_AND_SWAP")
add("rxe", "ib_atomic_lat", "")
add("rxe", "ib_write_lat", "", OURS_SERVER)
add("rxe", "ib_send_lat", "-R", OURS_CLIENT)
add("rxe", "ib_read_lat", "")
add("rxe", "ib_send_bw", "-e")
add("rxe", "ib_send_lat", "-e")
add("rxe", "ib_write_bw", "-q 4 -s 4096", OURS_SERVER)
add("rxe", "ib_send_bw", "-R -q 4 -s 4096", OURS_CLIENT)
add("rxe", "ib_read_bw", "-q 4 -s 4096")
add("rxe", "ib_write_bw", "-b")
add("rxe", "ib_send_bw", "-b")
add("rxe", "ib_write_bw", "-s 1048576 -n 10")
# Unreliable messages, few enough for the receiver's buffer: a lost one would be waited for.
add("rxe", "ib_write_bw", "-c UC -s 1000")
add("rxe", "ib_write_lat", "-c UC -s 1000")
add("rxe", "ib_send_lat", "-c UC -s 1000", OURS_CLIENT)
add("rxe", "ib_send_bw", "-c UD -s 1000 -n 20 -r 100", OURS_CLIENT)
add("rxe", "ib_send_lat", "-c UD -s 1000", OURS_SERVER)
add("rxe", "ib_send_lat", "-R -c UD -s 1000")
add("rxe", "ib_write_bw", "--ipv6")
add("rxe", "ib_send_lat", "--ipv6 -c UD -s 1000")
add("rxe-4096", "ib_write_bw", "")
add("rxe-4096", "ib_read_bw", "-R")

"""What an MPI program does, checked: messages of all sizes in a ring, reductions, one-sided access. Prints one line."""

import sys

import mpi4py

# Open MPI's one-sided access by way of messages knows one thread only.
mpi4py.rc.threads = False
from mpi4py import MPI  # noqa: E402

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
before, behind = (rank - 1) % size, (rank + 1) % size

for length in (0, 1, 8, 1000, 8192, 65536, 1 << 20, 4 << 20):
    for round in range(5):
        sent, got = bytearray([(rank + round) % 256]) * length, bytearray(length)
        world.Sendrecv(sent, behind, 7, got, before, 7)
        if got != bytearray([(before + round) % 256]) * length:
            sys.exit(f"rank {rank}: {length} octets, round {round}: not what was sent")

if world.allreduce(rank + 1) != size * (size + 1) // 2:
    sys.exit(f"rank {rank}: a wrong sum")

window = MPI.Win.Allocate(16, 8, comm=world)
memory = window.tomemory()
memory[:] = bytes(16)
window.Fence()
window.Put(rank.to_bytes(8, sys.byteorder), behind, 0)
window.Fence()
if int.from_bytes(memory[:8], sys.byteorder) != before:
    sys.exit(f"rank {rank}: a wrong neighbour")
window.Lock_all()
one, old = (1).to_bytes(8, sys.byteorder), bytearray(8)
for _ in range(10):
    window.Fetch_and_op([one, MPI.INT64_T], [old, MPI.INT64_T], 0, 1, MPI.SUM)
window.Unlock_all()
world.Barrier()
if rank == 0:
    count = int.from_bytes(memory[8:], sys.byteorder)
    print(f"{size} ranks, counter {count}")
window.Free()

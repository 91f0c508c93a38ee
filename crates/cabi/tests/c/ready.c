/* Preloaded by tests: makes the file SOFTVERBS_TEST_READY when the program listens, or has joined a
 * multicast group, so that nobody has to guess when its peer may start. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int ready(int result)
{
	const char *path = getenv("SOFTVERBS_TEST_READY");

	if (!result && path)
		close(open(path, O_CREAT | O_WRONLY, 0600));
	return result;
}

int rdma_listen(void *id, int backlog)
{
	int (*real)(void *, int) = (int (*)(void *, int))dlsym(RTLD_NEXT, "rdma_listen");

	return ready(real(id, backlog));
}

int rdma_join_multicast(void *id, void *addr, void *context)
{
	int (*real)(void *, void *, void *) =
		(int (*)(void *, void *, void *))dlsym(RTLD_NEXT, "rdma_join_multicast");

	return ready(real(id, addr, context));
}

int rdma_join_multicast_ex(void *id, void *attr, void *context)
{
	int (*real)(void *, void *, void *) =
		(int (*)(void *, void *, void *))dlsym(RTLD_NEXT, "rdma_join_multicast_ex");

	return ready(real(id, attr, context));
}

int rlisten(int socket, int backlog)
{
	int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "rlisten");

	return ready(real(socket, backlog));
}

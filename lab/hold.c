/* Preloaded by cases of lab/interop: holds a client of perftest before its second connection until its
 * server listens again. Between the two the server has no listener, and a client that comes then is
 * refused, tries again with what it has freed, and crashes (perftest 4.5). The file $SOFTVERBS_LAB_HOLD.held
 * says that it is held; $SOFTVERBS_LAB_HOLD.go lets it go. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void hold(const char *name)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s.held", name);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	snprintf(path, sizeof(path), "%s.go", name);
	for (int i = 0; i < 6000 && access(path, F_OK); i++)
		usleep(10000);
}

int rdma_resolve_addr(void *id, void *from, void *to, int timeout)
{
	static int calls;
	int (*real)(void *, void *, void *, int) =
		(int (*)(void *, void *, void *, int))dlsym(RTLD_NEXT, "rdma_resolve_addr");
	const char *name = getenv("SOFTVERBS_LAB_HOLD");

	if (++calls == 2 && name)
		hold(name);
	return real(id, from, to, timeout);
}

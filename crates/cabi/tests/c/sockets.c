/* The r* functions, one by one, with both ends in one thread. */
#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/uio.h>

/* A call that returns -1, and errno says why. */
#define FAILS(what, call, why)                                                                         \
	do {                                                                                           \
		errno = 0;                                                                             \
		long long got = (long long)(call);                                                     \
		int errno_ = errno;                                                                    \
		EQ(what " returns", got, -1);                                                          \
		EQ(what " sets errno", errno_, why);                                                   \
	} while (0)

static struct sockaddr_in address = { .sin_family = AF_INET };
static socklen_t address_len = sizeof address;

static int wait_for(int socket, short events)
{
	struct pollfd fd = { .fd = socket, .events = events };

	MUST("rpoll", rpoll(&fd, 1, 20000) == 1);
	return fd.revents;
}

static void connected(int listener, int *client, int *server)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof peer;
	int error = -1;

	*client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	MUST("rsocket", *client >= 0);
	FAILS("rconnect", rconnect(*client, (struct sockaddr *)&address, address_len), EINPROGRESS);
	EQ("a listener is readable", wait_for(listener, POLLIN), POLLIN);
	*server = raccept(listener, (struct sockaddr *)&peer, &len);
	MUST("raccept", *server >= 0);
	EQ("length of the peer's address", len, sizeof(struct sockaddr_in));
	EQ("family of the peer's address", peer.ss_family, AF_INET);
	EQ("a connected socket is writable", wait_for(*client, POLLOUT), POLLOUT);
	len = sizeof error;
	EQ("SO_ERROR", rgetsockopt(*client, SOL_SOCKET, SO_ERROR, &error, &len), 0);
	EQ("SO_ERROR is", error, 0);
	EQ("F_GETFL", rfcntl(*client, F_GETFL), O_RDWR | O_NONBLOCK);
	EQ("F_SETFL", rfcntl(*client, F_SETFL, 0), 0);
	EQ("F_GETFL", rfcntl(*client, F_GETFL), O_RDWR);
}

static void nothing_is_there(int listener)
{
	char octet;
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int number = 0;
	socklen_t len = sizeof number;

	FAILS("rsocket of a family", rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	FAILS("rsocket of a type", rsocket(AF_INET, SOCK_SEQPACKET, 0), EOPNOTSUPP);
	FAILS("rsocket of a protocol", rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EOPNOTSUPP);
	FAILS("rbind", rbind(-1, (struct sockaddr *)&address, address_len), EBADF);
	FAILS("rlisten", rlisten(0, 1), EBADF);
	FAILS("raccept", raccept(0, NULL, NULL), EBADF);
	FAILS("rconnect", rconnect(0, (struct sockaddr *)&address, address_len), EBADF);
	FAILS("rshutdown", rshutdown(0, SHUT_RD), EBADF);
	FAILS("rclose", rclose(0), EBADF);
	FAILS("rsend", rsend(0, &octet, 1, 0), EBADF);
	FAILS("rsendto", rsendto(0, &octet, 1, 0, NULL, 0), EBADF);
	FAILS("rsendmsg", rsendmsg(0, &msg, 0), EBADF);
	FAILS("rwrite", rwrite(0, &octet, 1), EBADF);
	FAILS("rwritev", rwritev(0, &iov, 1), EBADF);
	FAILS("rrecv", rrecv(0, &octet, 1, 0), EBADF);
	FAILS("rrecvfrom", rrecvfrom(0, &octet, 1, 0, NULL, NULL), EBADF);
	FAILS("rrecvmsg", rrecvmsg(0, &msg, 0), EBADF);
	FAILS("rread", rread(0, &octet, 1), EBADF);
	FAILS("rreadv", rreadv(0, &iov, 1), EBADF);
	FAILS("rgetpeername", rgetpeername(0, NULL, NULL), EBADF);
	FAILS("rgetsockname", rgetsockname(0, NULL, NULL), EBADF);
	FAILS("rsetsockopt", rsetsockopt(0, SOL_SOCKET, SO_RCVBUF, &number, len), EBADF);
	FAILS("rgetsockopt", rgetsockopt(0, SOL_SOCKET, SO_RCVBUF, &number, &len), EBADF);
	FAILS("rfcntl", rfcntl(0, F_GETFL), EBADF);
	FAILS("riomap", riomap(0, &octet, 1, PROT_WRITE, 0, 0), EBADF);
	FAILS("riounmap", riounmap(0, &octet, 1), EBADF);
	FAILS("riowrite", riowrite(0, &octet, 1, 0, 0), EBADF);

	FAILS("rsend without a connection", rsend(listener, &octet, 1, 0), ENOTCONN);
	FAILS("rbind again", rbind(listener, (struct sockaddr *)&address, address_len), EINVAL);
	FAILS("rbind of half an address", rbind(listener, (struct sockaddr *)&address, 7), EINVAL);
	FAILS("rshutdown of what", rshutdown(listener, 7), EINVAL);
	FAILS("an unknown option", rsetsockopt(listener, SOL_SOCKET, SO_BROADCAST, &number, len), EOPNOTSUPP);
	FAILS("half an option", rsetsockopt(listener, SOL_SOCKET, SO_RCVBUF, &number, 2), EINVAL);
	FAILS("no option", rsetsockopt(listener, SOL_SOCKET, SO_RCVBUF, NULL, len), EFAULT);
	FAILS("an unknown command", rfcntl(listener, F_GETLK, NULL), EOPNOTSUPP);
	FAILS("rselect of too many", rselect(FD_SETSIZE + 1, NULL, NULL, NULL, NULL), EINVAL);
}

static void options(int socket)
{
	static const int known[][4] = {
		{ SOL_SOCKET, SO_REUSEADDR, 1, 1 },  { SOL_SOCKET, SO_RCVBUF, 100000, 200000 },
		{ SOL_SOCKET, SO_SNDBUF, 5000, 10000 }, { SOL_SOCKET, SO_KEEPALIVE, 1, 1 },
		{ SOL_SOCKET, SO_OOBINLINE, 1, 1 },  { IPPROTO_TCP, TCP_NODELAY, 1, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 77, 77 }, { IPPROTO_TCP, TCP_MAXSEG, 900, 2048 },
		{ IPPROTO_IPV6, IPV6_V6ONLY, 1, 1 }, { SOL_RDMA, RDMA_SQSIZE, 100, 100 },
		{ SOL_RDMA, RDMA_RQSIZE, 200, 200 }, { SOL_RDMA, RDMA_INLINE, 30, 30 },
		{ SOL_RDMA, RDMA_IOMAPSIZE, 40, 40 },
	};
	struct linger linger = { 1, 5 }, back = { 0, 0 };
	socklen_t len;

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		int value = known[i][2];

		EQ("rsetsockopt", rsetsockopt(socket, known[i][0], known[i][1], &value, sizeof value), 0);
		len = sizeof value;
		EQ("rgetsockopt", rgetsockopt(socket, known[i][0], known[i][1], &value, &len), 0);
		EQ("an option", value, known[i][3]);
		EQ("its length", len, sizeof value);
	}
	len = sizeof back;
	EQ("SO_LINGER", rsetsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
	EQ("SO_LINGER", rgetsockopt(socket, SOL_SOCKET, SO_LINGER, &back, &len), 0);
	EQ("l_onoff", back.l_onoff, 1);
	EQ("l_linger", back.l_linger, 5);
}

static void messages(int client, int server)
{
	char one[4] = "one", two[4] = "two", in[3], rest[16];
	struct iovec out[] = { { one, 3 }, { two, 3 } }, into[] = { { in, 3 }, { rest, 16 } };
	struct sockaddr_in from;
	struct msghdr msg = { .msg_iov = out, .msg_iovlen = 2 };

	EQ("rsendmsg", rsendmsg(client, &msg, 0), 6);
	EQ("rpoll", wait_for(server, POLLIN), POLLIN);
	msg = (struct msghdr){ .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = into, .msg_iovlen = 2 };
	EQ("rrecvmsg", rrecvmsg(server, &msg, 0), 6);
	TRUE("what came", !memcmp(in, "one", 3) && !memcmp(rest, "two", 3));
	EQ("from whom", from.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	EQ("rwritev", rwritev(client, out, 2), 6);
	EQ("rreadv", rreadv(server, into, 2), 6);
	EQ("rwrite", rwrite(client, "x", 1), 1);
	EQ("rread", rread(server, rest, sizeof rest), 1);
	FAILS("rrecv", rrecv(server, rest, 1, MSG_DONTWAIT), EAGAIN);
	FAILS("rsendto", rsendto(client, "x", 1, 0, (struct sockaddr *)&from, sizeof from), EISCONN);
	FAILS("rwritev of too many", rwritev(client, out, 2000), EINVAL);
	FAILS("rwritev of less than none", rwritev(client, out, -1), EINVAL);
}

/* Ordinary descriptors and sockets in one call. */
static void waiting(int client, int server)
{
	struct timeval limit = { 0, 20000 };
	struct pollfd fds[3];
	fd_set in, out;
	char octet;
	int ends[2];
	int most = server > client ? server : client;

	MUST("pipe", pipe(ends) == 0);
	fds[0] = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = -1, .events = POLLIN };
	fds[2] = (struct pollfd){ .fd = server, .events = POLLIN };
	EQ("rpoll for nothing", rpoll(fds, 3, 10), 0);
	EQ("rpoll of nothing", rpoll(NULL, 0, 10), 0);
	EQ("write", write(ends[1], "x", 1), 1);
	EQ("rpoll of a pipe", rpoll(fds, 3, -1), 1);
	EQ("the pipe", fds[0].revents, POLLIN);
	EQ("the socket", fds[2].revents, 0);
	EQ("rsend", rsend(client, "y", 1, 0), 1);
	EQ("a socket", wait_for(server, POLLIN), POLLIN);
	EQ("rpoll of both", rpoll(fds, 3, -1), 2);
	EQ("rrecv", rrecv(server, &octet, 1, 0), 1);
	EQ("read", read(ends[0], &octet, 1), 1);

	for (int twice = 0; twice < 2; twice++) {
		FD_ZERO(&in);
		FD_SET(server, &in);
		FD_SET(ends[0], &in);
		EQ("rselect in vain", rselect(most + ends[0], &in, NULL, NULL, &limit), 0);
		TRUE("nothing is set", !FD_ISSET(server, &in) && !FD_ISSET(ends[0], &in));
	}
	EQ("rsend", rsend(client, "z", 1, 0), 1);
	wait_for(server, POLLIN);
	FD_SET(server, &in);
	FD_SET(ends[0], &in);
	FD_ZERO(&out);
	FD_SET(client, &out);
	EQ("rselect", rselect(most + ends[0], &in, &out, NULL, NULL), 2);
	TRUE("which", FD_ISSET(server, &in) && !FD_ISSET(ends[0], &in) && FD_ISSET(client, &out));
	EQ("rrecv", rrecv(server, &octet, 1, 0), 1);
	close(ends[0]);
	close(ends[1]);
	fds[0].events = POLLIN;
	EQ("rpoll of what is closed", rpoll(fds, 1, -1), 1);
	EQ("it is", fds[0].revents, POLLNVAL);
}

/* The client has room in its table, so the server may map. */
static void regions(int client, int server)
{
	static char memory[1000];
	char octet;

	FAILS("riomap to read", riomap(server, memory, sizeof memory, PROT_READ, 0, 0), EINVAL);
	FAILS("riomap at a peer without room", riomap(client, memory, 10, PROT_WRITE, 0, 0), ENOMEM);
	EQ("riomap", riomap(server, memory, sizeof memory, PROT_WRITE, 0, 5000), 5000);
	EQ("rsend", rsend(server, "m", 1, 0), 1);
	EQ("rrecv", rrecv(client, &octet, 1, 0), 1);
	FAILS("riowrite beyond", riowrite(client, "abc", 3, 6000, 0), EFAULT);
	EQ("riowrite", riowrite(client, "abc", 3, 5100, 0), 3);
	EQ("rsend", rsend(client, "w", 1, 0), 1);
	EQ("rrecv", rrecv(server, &octet, 1, 0), 1);
	TRUE("what was written", !memcmp(memory + 100, "abc", 3));
	EQ("riounmap", riounmap(server, memory, sizeof memory), 0);
	FAILS("riounmap again", riounmap(server, memory, sizeof memory), EINVAL);
}

int main(void)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), client, server, value = 4, error = 0;
	socklen_t len = sizeof error;
	char octet;

	MUST("rsocket", listener >= 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	EQ("rbind", rbind(listener, (struct sockaddr *)&address, address_len), 0);
	EQ("rlisten", rlisten(listener, 5), 0);
	EQ("rgetsockname", rgetsockname(listener, (struct sockaddr *)&address, &address_len), 0);
	TRUE("a port", address.sin_port != 0);
	FAILS("rgetsockname to nowhere", rgetsockname(listener, NULL, &len), EFAULT);
	FAILS("rgetsockname of no length", rgetsockname(listener, (struct sockaddr *)&address, NULL), EFAULT);
	len = 0;
	EQ("rgetsockname for the length", rgetsockname(listener, NULL, &len), 0);
	EQ("the length", len, sizeof address);
	len = sizeof error;
	nothing_is_there(listener);

	client = rsocket(AF_INET6, SOCK_STREAM, IPPROTO_TCP);
	MUST("rsocket", client >= 0);
	options(client);
	EQ("rclose", rclose(client), 0);

	connected(listener, &client, &server);
	messages(client, server);
	waiting(client, server);
	EQ("rshutdown", rshutdown(client, SHUT_WR), 0);
	FAILS("rsend", rsend(client, "x", 1, 0), EPIPE);
	EQ("the end", rrecv(server, &octet, 1, 0), 0);
	EQ("rclose", rclose(client), 0);
	FAILS("rclose again", rclose(client), EBADF);
	EQ("rclose", rclose(server), 0);

	EQ("RDMA_IOMAPSIZE", rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &value, sizeof value), 0);
	connected(listener, &server, &client);
	regions(client, server);
	EQ("rclose", rclose(client), 0);
	EQ("rclose", rclose(server), 0);
	EQ("rclose", rclose(listener), 0);

	client = rsocket(AF_INET, SOCK_STREAM, 0);
	EQ("O_NONBLOCK", rfcntl(client, F_SETFL, O_NONBLOCK), 0);
	FAILS("rconnect", rconnect(client, (struct sockaddr *)&address, address_len), EINPROGRESS);
	TRUE("an error", wait_for(client, POLLOUT) & POLLERR);
	EQ("SO_ERROR", rgetsockopt(client, SOL_SOCKET, SO_ERROR, &error, &len), 0);
	EQ("nobody listens", error, ECONNREFUSED);
	EQ("rclose", rclose(client), 0);
	return failures != 0;
}

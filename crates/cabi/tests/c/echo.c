/* An echo over ordinary sockets: what becomes of a program that knows nothing of RDMA.
 * echo s PORT: serves one connection; echo c PORT: sends and receives at once, and compares. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE 3000000

static char sent[SIZE], received[SIZE];

static int failed(const char *what)
{
	perror(what);
	return 1;
}

/* An option that only sockets over RDMA have. */
static int is_ordinary(int socket)
{
	socklen_t len = sizeof len;
	int entries = 0;

	return getsockopt(socket, 0x10000, 0, &entries, &len) || entries == 0;
}

static int serve(int listener, struct sockaddr_in *address)
{
	ssize_t len;
	int socket;

	if (bind(listener, (struct sockaddr *)address, sizeof *address) || listen(listener, 5))
		return failed("listen");
	puts("listening");
	fflush(stdout);
	socket = accept(listener, NULL, NULL);
	if (socket < 0 || is_ordinary(socket))
		return failed("accept");
	while ((len = recv(socket, received, SIZE, 0)) > 0)
		for (ssize_t at = 0, now; at < len; at += now)
			if ((now = send(socket, received + at, len - at, 0)) < 0)
				return failed("send");
	if (len < 0)
		return failed("recv");
	return close(socket) || close(listener) ? failed("close") : 0;
}

static int ask(int socket, struct sockaddr_in *address)
{
	ssize_t in = 0, out = 0, now;

	if (connect(socket, (struct sockaddr *)address, sizeof *address) || is_ordinary(socket))
		return failed("connect");
	for (unsigned i = 0; i < SIZE; i++)
		sent[i] = i * i >> 7;
	while (in < SIZE) {
		struct pollfd fd = { .fd = socket, .events = POLLIN | (out < SIZE ? POLLOUT : 0) };

		if (poll(&fd, 1, 30000) != 1)
			return failed("poll");
		if (fd.revents & POLLOUT) {
			now = send(socket, sent + out, SIZE - out < 30000 ? SIZE - out : 30000, MSG_DONTWAIT);
			out += now > 0 ? now : 0;
		}
		if (fd.revents & POLLIN) {
			now = read(socket, received + in, SIZE - in);
			if (now <= 0)
				return failed("read");
			in += now;
		}
	}
	if (memcmp(sent, received, SIZE)) {
		puts("what comes back differs");
		return 1;
	}
	if (shutdown(socket, SHUT_WR) || read(socket, received, 1) != 0)
		return failed("the end");
	return close(socket) ? failed("close") : 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int one = 1, made;

	if (argc != 3)
		return 2;
	address.sin_port = htons(atoi(argv[2]));
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	made = socket(AF_INET, SOCK_STREAM, 0);
	if (made < 0 || setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one))
		return failed("socket");
	return argv[1][0] == 's' ? serve(made, &address) : ask(made, &address);
}

/* A program that returns from main without taking leave: its handlers of atexit still use the connection,
 * and the peer, which waits for nothing of its own, hears of the end. With an argument it is killed instead,
 * and leaves a child, which has all its descriptors. */
#include "check.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/wait.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *connection;
static struct ibv_mr *region;
static char memory[64];

static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct pollfd poll_fd = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_id *id;

	MUST("an event in time", poll(&poll_fd, 1, 10000) == 1);
	MUST("rdma_get_cm_event", !rdma_get_cm_event(channel, &event));
	EQ("the event", event->event, type);
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

static void equip(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};

	connection = id;
	MUST("rdma_create_qp", !rdma_create_qp(id, NULL, &attr));
	region = ibv_reg_mr(id->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	MUST("ibv_reg_mr", region);
}

static void last_words(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof(memory), .lkey = region->lkey};
	struct ibv_send_wr wr = request(&sge, IBV_WR_SEND);

	EQ("ibv_post_send", post(connection->qp, &wr), 0);
	EQ("status", wait_wc(connection->send_cq).status, IBV_WC_SUCCESS);
	if (failures)
		_exit(1);
}

/* Its child stays until nobody writes to this descriptor any more. */
static void die(int until)
{
	char nothing;

	last_words();
	switch (fork()) {
	case -1:
		MUST("fork", 0);
	case 0:
		_exit(read(until, &nothing, 1) != 0);
	default:
		kill(getpid(), SIGKILL);
	}
}

static int active(struct sockaddr_in to, int dies, int until)
{
	struct rdma_conn_param param = {.retry_count = 7};
	struct rdma_cm_id *id;

	/* Before anything that the library may register itself. */
	atexit(last_words);
	channel = rdma_create_event_channel();
	MUST("rdma_create_event_channel", channel);
	MUST("rdma_create_id", !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	MUST("rdma_resolve_addr", !rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST("rdma_resolve_route", !rdma_resolve_route(id, 2000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	equip(id);
	MUST("rdma_connect", !rdma_connect(id, &param));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	if (dies)
		die(until);
	return failures != 0;
}

static int passive(int port_to)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_conn_param param = {.retry_count = 7};
	struct ibv_recv_wr wr = {.num_sge = 1}, *bad;
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof(memory)};
	struct rdma_cm_id *listener;

	channel = rdma_create_event_channel();
	MUST("rdma_create_event_channel", channel);
	MUST("rdma_create_id", !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST("rdma_bind_addr", !rdma_bind_addr(listener, (struct sockaddr *)&sin));
	MUST("rdma_listen", !rdma_listen(listener, 1));
	sin.sin_port = rdma_get_src_port(listener);
	MUST("write", write(port_to, &sin, sizeof(sin)) == sizeof(sin));
	equip(expect(RDMA_CM_EVENT_CONNECT_REQUEST));
	sge.lkey = region->lkey;
	wr.sg_list = &sge;
	EQ("ibv_post_recv", ibv_post_recv(connection->qp, &wr, &bad), 0);
	MUST("rdma_accept", !rdma_accept(connection, &param));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	EQ("status", wait_wc(connection->recv_cq).status, IBV_WC_SUCCESS);
	TRUE("its identifier", expect(RDMA_CM_EVENT_DISCONNECTED) == connection);
	return failures != 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to;
	int way[2], status = 0;
	int dies = argc > 1 && !strcmp(argv[1], "killed");
	pid_t child;

	MUST("pipe", !pipe(way));
	child = fork();
	MUST("fork", child >= 0);
	if (child == 0) {
		close(way[1]);
		MUST("read", read(way[0], &to, sizeof(to)) == sizeof(to));
		return active(to, dies, way[0]);
	}
	status = passive(way[1]);
	waitpid(child, &way[0], 0);
	EQ("the child's status", way[0], dies ? SIGKILL : 0);
	return status || failures;
}

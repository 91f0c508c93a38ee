/* Objects that are destroyed while something of theirs is still under way. */
#include "check.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <unistd.h>

static struct rdma_event_channel *channel;

static struct rdma_cm_event *next(void)
{
	struct rdma_cm_event *event;
	struct pollfd poll_fd = {.fd = channel->fd, .events = POLLIN};

	MUST("an event in time", poll(&poll_fd, 1, 30000) == 1);
	MUST("rdma_get_cm_event", !rdma_get_cm_event(channel, &event));
	return event;
}

static void wait_for(struct rdma_cm_id *id, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next();

	EQ("the event", event->event, type);
	TRUE("its identifier", event->id == id);
	rdma_ack_cm_event(event);
}

static void with_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};

	MUST("rdma_create_qp", !rdma_create_qp(id, NULL, &attr));
}

/* The queue pair of an identifier is the application's to destroy, also while events of the connection are
 * still to come. */
static void queue_pair_before_connection(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr *to = (struct sockaddr *)&sin;
	struct rdma_conn_param param = {.initiator_depth = 1, .responder_resources = 1, .retry_count = 7};
	struct rdma_cm_id *listener, *client, *server = NULL;
	struct rdma_cm_event *event;
	int established = 0;

	MUST("rdma_create_id", !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST("rdma_bind_addr", !rdma_bind_addr(listener, to));
	MUST("rdma_listen", !rdma_listen(listener, 1));
	sin.sin_port = rdma_get_src_port(listener);
	MUST("rdma_create_id", !rdma_create_id(channel, &client, NULL, RDMA_PS_TCP));
	MUST("rdma_resolve_addr", !rdma_resolve_addr(client, NULL, to, 2000));
	wait_for(client, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST("rdma_resolve_route", !rdma_resolve_route(client, 2000));
	wait_for(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	with_qp(client);
	MUST("rdma_connect", !rdma_connect(client, &param));
	while (established < 2) {
		event = next();
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			server = event->id;
			with_qp(server);
			MUST("rdma_accept", !rdma_accept(server, &param));
		} else {
			EQ("the event", event->event, RDMA_CM_EVENT_ESTABLISHED);
			EQ("the queue pair's state", event->id->qp->state, IBV_QPS_RTS);
			established++;
		}
		rdma_ack_cm_event(event);
	}
	EQ("ibv_destroy_qp", ibv_destroy_qp(client->qp), 0);
	EQ("disconnect", rdma_disconnect(server), 0);
	for (int ends = 0; ends < 2; ends++) {
		event = next();
		EQ("the event", event->event, RDMA_CM_EVENT_DISCONNECTED);
		rdma_ack_cm_event(event);
	}
	EQ("disconnect", rdma_disconnect(client), 0);
	client->qp = NULL;
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	EQ("destroy", rdma_destroy_id(client), 0);
	EQ("destroy", rdma_destroy_id(server), 0);
	EQ("destroy", rdma_destroy_id(listener), 0);
}

static atomic_int returned;

static void *ask_once_more(void *of)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(of, &event);
	returned++;
	return NULL;
}

/* A thread that fetches events comes back for the next one when its channel has just gone: it waits, as it
 * would if it had come a moment earlier. */
static void channel_before_its_reader(void)
{
	struct rdma_event_channel *gone = rdma_create_event_channel();
	pthread_t thread;

	MUST("rdma_create_event_channel", gone);
	rdma_destroy_event_channel(gone);
	MUST("pthread_create", !pthread_create(&thread, NULL, ask_once_more, gone));
	usleep(300000);
	EQ("calls that returned", returned, 0);
	EQ("pthread_cancel", pthread_cancel(thread), 0);
	EQ("pthread_join", pthread_join(thread, NULL), 0);
	/* Many of them do not add up. */
	for (int i = 0; i < 2000; i++) {
		gone = rdma_create_event_channel();
		MUST("rdma_create_event_channel", gone);
		rdma_destroy_event_channel(gone);
	}
}

int main(void)
{
	channel = rdma_create_event_channel();
	MUST("rdma_create_event_channel", channel);
	queue_pair_before_connection();
	channel_before_its_reader();
	rdma_destroy_event_channel(channel);
	return failures != 0;
}

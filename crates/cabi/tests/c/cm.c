/* What librdmacm's manual pages say of misuse, failures and the life of identifiers and events. Both ends in
 * one process, over the loopback interface and the transport that the environment chooses. */
#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdatomic.h>

static struct sockaddr_in at(const char *address, uint16_t port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(port)};

	inet_pton(AF_INET, address, &sin.sin_addr);
	return sin;
}

#define ADDR(sin) ((struct sockaddr *)&(sin))

/* A call that returns -1 and sets errno. */
#define FAILS(what, call, why)                                                                         \
	do {                                                                                           \
		errno = 0;                                                                             \
		int result_ = (call);                                                                  \
		int errno_ = errno;                                                                    \
		EQ(what, result_, -1);                                                                 \
		EQ(what " sets errno", errno_, why);                                                   \
	} while (0)

/* The next event, which must be this one; not acknowledged. */
static struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct pollfd poll_fd = {.fd = channel->fd, .events = POLLIN};

	MUST("an event in time", poll(&poll_fd, 1, 30000) == 1);
	MUST("rdma_get_cm_event", !rdma_get_cm_event(channel, &event));
	if (event->event != type) {
		printf("%s (%d), not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(2);
	}
	return event;
}

static void expect_acked(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	rdma_ack_cm_event(expect(channel, type));
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;

	MUST("rdma_create_id", !rdma_create_id(channel, &id, (void *)7, RDMA_PS_TCP));
	return id;
}

static struct rdma_cm_id *listening(struct rdma_event_channel *channel)
{
	struct sockaddr_in any = at("127.0.0.1", 0);
	struct rdma_cm_id *id = new_id(channel);

	MUST("rdma_bind_addr", !rdma_bind_addr(id, ADDR(any)));
	MUST("rdma_listen", !rdma_listen(id, 8));
	TRUE("a port was found", rdma_get_src_port(id) != 0);
	return id;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, uint16_t port)
{
	struct sockaddr_in to = at("127.0.0.1", port);
	struct rdma_cm_id *id = new_id(channel);

	MUST("rdma_resolve_addr", !rdma_resolve_addr(id, NULL, ADDR(to), 2000));
	expect_acked(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST("rdma_resolve_route", !rdma_resolve_route(id, 2000));
	expect_acked(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static void with_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};

	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	MUST("rdma_create_qp", !rdma_create_qp(id, NULL, &attr));
	EQ("the queue pair is in INIT", id->qp->state, IBV_QPS_INIT);
	TRUE("queues and channels were made", id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	TRUE("attr tells them", attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq);
}

static void states(struct rdma_event_channel *channel)
{
	struct sockaddr_in lo = at("127.0.0.1", 0), foreign = at("192.0.2.1", 0), none = {0};
	struct rdma_cm_id *id = new_id(channel), *other = new_id(channel);
	struct rdma_conn_param param = {0};
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
	struct ibv_qp_attr qp_attr = {.qp_state = IBV_QPS_RTR};
	int mask, option = 1;
	uint8_t tos = 8;

	EQ("context", (uintptr_t)id->context, 7);
	TRUE("verbs before binding", id->verbs == NULL);
	FAILS("connect before resolving", rdma_connect(id, &param), EINVAL);
	FAILS("accept without a request", rdma_accept(id, &param), EINVAL);
	FAILS("reject without a request", rdma_reject(id, NULL, 0), EINVAL);
	FAILS("disconnect without a connection", rdma_disconnect(id), EINVAL);
	FAILS("establish without a response", rdma_establish(id), EINVAL);
	FAILS("resolve_route before resolve_addr", rdma_resolve_route(id, 100), EINVAL);
	FAILS("get_request with a channel", rdma_get_request(id, &other), EINVAL);
	FAILS("a queue pair without a device", rdma_create_qp(id, NULL, &attr), EINVAL);
	FAILS("init_qp_attr without a device", rdma_init_qp_attr(id, &qp_attr, &mask), EINVAL);
	FAILS("bind to a family that is none", rdma_bind_addr(id, ADDR(none)), EINVAL);
	FAILS("bind to an address of others", rdma_bind_addr(id, ADDR(foreign)), EADDRNOTAVAIL);
	FAILS("an option that is none", rdma_set_option(id, RDMA_OPTION_ID, 99, &option, sizeof option), ENOSYS);
	FAILS("an option of a wrong size", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &option, sizeof option), EINVAL);
	EQ("an option", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), 0);
	FAILS("acknowledging nothing", rdma_ack_cm_event(NULL), EINVAL);
	FAILS("leaving a group that was not joined", rdma_leave_multicast(id, ADDR(lo)), EADDRNOTAVAIL);

	EQ("bind", rdma_bind_addr(id, ADDR(lo)), 0);
	TRUE("verbs, pd and port after binding", id->verbs && id->pd && id->port_num == 1);
	FAILS("bind again", rdma_bind_addr(id, ADDR(lo)), EINVAL);
	lo.sin_port = rdma_get_src_port(id);
	EQ("listen", rdma_listen(id, 1), 0);
	FAILS("a port in use", rdma_bind_addr(other, ADDR(lo)) ? -1 : rdma_listen(other, 1), EADDRINUSE);
	EQ("destroy", rdma_destroy_id(other), 0);
	EQ("destroy", rdma_destroy_id(id), 0);
	EQ("unknown event", strcmp(rdma_event_str(99), "UNKNOWN EVENT"), 0);
}

/* A channel that does not wait. */
static void not_blocking(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	FAILS("no event", rdma_get_cm_event(channel, &event), EAGAIN);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK);
}

static void refused(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = listening(channel), *client;
	uint16_t port = ntohs(rdma_get_src_port(id));
	struct rdma_conn_param param = {.private_data = "hello", .private_data_len = 5};
	struct rdma_cm_event *event;
	int iwarp = id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;

	/* By the application, with private data; the request is destroyed before it is acknowledged. */
	client = resolved(channel, port);
	with_qp(client);
	MUST("rdma_connect", !rdma_connect(client, &param));
	event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	TRUE("listener", event->listen_id == id);
	EQ("context of the listener", (uintptr_t)event->id->context, 7);
	TRUE("verbs of a request", event->id->verbs == id->verbs);
	EQ("private data's length", event->param.conn.private_data_len, iwarp ? 5 : 56);
	EQ("private data", memcmp(event->param.conn.private_data, "hello", 5), 0);
	EQ("reject", rdma_reject(event->id, "no", 2), 0);
	EQ("destroy", rdma_destroy_id(event->id), 0);
	rdma_ack_cm_event(event);
	event = expect(channel, RDMA_CM_EVENT_REJECTED);
	EQ("status", event->status, iwarp ? -ECONNREFUSED : 28);
	EQ("private data's length", event->param.conn.private_data_len, iwarp ? 2 : 148);
	EQ("private data", memcmp(event->param.conn.private_data, "no", 2), 0);
	rdma_ack_cm_event(event);
	FAILS("disconnect after a refusal", rdma_disconnect(client), EINVAL);
	rdma_destroy_qp(client);
	TRUE("queues are gone", !client->qp && !client->send_cq && !client->recv_cq && !client->recv_cq_channel);
	EQ("destroy", rdma_destroy_id(client), 0);

	/* By nobody. */
	EQ("destroy", rdma_destroy_id(id), 0);
	client = resolved(channel, port);
	with_qp(client);
	MUST("rdma_connect", !rdma_connect(client, NULL));
	event = expect(channel, RDMA_CM_EVENT_REJECTED);
	EQ("status", event->status, iwarp ? -ECONNREFUSED : 8);
	rdma_ack_cm_event(event);
	rdma_destroy_qp(client);
	EQ("destroy", rdma_destroy_id(client), 0);
}

struct destroying {
	struct rdma_cm_id *id;
	atomic_int done;
};

static void *destroy(void *arg)
{
	struct destroying *destroying = arg;

	EQ("destroy", rdma_destroy_id(destroying->id), 0);
	atomic_store(&destroying->done, 1);
	return NULL;
}

/* Destroying waits until what was fetched is acknowledged, and takes back the rest. */
static void acknowledged_first(struct rdma_event_channel *channel)
{
	struct sockaddr_in to = at("127.0.0.1", 9);
	struct destroying destroying = {.id = new_id(channel)};
	struct rdma_cm_event *event;
	pthread_t thread;

	MUST("rdma_resolve_addr", !rdma_resolve_addr(destroying.id, NULL, ADDR(to), 2000));
	event = expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST("rdma_resolve_route", !rdma_resolve_route(destroying.id, 2000));
	MUST("pthread_create", !pthread_create(&thread, NULL, destroy, &destroying));
	usleep(50000);
	EQ("waits", atomic_load(&destroying.done), 0);
	rdma_ack_cm_event(event);
	pthread_join(thread, NULL);
	not_blocking(channel);
}

/* Events that nobody has fetched go along to the other channel. */
static void migrated(struct rdma_event_channel *channel)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct sockaddr_in to = at("127.0.0.1", 9);
	struct rdma_cm_id *id = new_id(channel);

	MUST("rdma_resolve_addr", !rdma_resolve_addr(id, NULL, ADDR(to), 2000));
	EQ("migrate", rdma_migrate_id(id, other), 0);
	TRUE("channel", id->channel == other);
	not_blocking(channel);
	expect_acked(other, RDMA_CM_EVENT_ADDR_RESOLVED);
	EQ("to be synchronous", rdma_migrate_id(id, NULL), 0);
	EQ("waits by itself", rdma_resolve_route(id, 2000), 0);
	EQ("leaves its event", id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	FAILS("once more", rdma_migrate_id(id, NULL), EINVAL);
	EQ("destroy", rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(other);
}

static void *serve(void *arg)
{
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	char text[16];
	struct ibv_mr *mr;

	MUST("rdma_get_request", !rdma_get_request(arg, &id));
	EQ("its event", id->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	TRUE("its queue pair", id->qp && id->qp->pd == id->pd);
	mr = rdma_reg_msgs(id, text, sizeof text);
	MUST("rdma_reg_msgs", mr);
	MUST("rdma_post_recv", !rdma_post_recv(id, NULL, text, sizeof text, mr));
	EQ("accept", rdma_accept(id, NULL), 0);
	EQ("its event", id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	EQ("the queue pair's state", id->qp->state, IBV_QPS_RTS);
	EQ("a message", rdma_get_recv_comp(id, &wc), 1);
	EQ("its status", wc.status, IBV_WC_SUCCESS);
	EQ("its text", strcmp(text, "synchronous"), 0);
	EQ("disconnect", rdma_disconnect(id), 0);
	EQ("once more", rdma_disconnect(id), 0);
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	return NULL;
}

/* Endpoints: without a channel, every call waits. */
static void synchronous(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *res;
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1};
	struct ibv_qp_init_attr mine;
	struct rdma_cm_id *listener, *id;
	struct ibv_wc wc;
	char port[8];
	pthread_t thread;

	attr.cap.max_send_wr = attr.cap.max_recv_wr = 2;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.cap.max_inline_data = 16;
	MUST("rdma_getaddrinfo", !rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res));
	TRUE("passive", (res->ai_flags & RAI_PASSIVE) && res->ai_src_addr && !res->ai_dst_addr);
	EQ("type of queue pair", res->ai_qp_type, IBV_QPT_RC);
	mine = attr;
	MUST("rdma_create_ep", !rdma_create_ep(&listener, res, NULL, &mine));
	rdma_freeaddrinfo(res);
	MUST("rdma_listen", !rdma_listen(listener, 0));
	MUST("pthread_create", !pthread_create(&thread, NULL, serve, listener));

	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	hints.ai_flags = RAI_NUMERICHOST;
	MUST("rdma_getaddrinfo", !rdma_getaddrinfo("127.0.0.1", port, &hints, &res));
	TRUE("active", res->ai_dst_addr && res->ai_src_addr);
	mine = attr;
	MUST("rdma_create_ep", !rdma_create_ep(&id, res, NULL, &mine));
	rdma_freeaddrinfo(res);
	EQ("destination", rdma_get_dst_port(id), rdma_get_src_port(listener));
	TRUE("path records are RoCE's",
	     id->route.num_paths == (id->verbs->device->transport_type == IBV_TRANSPORT_IB));
	EQ("connect", rdma_connect(id, NULL), 0);
	EQ("its event", id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	EQ("send", rdma_post_send(id, NULL, "synchronous", 12, NULL, IBV_SEND_INLINE), 0);
	EQ("sent", rdma_get_send_comp(id, &wc), 1);
	EQ("its status", wc.status, IBV_WC_SUCCESS);
	pthread_join(thread, NULL);
	EQ("disconnect", rdma_disconnect(id), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

static void names(void)
{
	struct sockaddr_in lo = at("127.0.0.1", 5);
	struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST}, *res;

	FAILS("nothing asked", rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
	EQ("no number", rdma_getaddrinfo("no number", "1", &hints, &res), EAI_NONAME);
	EQ("no service", rdma_getaddrinfo("127.0.0.1", "no such service", &hints, &res), EAI_SERVICE);
	/* Addresses instead of names are copied. */
	hints = (struct rdma_addrinfo){.ai_dst_addr = ADDR(lo), .ai_dst_len = sizeof lo, .ai_port_space = RDMA_PS_UDP};
	MUST("rdma_getaddrinfo", !rdma_getaddrinfo(NULL, NULL, &hints, &res));
	EQ("copied", memcmp(res->ai_dst_addr, &lo, sizeof lo), 0);
	TRUE("a copy", res->ai_dst_addr != ADDR(lo));
	EQ("type of queue pair", res->ai_qp_type, IBV_QPT_UD);
	EQ("source", ((struct sockaddr_in *)res->ai_src_addr)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(res);
}

static void devices(void)
{
	int count = 0, found = 0;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = listening(channel);
	struct ibv_context **list = rdma_get_devices(&count);

	MUST("rdma_get_devices", list && count > 0);
	TRUE("the list ends", list[count] == NULL);
	for (int i = 0; i < count; i++)
		found += list[i] == id->verbs;
	EQ("the identifier's is among them", found, 1);
	rdma_free_devices(list);
	EQ("destroy", rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

static void take_join(struct rdma_event_channel *channel, void *context)
{
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_MULTICAST_JOIN);

	TRUE("the group's context", event->param.ud.private_data == context);
	rdma_ack_cm_event(event);
}

/* Groups that are joined with a queue pair and without, and left with none, another or the same. */
static void groups(struct rdma_event_channel *channel)
{
	/* Each call fills in its own. */
	struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD}, again = attr;
	struct sockaddr_in lo = at("127.0.0.1", 0), group = at("239.7.7.7", 0);
	struct rdma_cm_id *id;
	int mark;

	MUST("rdma_create_id", !rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
	if (rdma_bind_addr(id, ADDR(lo))) {
		/* iWARP has no datagrams. */
		EQ("errno", errno, EOPNOTSUPP);
		EQ("destroy", rdma_destroy_id(id), 0);
		return;
	}
	EQ("join without a queue pair", rdma_join_multicast(id, ADDR(group), &mark), 0);
	take_join(channel, &mark);
	EQ("and leave", rdma_leave_multicast(id, ADDR(group)), 0);
	EQ("join without a queue pair", rdma_join_multicast(id, ADDR(group), &mark), 0);
	take_join(channel, &mark);
	MUST("rdma_create_qp", !rdma_create_qp(id, NULL, &attr));
	EQ("leave with one", rdma_leave_multicast(id, ADDR(group)), 0);
	FAILS("leave again", rdma_leave_multicast(id, ADDR(group)), EADDRNOTAVAIL);
	EQ("join with a queue pair", rdma_join_multicast(id, ADDR(group), NULL), 0);
	take_join(channel, NULL);
	EQ("and leave", rdma_leave_multicast(id, ADDR(group)), 0);
	EQ("join with a queue pair", rdma_join_multicast(id, ADDR(group), NULL), 0);
	take_join(channel, NULL);
	rdma_destroy_qp(id);
	MUST("rdma_create_qp", !rdma_create_qp(id, NULL, &again));
	EQ("leave with another", rdma_leave_multicast(id, ADDR(group)), 0);
	rdma_destroy_qp(id);
	EQ("destroy", rdma_destroy_id(id), 0);
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	MUST("rdma_create_event_channel", channel);
	not_blocking(channel);
	states(channel);
	refused(channel);
	acknowledged_first(channel);
	migrated(channel);
	groups(channel);
	rdma_destroy_event_channel(channel);
	synchronous();
	names();
	devices();
	printf("%d failures\n", failures);
	return failures != 0;
}
